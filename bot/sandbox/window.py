"""The sliding window behind every rate limit of the played platforms."""

from __future__ import annotations

from collections import deque


class Window:
    """At most `limit` events in any `period_s`. One owner: the table that holds it."""

    __slots__ = ("_limit", "_period_s", "_times")

    def __init__(self, limit: int, period_s: float) -> None:
        self._limit = limit
        self._period_s = period_s
        self._times: deque[float] = deque()

    def wait_s(self, now: float) -> float:
        """0 when one more is allowed now, else the seconds until it is."""
        edge = now - self._period_s
        while self._times and self._times[0] <= edge:
            self._times.popleft()
        if len(self._times) < self._limit:
            return 0.0
        return self._times[0] + self._period_s - now

    def add(self, now: float) -> None:
        """Count one."""
        self._times.append(now)
