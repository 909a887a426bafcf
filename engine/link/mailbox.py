"""Events of one request on their way to a reader that may be slower than the model.

Owns the rule which events may melt into one (`merge`) and `Mailbox`, one reader's queue. Must not know of processes or
sockets: the child's outbox, the parent's streams and the remote client all use the same rule. What waits is therefore
bounded by the reply itself, never by how long the reader sleeps.
"""

from __future__ import annotations

import asyncio
from collections import deque

from engine.types import Delta, EngineEvent, Failed, Finished, Progress, Queued


def merge(earlier: EngineEvent, later: EngineEvent) -> EngineEvent | None:
    """Two events of one request as one, or None if both must be seen. Deltas add up; for places and progress the newest counts."""
    match earlier, later:
        case Delta(), Delta():
            return Delta(
                request_id=later.request_id,
                token_ids=earlier.token_ids + later.token_ids,
                text=earlier.text + later.text,
                thinking=earlier.thinking + later.thinking,
            )
        case (Queued(), Queued()) | (Progress(), Progress()):
            return later
        case _:
            return None


class Mailbox:
    """The events of one request that its reader has not taken. Owner: the event loop; exactly one terminal event passes.

    `put` never blocks; whatever comes behind a terminal event is dropped.
    """

    def __init__(self) -> None:
        self._events: deque[EngineEvent] = deque()
        self._arrived = asyncio.Event()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been put."""
        return self._ended

    def put(self, event: EngineEvent) -> None:
        """Add an event, melted into the newest waiting one where possible."""
        if self._ended:
            return
        self._ended = isinstance(event, Finished | Failed)
        merged = merge(self._events[-1], event) if self._events else None
        if merged is not None:
            self._events[-1] = merged
        else:
            self._events.append(event)
        self._arrived.set()

    async def get(self) -> EngineEvent:
        """The next event; waits for it. Nothing comes behind a terminal event, so do not ask then."""
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()
