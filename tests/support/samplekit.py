"""Samples of a machine, made by hand: 16 GiB of RAM, one card of 12 GiB that the engine uses."""

from __future__ import annotations

from typing import Any

from engine.machine.sample import Card, ProcessMemory, Sample

GIB, MIB = 2**30, 2**20


def card(**changes: Any) -> Card:
    fields = {"name": "RTX 3060", "total": 12 * GIB, "free": 2 * GIB, "engine_bytes": 9 * GIB}
    return Card(**fields | changes)


def sample(at: float, **changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "at": at,
        "ram_total": 16 * GIB,
        "ram_available": 8 * GIB,
        "swap_total": 4 * GIB,
        "cards": (card(),),
        "engines": {"main": ProcessMemory(42, uses_card=True)},
    }
    return Sample(**fields | changes)
