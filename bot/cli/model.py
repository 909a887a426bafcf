"""`hearth model list | check | pull`: the models at hand, what is wrong with them, and more of them from a hub."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bot.config import Config, load_config
from bot.config_engine import engine_settings
from bot.errors import ConfigError
from engine.config import EngineConfig
from engine.vram.devices import GIB, card, ram
from engine.vram.gguf import shards
from engine.vram.glance import Glance, glance
from engine.vram.here import may_drive_a_card
from engine.vram.modelcheck import Examination, examine_model, locate
from engine.vram.probe import ProbeFailed, build_devices

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_DIGEST = re.compile(r"([0-9a-fA-F]{64})\s")
_DAMAGED: Final = 3
_STYLES: Final = {True: "green", False: "red", None: "yellow"}
_TABLE_WIDTH: Final = 72  # of a terminal; below it a table of seven columns cannot be read


@dataclass(frozen=True, slots=True)
class Listed:
    """A model of the config (`name`) or a file of the folder ("")."""

    name: str
    path: Path
    settings: EngineConfig


def config_at(path: Path | None) -> Config:
    """The named config file, else `config.toml` here, else the defaults."""
    if path is not None:
        return load_config(path)
    here = Path("config.toml")
    return load_config(here) if here.is_file() else Config(folder=Path.cwd())


def run_list(config: Config, *, as_json: bool) -> None:
    """Print the models of the config and of the models folder, and the downloads that did not end."""
    try:
        target = card(0, build_devices()) if may_drive_a_card() else None
    except ProbeFailed:
        target = None
    memory = ram()
    seen = [
        (model.name, glance(model.path, model.settings, memory, target)) for model in models(config)
    ]
    unfinished = list(_unfinished(config))
    if as_json:
        rows = [
            {"model": name, **asdict(look), "path": str(look.path)}
            for name, look in [*seen, *(("", look) for look in unfinished)]
        ]
        sys.stdout.write(json.dumps(rows, ensure_ascii=False) + "\n")
        return
    console = Console(highlight=False, markup=False)
    if console.width < _TABLE_WIDTH:
        for name, look in seen:
            console.print(_block(name, look))
    else:
        console.print(_table(seen))
    for look in unfinished:
        size = f"{look.n_bytes / GIB:.2f} GiB"
        console.print(f"unfinished: {look.path} ({size}); {look.verdict}", soft_wrap=True)


def _unfinished(config: Config) -> Iterator[Glance]:
    """Downloads that did not end."""
    for part in sorted(config.path(config.models_hub.folder).glob("*.part")):
        if part.is_file():
            n_bytes = part.stat().st_size
            verdict = "the same `hearth model pull` goes on"
            yield Glance(part, n_bytes, "", "", 0, None, verdict)


def models(config: Config) -> Iterator[Listed]:
    """Local models of the config, then the other GGUF files of the models folder."""
    named: set[Path] = set()
    for name, model in config.models.items():
        settings = engine_settings(name, model, config)
        if isinstance(settings, EngineConfig) and settings.backend == "llama.cpp":
            path = locate(name, settings.path)
            named.update(part.resolve() for part in shards(path))
            yield Listed(name, path, settings)
    for path in sorted(config.path(config.models_hub.folder).glob("*.gguf")):
        if path.resolve() not in named and not _LATER_PART.search(path.name):
            usual = EngineConfig(
                name=path.stem, path=str(path), cache_type_k="q8_0", cache_type_v="q8_0"
            )
            yield Listed("", path, usual)


def _block(name: str, look: Glance) -> Text:
    """A model in a window that is too narrow for the table."""
    text = Text(f"{name}: {look.path.name}" if name else look.path.name, overflow="fold")
    facts = f"{look.n_bytes / GIB:.2f} GiB, {look.architecture or '?'}, {look.quantization or '?'}"
    text.append(f"\n  {facts}, context {look.n_ctx_train or '?'}\n  ")
    return text.append(look.verdict, style=_STYLES[look.fits])


def _table(seen: list[tuple[str, Glance]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("model", "file"):
        table.add_column(header, overflow="fold")
    table.add_column("GiB", justify="right")
    for header in ("architecture", "type"):
        table.add_column(header)
    table.add_column("context", justify="right")
    table.add_column("fits here", overflow="fold")
    for name, look in seen:
        table.add_row(
            name or "–",
            look.path.name,
            f"{look.n_bytes / GIB:.2f}",
            look.architecture or "?",
            look.quantization or "?",
            str(look.n_ctx_train) if look.n_ctx_train else "?",
            Text(look.verdict, style=_STYLES[look.fits]),
        )
    return table


# Check.


def run_check(config: Config, wanted: str, sha256: str, *, as_json: bool) -> int:
    """Say what is wrong with a model, or with all of them. Returns the exit status: 0, or 3 for a damaged file."""
    if sha256 and not (wanted and re.fullmatch(r"[0-9a-fA-F]{64}", sha256)):
        raise ConfigError("--sha256 needs the name of one model, and has 64 digits 0-9 a-f")
    chosen = [_one(config, wanted)] if wanted else list(models(config))
    status, told = 0, []
    for model in chosen:
        sums = (sha256,) if sha256 else _sums(config, model)
        found = examine_model(model.path, sums)
        status = status if found.is_sound else _DAMAGED
        told.append({"model": model.name, "path": str(model.path), "sound": found.is_sound,
                     "checksum": bool(sums), "faults": [_said(found, i) for i in range(len(found.faults))]})  # fmt: skip
        if not as_json:
            _say(model, found, sums)
    if as_json:
        sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
    return status


def _one(config: Config, wanted: str) -> Listed:
    """By the name of its table, the name of its file in the folder, or a path."""
    for model in models(config):
        if wanted in {model.name, model.path.name, model.path.stem}:
            return model
    return Listed("", locate(wanted, wanted), EngineConfig(name=wanted, path=wanted))


def _sums(config: Config, model: Listed) -> tuple[str, ...]:
    """Published checksums: those of the config, else those that `hearth model pull` noted beside each part."""
    table = config.models.get(model.name)
    named = getattr(table, "sha256", "")
    if named:
        return (named,) if isinstance(named, str) else tuple(named)
    noted = [part.with_name(f"{part.name}.sha256") for part in shards(model.path)]
    if not all(file.is_file() for file in noted):
        return ()
    found = [_DIGEST.match(file.read_text(encoding="utf-8", errors="replace")) for file in noted]
    return tuple(match[1] for match in found if match) if all(found) else ()


def _said(found: Examination, i: int) -> dict[str, object]:
    fault = found.faults[i]
    return {"path": str(fault.path), "what": fault.what, "cure": fault.cure, "fatal": fault.is_fatal}  # fmt: skip


def _say(model: Listed, found: Examination, sums: tuple[str, ...]) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    name = f"{model.name}: {model.path}" if model.name else str(model.path)
    for fault in found.faults:
        style = "red" if fault.is_fatal else "yellow"
        console.print(Text(f"{fault.path} {fault.what}: {fault.cure}", style=style))
    if found.is_sound:
        checked = (
            "checksum right" if sums else "no published checksum is known; --sha256 compares one"
        )
        console.print(Text(f"{name} is whole ({found.file_bytes / GIB:.2f} GiB); {checked}"))
