"""What an engine gives back when memory is taken by others, in order. Pure: fed with samples, answers with at most one step.

RAM: idle conversations leave it for the disk (`KEEP_LESS` with a quarter of kv_ram), then all of them (`KEEP_LESS` with nothing; what
was on no disk is computed again), then a planned restart one step smaller. A card: the restart at once, as nothing on it can be
given back while the model is open. Each step gets `hold_s` to help before the next one; restarts are `AGAIN_S` apart, since each
is felt by somebody. When there is enough again, with what was given back on top, for `calm_s`, RAM is used as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from engine.link.obituary import Shortage
from engine.machine.margins import Margins, used_cards
from engine.machine.sample import Sample

AGAIN_S: Final = 600.0
_EASY: Final = 1.5


class What(StrEnum):
    """What is to be done."""

    KEEP_LESS = "keep_less"
    KEEP_AGAIN = "keep_again"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Step:
    """`ram_bytes` for idle conversations, `shortage` for a restart, `sentence` for people."""

    what: What
    ram_bytes: int = 0
    shortage: Shortage | None = None
    sentence: str = ""


class Pressure:
    """Owner: a supervisor. Times are those of the samples."""

    def __init__(self, name: str, margins: Margins, kv_ram_bytes: int) -> None:
        """`name`: whose cards count, in the samples' words."""
        self._name = name
        self._margins = margins
        self._kv_ram = kv_ram_bytes
        # What idle conversations may have at each stage; the restart comes behind the last one.
        self._stages = [kv_ram_bytes, kv_ram_bytes // 4, 0] if kv_ram_bytes else [0]
        self._stage = 0
        self._short_since: float | None = None
        self._card_short_since: float | None = None
        self._enough_since: float | None = None
        self._restarted_at: float | None = None
        self._seen_at = 0.0

    @property
    def ram_bytes(self) -> int:
        """What idle conversations may have in RAM now; a new child is told so."""
        return self._stages[self._stage]

    @property
    def has_given_back(self) -> bool:
        """Whether idle conversations have less than configured."""
        return self._stage > 0

    @property
    def is_calm(self) -> bool:
        """Whether memory is free as it should be: only then a larger size may be tried."""
        return self._short_since is None and self._card_short_since is None and not self._stage

    def look(self, sample: Sample | None) -> Step | None:
        """What to do by the newest sample; the same one twice says nothing new."""
        if sample is None or sample.at <= self._seen_at or not self._margins.gives_back:
            return None
        self._seen_at = sample.at
        return self._of_card(sample) or self._of_ram(sample)

    def _of_card(self, sample: Sample) -> Step | None:
        engine = sample.engines.get(self._name)
        cards = used_cards(sample) if engine is not None and engine.uses_card else ()
        short = [card for card in cards if card.free < self._margins.vram_of(card)]
        if not short:
            self._card_short_since = None
            return None
        if self._card_short_since is None:
            self._card_short_since = sample.at
        if sample.at - self._card_short_since < self._margins.hold_s:
            return None
        free = min(card.free for card in short)
        sentence = f"only {free / 2**20:.0f} MiB are free on {short[0].name}"
        return self._restart(sample.at, Shortage(on_device=True), sentence)

    def _of_ram(self, sample: Sample) -> Step | None:
        margin = self._margins.ram_of(sample)
        if sample.ram_available >= margin:
            self._short_since = None
            return self._back(sample, margin)
        self._enough_since = None
        if self._short_since is None:
            self._short_since = sample.at
        if sample.at - self._short_since < self._margins.hold_s:
            return None
        sentence = f"only {sample.ram_available / 2**20:.0f} MiB of memory are available"
        if self._stage + 1 < len(self._stages):
            self._stage += 1
            self._short_since = sample.at  # this step may help first
            return Step(What.KEEP_LESS, self.ram_bytes, sentence=sentence)
        return self._restart(sample.at, Shortage(), sentence)

    def _back(self, sample: Sample, margin: int) -> Step | None:
        if not self._stage or sample.ram_available < _EASY * margin + self._kv_ram:
            self._enough_since = None
            return None
        if self._enough_since is None:
            self._enough_since = sample.at
        if sample.at - self._enough_since < self._margins.calm_s:
            return None
        self._stage, self._enough_since = 0, None
        return Step(What.KEEP_AGAIN, self._kv_ram)

    def _restart(self, now: float, shortage: Shortage, sentence: str) -> Step | None:
        if self._restarted_at is not None and now - self._restarted_at < AGAIN_S:
            return None
        self._restarted_at = now
        return Step(What.RESTART, shortage=shortage, sentence=sentence)
