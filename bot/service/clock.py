"""Time as a parameter: the service asks a Clock, so that tests own the hours."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall clock, monotonic clock and waiting."""

    def now(self) -> datetime:
        """Aware UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        """Wait for an event. False when `timeout_s` passed first (None waits for ever)."""
        ...


class SystemClock:
    """The real thing."""

    def now(self) -> datetime:
        """Aware UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds since some start."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let others run for a while."""
        await asyncio.sleep(max(0.0, seconds))

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        """Wait for an event or a time-out."""
        if event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout_s if timeout_s is None else max(0.0, timeout_s)):
                await event.wait()
        except TimeoutError:
            return False
        return True
