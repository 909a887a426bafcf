"""A call limiter for one app: token buckets per target, and pauses that hold up one target only.

Owns the buckets; drops those that are full again. Must not know which limit belongs to which call: callers name the targets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bot.domain.pacing import TokenBucket
from bot.errors import RetryLater

_SWEEP_ABOVE = 512
_SWEEP_EVERY_S = 60.0
_MAX_PAUSE_S = 300.0


@dataclass(frozen=True, slots=True)
class Limit:
    """What a target allows: in any t seconds at most `burst` + `rate_per_s` × t calls."""

    target: str
    rate_per_s: float
    burst: float


class RateLimiter:
    """One per app; all replies of the app share it. Runs on the event loop, no locks: booking never awaits."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._buckets: dict[str, TokenBucket] = {}
        self._paused: dict[str, float] = {}
        self._swept_at = clock()

    async def acquire(self, limits: tuple[Limit, ...], *, max_wait_s: float = 10.0) -> None:
        """Wait until a call may go to all of these targets.

        Raises RetryLater, without booking, when that takes longer than `max_wait_s`.
        """
        now = self._clock()
        self._sweep(now)
        buckets = [self._bucket(limit) for limit in limits]
        wait_s = max((bucket.wait_s(now) for bucket in buckets), default=0.0)
        for limit in limits:
            wait_s = max(wait_s, self._paused.get(limit.target, now) - now)
        if wait_s > max_wait_s:
            raise RetryLater("too many calls are waiting for this target", after_s=wait_s)
        for bucket in buckets:
            bucket.book(now)
        if wait_s > 0:
            await self._sleep(wait_s)

    def pause(self, target: str, for_s: float) -> None:
        """The platform asked for a pause on one target. A longer pause already set stays."""
        until = self._clock() + min(max(for_s, 0.0), _MAX_PAUSE_S)
        self._paused[target] = max(until, self._paused.get(target, 0.0))

    @property
    def size(self) -> int:
        """How many targets are remembered."""
        return len(self._buckets) + len(self._paused)

    def _bucket(self, limit: Limit) -> TokenBucket:
        key = f"{limit.target}/{limit.burst:g}"
        if key not in self._buckets:
            self._buckets[key] = TokenBucket(limit.rate_per_s, limit.burst)
        return self._buckets[key]

    def _sweep(self, now: float) -> None:
        if self.size <= _SWEEP_ABOVE and now - self._swept_at < _SWEEP_EVERY_S:
            return
        self._swept_at = now
        self._buckets = {key: b for key, b in self._buckets.items() if not b.idle(now)}
        self._paused = {key: until for key, until in self._paused.items() if until > now}
