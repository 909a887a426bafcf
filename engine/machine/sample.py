"""What one look at the machine found. Frozen; bytes, degrees Celsius, MHz, watts; None = the machine does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card. `engine_bytes`: what Hearth's engines have on it (0 = they do not use it). `shared_bytes`: system memory
    that the driver uses as if it were the card's. `throttled`: why its clocks are lowered, other than for idling or power.
    """

    name: str
    index: int = 0
    total: int = 0
    free: int = 0
    temperature_c: int | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    busy: float | None = None  # 0 to 1
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    engine_bytes: int | None = None
    shared_bytes: int | None = None

    @property
    def used(self) -> int:
        """Taken by anybody."""
        return max(0, self.total - self.free)


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """An engine child. `peak_rss` since it started; the rest as far as drivers tell: `card` on cards, `shared` system memory that
    cards use for it (buffers between the two lie there, too), `evicted` what belongs on a card and had to leave it.
    """

    pid: int
    rss: int = 0
    peak_rss: int = 0
    swap: int = 0
    card: int | None = None
    shared: int | None = None
    evicted: int | None = None
    uses_card: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """The machine at one moment; `at` is monotonic seconds. `engines` by the model's name. `is_wsl`: Linux inside Windows, where
    a full card spills into shared memory without a word.
    """

    at: float
    ram_total: int
    ram_available: int
    swap_total: int = 0
    swap_used: int = 0
    cards: tuple[Card, ...] = ()
    engines: Mapping[str, ProcessMemory] = field(default_factory=dict)
    is_wsl: bool = False
