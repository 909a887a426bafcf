"""The time of a played platform: wall clock, or one that a test moves. Shared by every sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from email.utils import formatdate

from aiohttp import web

Clock = Callable[[], float]


class ManualClock:
    """A clock that tests move. Owned by the test; starts at a fixed, plausible epoch second."""

    def __init__(self, now: float = 1_764_000_000.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        self._now += seconds


def dated(clock: Clock) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """A signal for `web.Application.on_response_prepare`: every answer's Date is the platform's own time."""

    async def date(_: web.Request, response: web.StreamResponse) -> None:
        response.headers["Date"] = formatdate(clock(), usegmt=True)

    return date
