"""When to warn: pure judgement over a row of samples, with hysteresis so that a figure near its limit does not flicker.

An alarm is raised when its condition held for `RAISE_S`, and ends when a quarter more than the limit was free (or the cause was
gone) for `CLEAR_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from engine.machine.margins import Margins, used_cards
from engine.machine.sample import Card, Sample

RAISE_S: Final = 10.0
CLEAR_S: Final = 60.0
_GROWTH_S: Final = 60.0
_EASIER: Final = 1.25


class AlarmKind(StrEnum):
    """What is wrong; `/metrics` and the catalogue know these words."""

    RAM_LOW = "ram_low"
    VRAM_LOW = "vram_low"
    ENGINE_SWAPPED = "engine_swapped"
    SWAP_GROWS = "swap_grows"
    SHARED_MEMORY = "shared_memory"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class Alarm:
    """One warning. `about`: the card or the model, "" = the machine; `values` for its sentence."""

    kind: AlarmKind
    about: str = ""
    values: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def sentence(self) -> str:
        """For the log."""
        return _SENTENCES[self.kind].format(about=self.about, **self.values)


_SENTENCES: Final = {
    AlarmKind.RAM_LOW: "only {free} of memory are available (margin {limit}): close other programs, or the kernel ends one",
    AlarmKind.VRAM_LOW: "only {free} are free on {about} (margin {limit}): other programs use the card, or the plan is too tight",
    AlarmKind.ENGINE_SWAPPED: "{used} of the engine {about} are in swap: answers become slow; it needs more RAM than there is",
    AlarmKind.SWAP_GROWS: "swap in use grew by {grown} within a minute: memory is short",
    AlarmKind.SHARED_MEMORY: "{about} uses system memory in place of its own ({used}): 4 to 10 times slower; put fewer layers on it",
    AlarmKind.THROTTLED: "{about} lowers its clocks: {reasons} ({temperature})",
}


@dataclass(slots=True)
class _Track:
    """One possible alarm: since when it is bad, and since when it is good again."""

    alarm: Alarm
    bad_since: float | None = None
    good_since: float | None = None
    is_raised: bool = False


class Alarms:
    """Owner: the watch. Fed with one sample after the other."""

    def __init__(self, margins: Margins) -> None:
        self._margins = margins
        self._tracks: dict[Alarm, _Track] = {}
        self._swap: deque[tuple[float, int]] = deque()

    @property
    def raised(self) -> tuple[Alarm, ...]:
        """Those that hold now."""
        return tuple(track.alarm for track in self._tracks.values() if track.is_raised)

    def look(self, sample: Sample) -> tuple[list[Alarm], list[Alarm]]:
        """Take a sample; returns those that are raised by it and those that end with it."""
        bad = {alarm: alarm for alarm in self._conditions(sample, 1.0)}
        nearly = set(self._conditions(sample, _EASIER))
        raised, ended = [], []
        for alarm in bad:
            self._tracks.setdefault(alarm, _Track(alarm))
        for key, track in list(self._tracks.items()):
            if key in bad:
                track.alarm, track.good_since = bad[key], None
                track.bad_since = sample.at if track.bad_since is None else track.bad_since
                if not track.is_raised and sample.at - track.bad_since >= RAISE_S:
                    track.is_raised = True
                    raised.append(track.alarm)
                continue
            track.bad_since = None
            if key in nearly:
                track.good_since = None
                continue
            track.good_since = sample.at if track.good_since is None else track.good_since
            if not track.is_raised:
                del self._tracks[key]
            elif sample.at - track.good_since >= CLEAR_S:
                del self._tracks[key]
                ended.append(track.alarm)
        return raised, ended

    def _conditions(self, sample: Sample, factor: float) -> Iterator[Alarm]:
        """What is wrong when limits are multiplied (where less is free) or divided (where more is used) by `factor`."""
        limit = self._margins.ram_of(sample)
        if sample.ram_available < factor * limit:
            values = {"free": _size(sample.ram_available), "limit": _size(limit)}
            yield Alarm(AlarmKind.RAM_LOW, "", values)
        allowed = self._margins.swap / factor
        for name, engine in sample.engines.items():
            if engine.swap > allowed:
                yield Alarm(AlarmKind.ENGINE_SWAPPED, name, {"used": _size(engine.swap)})
        grown = self._growth(sample)
        if grown > allowed:
            yield Alarm(AlarmKind.SWAP_GROWS, "", {"grown": _size(grown)})
        for card in used_cards(sample):
            yield from self._of_card(card, sample, factor)

    def _of_card(self, card: Card, sample: Sample, factor: float) -> Iterator[Alarm]:
        about, limit = f"{card.name} {card.index}", self._margins.vram_of(card)
        is_low = card.free < factor * limit
        if is_low:
            yield Alarm(
                AlarmKind.VRAM_LOW, about, {"free": _size(card.free), "limit": _size(limit)}
            )
        told = [one.evicted for one in sample.engines.values() if one.evicted is not None]
        evicted = sum(told) if told and card.shared_bytes is not None else None
        if evicted is not None and evicted > self._margins.swap / factor:
            yield Alarm(AlarmKind.SHARED_MEMORY, about, {"used": _size(evicted)})
        elif sample.is_wsl and is_low:
            # Windows tells Linux no figure; a card without room is where its driver begins to spill.
            yield Alarm(AlarmKind.SHARED_MEMORY, about, {"used": "how much, Windows does not tell"})
        if card.throttled:
            degrees = "" if card.temperature_c is None else f"{card.temperature_c} °C"
            values = {"reasons": ", ".join(card.throttled), "temperature": degrees or "no figure"}
            yield Alarm(AlarmKind.THROTTLED, about, values)

    def _growth(self, sample: Sample) -> int:
        """Bytes that swap in use has grown by within the last minute."""
        if not self._swap or self._swap[-1][0] != sample.at:
            self._swap.append((sample.at, sample.swap_used))
        while sample.at - self._swap[0][0] > _GROWTH_S:
            self._swap.popleft()
        return sample.swap_used - min(used for _, used in self._swap)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"
