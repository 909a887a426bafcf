"""Feishu's end of the long connection (feishu.md §6): the endpoint that hands out addresses, and the sockets behind them.

An event goes to one connection, chosen at random; it counts as delivered when the frame comes back with code 200 within the
deadline. Owns the open sockets and what waits for its answer. Faults: `silent` sockets answer nothing, `refuse` the
endpoint, `cut` ends the sockets.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import secrets
import time
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web

from bot.sandbox.feishu import frames
from bot.sandbox.records import Attempt

if TYPE_CHECKING:
    from bot.sandbox.feishu.config import SandboxConfig

ENDPOINT = "/callback/ws/endpoint"
SOCKET = "/ws/v2"
MAX_CONNECTIONS = 50
_FRAGMENT_BYTES = 16_384


class Gateway:
    """Owned by the sandbox; one event loop."""

    def __init__(self, config: SandboxConfig, *, ping_interval_s: int = 120) -> None:
        self._config = config
        self.ping_interval_s = ping_interval_s
        self.sockets: list[web.WebSocketResponse] = []
        # Set while there is a socket.
        self.connected = asyncio.Event()
        self._tickets: set[str] = set()
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.n_opened = 0
        self.n_pings = 0
        self.silent = False
        self.refuse: tuple[int, str] | None = None

    def register(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post(ENDPOINT, self._endpoint)
        app.router.add_get(SOCKET, self._socket)

    async def cut(self) -> None:
        """End every socket as a network does: without a goodbye."""
        for socket in list(self.sockets):
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()

    async def close(self) -> None:
        """End every socket politely."""
        for socket in list(self.sockets):
            await socket.close()

    async def deliver(self, body: bytes, deadline_s: float) -> Attempt:
        """Send an event to one connection and wait for its answer."""
        at, begin = self._config.clock(), time.perf_counter()

        def attempt(status: int, error: str = "", answer: bytes = b"") -> Attempt:
            return Attempt(at, status, (time.perf_counter() - begin) * 1000, error, answer)

        if not self.sockets:
            return attempt(0, "connect")
        socket = random.choice(self.sockets)  # noqa: S311 - which connection gets an event is no secret
        message_id = secrets.token_hex(12)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[message_id] = future
        try:
            for frame in _fragments(message_id, body):
                await socket.send_bytes(frame.encode())
            async with asyncio.timeout(deadline_s):
                answer = await future
        except TimeoutError:
            return attempt(0, "timeout")
        except ConnectionError:
            return attempt(0, "closed")
        finally:
            self._waiting.pop(message_id, None)
        data = base64.b64decode(answer.get("data") or b"") or b"{}"
        return attempt(int(answer.get("code", 0)), "", data)

    async def _endpoint(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.refuse is not None:
            code, message = self.refuse
            return web.json_response({"code": code, "msg": message})
        if (body.get("AppID"), body.get("AppSecret")) != (
            self._config.app_id,
            self._config.app_secret,
        ):
            return web.json_response({"code": 514, "msg": "auth failed"})
        if len(self.sockets) >= MAX_CONNECTIONS:
            return web.json_response({"code": 1000040350, "msg": "connections exceed limit"})
        ticket = secrets.token_urlsafe(16)
        self._tickets.add(ticket)
        url = f"ws://{request.host}{SOCKET}?device_id={ticket}&service_id=7"
        client = {
            "ReconnectCount": -1,
            "ReconnectInterval": 120,
            "ReconnectNonce": 30,
            "PingInterval": self.ping_interval_s,
        }
        return web.json_response(
            {"code": 0, "msg": "success", "data": {"URL": url, "ClientConfig": client}}
        )

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        ticket = request.query.get("device_id", "")
        if ticket not in self._tickets:
            headers = {"handshake-status": "403", "handshake-msg": "unknown ticket"}
            return web.Response(status=403, headers=headers)
        self._tickets.discard(ticket)
        socket = web.WebSocketResponse(max_msg_size=2**20)
        await socket.prepare(request)
        self.sockets.append(socket)
        self.connected.set()
        self.n_opened += 1
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY and not self.silent:
                    await self._take(socket, frames.decode(message.data))
        finally:
            self.sockets.remove(socket)
            if not self.sockets:
                self.connected.clear()
        return socket

    async def _take(self, socket: web.WebSocketResponse, frame: frames.Frame) -> None:
        if frame.method == frames.CONTROL:
            self.n_pings += 1
            pong = frames.Frame(frames.CONTROL, {"type": "pong"}, service=frame.service)
            await socket.send_bytes(pong.encode())
            return
        future = self._waiting.get(frame.headers.get("message_id", ""))
        if future is not None and not future.done():
            future.set_result(json.loads(frame.payload or b"{}"))


def _fragments(message_id: str, body: bytes) -> list[frames.Frame]:
    pieces = [body[at : at + _FRAGMENT_BYTES] for at in range(0, len(body), _FRAGMENT_BYTES)]
    return [
        frames.Frame(
            frames.DATA,
            {
                "type": "event",
                "message_id": message_id,
                "trace_id": secrets.token_hex(8),
                "sum": str(len(pieces)),
                "seq": str(number),
            },
            piece,
            service=7,
        )
        for number, piece in enumerate(pieces)
    ]
