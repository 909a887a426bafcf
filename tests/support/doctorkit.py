"""Patients for the doctor's tests: a configuration in a folder, and a machine played by files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bot.config import parse_config
from bot.doctor.findings import Check, Finding, Level
from bot.doctor.patient import Patient
from bot.doctor.runner import examine

MEMINFO = "MemTotal: 33554432 kB\nMemAvailable: 25165824 kB\nSwapTotal: 8388608 kB\nSwapFree: 8388608 kB\n"


def machine(folder: Path, files: dict[str, str]) -> Path:
    """A root folder with these files: 32 GiB RAM, 24 of them free, unless they say otherwise."""
    for name, text in ({"proc/meminfo": MEMINFO} | files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def patient(folder: Path, data: dict[str, Any] | None = None, root: Path = Path("/")) -> Patient:
    """Somebody with this configuration."""
    return Patient(parse_config(data or {}, folder), root=root)


def look(check: Check, who: Patient) -> list[Finding]:
    """What one check finds, by the runner."""

    async def run() -> list[Finding]:
        return [finding async for _, found in examine(who, (check,)) for finding in found]

    return asyncio.run(run())


def said(found: Iterable[Finding], level: Level) -> list[str]:
    """Where, what and cure of those of a level, as one text each."""
    return [f"{f.where}: {f.what} -> {f.cure}" for f in found if f.level is level]
