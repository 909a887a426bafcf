"""RPC workers that are left out for a while: those that went away, and those that were not there. Pure; times are monotonic seconds.

A worker that is lost is left out of the next child even where it answers again: whatever made it crash may do so again. It is
tried again after `first_s`, each loss in a row doubles the wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from engine.config import EngineConfig

_LONGEST_FACTOR: Final = 32


@dataclass(slots=True)
class _Lost:
    """A worker that is left out until `again_at`. `since` and `reason` are for people. `is_tried`: the next child takes it."""

    reason: str
    since: str
    again_at: float
    is_tried: bool = False


class LostWorkers:
    """Owner: a supervisor."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._lost: dict[str, _Lost] = {}
        # How often a worker was lost, kept while it is used again.
        self._n_losses: dict[str, int] = {}

    @property
    def sentence(self) -> str:
        """Which are left out, since when and why; "" = none."""
        return "; ".join(
            f"without the RPC worker at {name} since {one.since}: {one.reason}"
            for name, one in self._lost.items()
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are left out."""
        return tuple(self._lost)

    def without(self, config: EngineConfig) -> EngineConfig:
        """The settings without them."""
        out = {name for name, one in self._lost.items() if not one.is_tried}
        left = tuple(name for name in config.rpc if name not in out)
        return config if left == config.rpc else msgspec.structs.replace(config, rpc=left)

    def went_away(self, names: Iterable[str], now: float, when: str) -> None:
        """A child died of it."""
        for name in names:
            n = self._n_losses[name] = self._n_losses.get(name, 0) + 1
            self._lost[name] = _Lost("it went away", when, now + self._wait_s(n))

    def were_absent(self, absent: Mapping[str, str], now: float, when: str) -> None:
        """A child is ready without them; with those that it tried and had."""
        for name in [name for name, one in self._lost.items() if one.is_tried]:
            if name not in absent:
                del self._lost[name]
        for name, reason in absent.items():
            before = self._lost.get(name)
            since = before.since if before else when
            self._lost[name] = _Lost(reason, since, now + self._first_s)

    def due(self, now: float) -> tuple[str, ...]:
        """Those that may be asked again."""
        return tuple(name for name, one in self._lost.items() if now >= one.again_at)

    def still_away(self, names: Iterable[str], now: float) -> None:
        """They were asked and cannot be used yet."""
        for name in names:
            if name in self._lost:
                self._lost[name].again_at = now + self._first_s

    def try_again(self, names: Iterable[str]) -> None:
        """The next child takes them, if it can."""
        for name in names:
            if name in self._lost:
                self._lost[name].is_tried = True

    def settled(self) -> None:
        """The workers in use have held long enough: the next loss is a new one."""
        for name in [name for name in self._n_losses if name not in self._lost]:
            del self._n_losses[name]

    def _wait_s(self, n_losses: int) -> float:
        return float(self._first_s * min(2 ** (n_losses - 1), _LONGEST_FACTOR))
