"""How much memory must stay free, and whether a sample has less. Pure; used for warnings and for giving memory back alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from engine.machine.sample import Card, Sample

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Margins:
    """Limits; bytes and seconds. `ram` and `vram` 0 = by size: a twentieth of the memory, at most 1 GiB and 512 MiB.

    `swap`: what an engine may have in swap, and what all swap may grow by within a minute. Below a margin for `hold_s` an engine gives
    memory back, step by step, if `gives_back`; once there is enough for `calm_s` it takes it again.
    """

    ram: int = 0
    vram: int = 0
    swap: int = 64 * _MIB
    hold_s: float = 30.0
    calm_s: float = 300.0
    gives_back: bool = True

    def ram_of(self, sample: Sample) -> int:
        """What must stay available."""
        return self.ram or min(sample.ram_total // 20, 1024 * _MIB)

    def vram_of(self, card: Card) -> int:
        """What must stay free on a card."""
        return self.vram or min(card.total // 20, 512 * _MIB)


def used_cards(sample: Sample) -> tuple[Card, ...]:
    """The cards that engines use, as far as that is known."""
    return tuple(card for card in sample.cards if card.total and card.engine_bytes != 0)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an engine may know of the machine: the newest sample, taken by somebody else (None = nobody looks), and its limits."""

    latest: Callable[[], Sample | None] = lambda: None
    margins: Margins = field(default_factory=Margins)
