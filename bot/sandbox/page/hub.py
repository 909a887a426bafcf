"""Server-Sent Events for the page. Owns the ring of the last events and the open streams."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec
from aiohttp import web

_KEEP = 1000
_QUEUE = 2000
_BEAT_S = 15.0


class Hub:
    """Numbers events, keeps the newest, hands them to every open stream. A stream that cannot keep up is ended."""

    def __init__(self) -> None:
        self._next = 1
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=_KEEP)
        self._streams: set[asyncio.Queue[bytes | None]] = set()

    def send(self, kind: str, data: dict[str, Any]) -> None:
        """Publish one event."""
        number = self._next
        self._next += 1
        frame = b"id: %d\nevent: %b\ndata: %b\n\n" % (
            number,
            kind.encode(),
            msgspec.json.encode(data),
        )
        self._ring.append((number, frame))
        for queue in list(self._streams):
            try:
                queue.put_nowait(frame)
            except asyncio.QueueFull:
                self._streams.discard(queue)
                _end(queue)

    @property
    def last_id(self) -> int:
        """The number of the newest event."""
        return self._next - 1

    def close(self) -> None:
        """End every stream."""
        for queue in self._streams:
            _end(queue)
        self._streams.clear()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """GET /sandbox/events: what came after Last-Event-ID, then everything as it happens."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUE)
        # Registered before the backlog is written, so that nothing falls between.
        backlog = self._after(
            request.headers.get("Last-Event-ID") or request.query.get("last_event_id", "")
        )
        self._streams.add(queue)
        try:
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n" + b"".join(backlog))
            await self._pump(queue, response)
        except ConnectionError:
            pass
        finally:
            self._streams.discard(queue)
        return response

    async def _pump(self, queue: asyncio.Queue[bytes | None], response: web.StreamResponse) -> None:
        while True:
            try:
                async with asyncio.timeout(_BEAT_S):
                    frame = await queue.get()
            except TimeoutError:
                frame = b": beat\n\n"
            if frame is None:
                return
            await response.write(frame)

    def _after(self, last_id: str) -> list[bytes]:
        if not last_id.isdigit():
            return []
        return [frame for number, frame in self._ring if number > int(last_id)]


def _end(queue: asyncio.Queue[bytes | None]) -> None:
    while queue.full():
        queue.get_nowait()
    queue.put_nowait(None)
