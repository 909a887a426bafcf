"""How many turns of one model may be with the engine at once, first come first served, with places for those who wait."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Slots:
    """Owned by the service, one per model. The limit is above the engine's own parallelism, so that ordinary queue
    places come from the engine; `engine_waiting` is what it last reported, to count on from there."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiters: OrderedDict[asyncio.Future[None], Callable[[int], None]] = OrderedDict()
        self.engine_waiting = 0

    @property
    def n_waiting(self) -> int:
        """Turns that wait for a slot."""
        return len(self._waiters)

    @asynccontextmanager
    async def take(self, on_place: Callable[[int], None]) -> AsyncIterator[None]:
        """Hold a slot. `on_place` is told the place in line, again whenever it changes."""
        await self._acquire(on_place)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, on_place: Callable[[int], None]) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn_came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[turn_came] = on_place
        on_place(self.engine_waiting + len(self._waiters))
        try:
            await turn_came
        except asyncio.CancelledError:
            if self._waiters.pop(turn_came, None) is None:
                self._release()  # it was ours already
            else:
                self._tell_places()
            raise

    def _release(self) -> None:
        while self._waiters:
            turn_came, _ = self._waiters.popitem(last=False)
            if not turn_came.done():
                turn_came.set_result(None)
                self._tell_places()
                return
        self._free += 1

    def _tell_places(self) -> None:
        for index, on_place in enumerate(self._waiters.values(), start=1):
            on_place(self.engine_waiting + index)
