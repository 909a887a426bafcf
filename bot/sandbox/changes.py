"""Waiting for something to be true in a played platform, for tests and the demo: asked again after every change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bot.sandbox.records import Records

_POLL_S = 0.25


class Changes:
    """Told of every call, push and attempt by itself, of everything else through `note`. One event loop."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._changed = asyncio.Event()
        records.on_push.append(self.note)
        records.on_call.append(self.note)
        records.on_attempt.append(self.note)

    def note(self, *_: object) -> None:
        """Something has changed; what does not matter."""
        self._changed.set()

    async def wait_for(self, predicate: Callable[[], Any], timeout: float) -> Any:
        """The first true value of `predicate()`, asked after every change. Raises TimeoutError that tells the last calls."""
        try:
            async with asyncio.timeout(timeout):
                while not (value := predicate()):
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(_POLL_S):
                            await self._changed.wait()
                    except TimeoutError:
                        continue
                return value
        except TimeoutError:
            last = ", ".join(
                f"{call.api}={call.code or call.status}" for call in self._records.calls[-8:]
            )
            raise TimeoutError(f"nothing after {timeout} s; last calls: {last or 'none'}") from None
