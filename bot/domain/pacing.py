"""How fast replies may grow: pure arithmetic over a clock that is handed in.

Owns token buckets, the memory of recent refusals, and the interval between two edits of one reply (feishu.md §4.5, §5.5).
Must not sleep, call or know a platform.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOOR_S = 0.35
CEILING_S = 60.0
# 1000 edits a minute for all replies of an app together, with a margin (feishu.md §5.5).
_EDITS_PER_S = 14.0
_HALF_LIFE_S = 20.0
_MAX_PRESSURE = 8.0
_MAX_THRIFT = 8.0
_UNSURE_S, _MAX_UNSURE_S = 4.0, 3600.0


class TokenBucket:
    """At most `burst` + `rate` × t calls in any t seconds. Not thread-safe; one owner (the limiter)."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._level = burst
        self._at_s: float | None = None

    def _refill(self, now_s: float) -> None:
        if self._at_s is not None:
            gained = max(0.0, now_s - self._at_s) * self.rate_per_s
            self._level = min(self.burst, self._level + gained)
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until a call that books now may go."""
        self._refill(now_s)
        return max(0.0, (1.0 - self._level) / self.rate_per_s)

    def book(self, now_s: float) -> None:
        """Take one call; the level may go below zero, so that later ones queue behind it."""
        self._refill(now_s)
        self._level -= 1.0

    def idle(self, now_s: float) -> bool:
        """Full again: forgetting this bucket changes nothing."""
        self._refill(now_s)
        return self._level >= self.burst


class Pressure:
    """How often the platform refused lately. 1.0 = never; doubles with each refusal, fades with a half-life of 20 s."""

    def __init__(self) -> None:
        self._level = 0.0
        self._at_s = 0.0

    def factor(self, now_s: float) -> float:
        """What to multiply intervals by."""
        return min(_MAX_PRESSURE, 1.0 + self._faded(now_s))

    def hit(self, now_s: float) -> None:
        """The platform said "too many"."""
        self._level = min(_MAX_PRESSURE, 1.0 + 2.0 * self._faded(now_s))
        self._at_s = now_s

    def _faded(self, now_s: float) -> float:
        return float(self._level * 0.5 ** (max(0.0, now_s - self._at_s) / _HALF_LIFE_S))


@dataclass(frozen=True, slots=True)
class Load:
    """What an interval depends on. `calls_left` and `month_left` are fractions of the month's calls and of its time."""

    active_replies: int = 1
    pressure: float = 1.0
    calls_left: float = 1.0
    month_left: float = 1.0


def thrift(calls_left: float, month_left: float) -> float:
    """How much slower to go so that the month's calls last: 1.0 while they are spent no faster than time passes."""
    if calls_left >= month_left:
        return 1.0
    if calls_left <= 0.0:
        return _MAX_THRIFT * 4
    return min(_MAX_THRIFT, month_left / calls_left)


def unsure_pause_s(n_tries: int) -> float:
    """Before a message is sent once more that may have been read each of so many times: few copies, however long answers to
    the call are lost."""
    return min(_MAX_UNSURE_S, _UNSURE_S * 2.0 ** min(n_tries, 20))


def interval_s(base_s: float, load: Load) -> float:
    """Seconds between the starts of two edits of one reply, within 0.35 … 60."""
    fair = max(base_s, load.active_replies / _EDITS_PER_S)
    wanted = fair * load.pressure * thrift(load.calls_left, load.month_left)
    return min(CEILING_S, max(FLOOR_S, wanted))
