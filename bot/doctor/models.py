"""The models: their files byte by byte where that is cheap, and llama.cpp's own verdict."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from bot.config import Config, LlamaModelConfig, OpenAIModelConfig
from bot.config_engine import engine_settings
from bot.doctor.findings import Finding, error, ok, warning
from bot.doctor.patient import Patient
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.vram.modelcheck import Examination, examine_model, locate
from engine.vram.probe import ProbeFailed, dry_run
from engine.vram.symptoms import find_symptoms

_CONNECT_S: Final = 3.0
# Whether llama.cpp takes a file depends on no size, and large ones cost even a dry run memory for each cell; a worker may be
# busy. The plan has the sizes (`bot.doctor.memory`).
_SMALL: Final[dict[str, Any]] = {"n_ctx": 256, "n_parallel": 1, "kv_cells": 0, "rpc": ()}


def look_at_models(patient: Patient) -> Iterator[Finding]:
    """Every [models.*] table."""
    for name, model in patient.config.models.items():
        if isinstance(model, OpenAIModelConfig):
            yield _served(name, model)
        elif model.backend == "llama.cpp":
            yield from _local(name, model, patient.config)


def _served(name: str, model: OpenAIModelConfig) -> Finding:
    parts = urlsplit(model.base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S).close()
    except OSError as fault:
        what = f"nothing answers at {parts.hostname}:{port} ({fault.strerror or fault})"
        return error(what, f"models.{name}.base_url", "start that server, or correct the address")
    return ok(f"{name}: {model.model} at {parts.hostname}:{port} can be reached")


def _local(name: str, model: LlamaModelConfig, config: Config) -> Iterator[Finding]:
    settings = engine_settings(name, model, config)
    if not isinstance(settings, EngineConfig):
        return
    where = f"models.{name}.path"
    try:
        path = locate(settings.name, settings.path)
    except EngineConfigError as fault:
        yield error(str(fault), where, "run `make setup`")
        return
    sums = (model.sha256,) if isinstance(model.sha256, str) else model.sha256
    examined = examine_model(path, tuple(text for text in sums if text))
    for found in examined.faults:
        make = error if found.is_fatal else warning
        yield make(f"{found.path} {found.what}", where, found.cure)
    if not examined.is_sound:
        return
    try:
        dry_run(replace(settings, **_SMALL))
    except ProbeFailed as refusal:
        yield error(str(refusal), where, _cure(str(refusal)))
    except EngineConfigError as fault:
        yield error(str(fault), f"models.{name}", "change that setting")
    else:
        yield ok(f"{name}: {_describe(examined, has_sums=any(sums))}")


def _cure(refusal: str) -> str:
    """What helps, by llama.cpp's words."""
    if "architecture" in refusal:
        return "update Hearth, or choose another model"
    if "damaged" in refusal:
        return "download the file again"
    known = find_symptoms(refusal)
    return known[0][0].cure if known else "choose another file, or smaller settings: hearth plan"


def _describe(examined: Examination, *, has_sums: bool) -> str:
    n_parts = len(examined.heads)
    path = examined.heads[0][0]
    facts = [
        str(examined.meta["general.architecture"]),
        f"{examined.file_bytes / 2**30:.2f} GiB" + (f" in {n_parts} parts" if n_parts > 1 else ""),
        "llama.cpp takes it",
    ]
    if has_sums:
        facts.append("SHA-256 as given")
    return f"{path.name} ({', '.join(facts)})"
