"""The configuration: every fault of the file, and what only this machine can know of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sized
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bot.config import Config
from bot.config_survey import survey
from bot.doctor.findings import Finding, error, ok, warning
from bot.doctor.patient import Patient


def look_at_config(patient: Patient) -> Iterator[Finding]:
    """The file, fault by fault. What is odd but can work is told by `bot.cli.report`."""
    path = patient.config_path
    if path is None:
        yield warning(
            "there is no config.toml: the defaults are checked",
            "",
            "cp config.example.toml config.toml, or name yours with --config",
        )
        return
    faults = survey(path).faults
    for fault in faults:
        where, _, what = fault.partition(": ")
        if not what:
            where, what = str(path), fault
        yield error(what, where, _cure(what))
    if not faults:
        config = patient.config
        yield ok(f"{path.name}: {_count(config.bots, 'bot')}, {_count(config.models, 'model')}")
    yield from _rights(path, patient.config)


def _cure(fault: str) -> str:
    if variable := re.search(r"environment variable (\w+) is not set", fault):
        return f"export {variable.group(1)}=… before the start, or name it in the service's EnvironmentFile"
    if "did you mean" in fault or "for example" in fault:
        return "correct it"
    return "correct it; config.example.toml explains every key"


def _rights(path: Path, config: Config) -> Iterator[Finding]:
    mode = path.stat().st_mode if path.exists() else 0
    if mode & 0o004 and config.bots:
        yield warning(
            "everybody on this machine can read it", str(path), f"chmod 600 {path}, or keep secrets in ${{ENV}}"
        )  # fmt: skip


def look_at_time_zone(patient: Patient) -> Iterator[Finding]:
    """Dates in chats and reminders go by it."""
    name = patient.config.chat.timezone
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        yield error(
            f'"{name}" is no time zone that this machine knows',
            "chat.timezone",
            'write one like "Asia/Shanghai" or "Europe/Berlin"; on a bare system: apt install tzdata',
        )


def _count(things: Sized, word: str) -> str:
    return f"{len(things)} {word}" + ("" if len(things) == 1 else "s")
