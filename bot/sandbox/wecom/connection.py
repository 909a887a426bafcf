"""One WebSocket of an AI bot, and the shape of a frame. `Connection` owns its socket's state; the gateway owns the connections."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import asyncio

    from aiohttp import web

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """{cmd, headers: {req_id}, body}."""

    cmd: str
    req_id: str
    body: Json


@dataclass(slots=True, eq=False)
class Connection:
    """`under_way` holds the req_ids whose frames are not acked yet. A kicked one may live on without being subscribed;
    a muted one takes frames and gives none."""

    ws: web.WebSocketResponse
    transport: asyncio.Transport | None
    opened_at: float
    heard_at: float
    subscribed: bool = False
    kicked: bool = False
    muted: bool = False
    under_way: list[str] = field(default_factory=list)

    async def send(self, frame: Json) -> bool:
        """Write one frame; False when the socket is gone. On a muted one the frame is lost without a sign."""
        if self.muted:
            return True
        try:
            await self.ws.send_str(msgspec.json.encode(frame).decode())
        except (ConnectionError, RuntimeError):
            return False
        return True

    async def close(self) -> None:
        """A clean end."""
        with contextlib.suppress(ConnectionError, RuntimeError):
            await self.ws.close()

    def abort(self) -> None:
        """The socket is cut: no closing handshake, nothing that is buffered."""
        if self.transport is not None:
            self.transport.abort()


def parse(text: str) -> Frame | None:
    """A frame, None when it is none."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("headers"), dict):
        return None
    cmd, req_id, body = value.get("cmd"), value["headers"].get("req_id"), value.get("body", {})
    if not isinstance(cmd, str) or not isinstance(req_id, str) or not req_id:
        return None
    return Frame(cmd, req_id, body if isinstance(body, dict) else {})
