"""The Stream gateway: tickets, connections, frames, acknowledgements (dingtalk.md §2). Owns the open connections.

A push goes to one of the connections that subscribed to its topic. What is not acknowledged in time is the courier's
matter. Faults: cut a socket, freeze it (nothing is read or answered any more), ask it to go, let tickets run out; and by
name "gateway.connect" (the handshake) and "stream.push" (a frame: late, or the socket cut before or after it).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import WSMsgType, web

from bot.sandbox.dingtalk import events
from bot.sandbox.dingtalk.errors import ApiError
from bot.sandbox.records import Attempt

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.config import SandboxConfig
    from bot.sandbox.dingtalk.judge import Judge
    from bot.sandbox.dingtalk.tokens import Tokens
    from bot.sandbox.faults import Faults

Json = dict[str, Any]
_MAX_FRAME = 1024 * 1024
_CODES = frozenset({200, 400, 404, 500})


@dataclass(slots=True, eq=False)
class Connection:
    """One socket. `draining` was asked to go; `frozen` is dead without knowing it."""

    id: str
    socket: web.WebSocketResponse
    request: web.Request
    topics: frozenset[tuple[str, str]]
    opened_at: float
    draining: bool = False
    frozen: bool = False
    pending: dict[str, asyncio.Future[Json]] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)

    def takes(self, kind: str, topic: str) -> bool:
        """Subscribed, and to be given new pushes."""
        wanted = (kind, topic) in self.topics or (kind == "EVENT" and ("EVENT", "*") in self.topics)
        return wanted and not self.draining


class Gateway:
    """Owner of tickets and connections. `opened` counts every connection there ever was."""

    def __init__(self, config: SandboxConfig, tokens: Tokens, judge: Judge, faults: Faults) -> None:
        self._config = config
        self._tokens = tokens
        self._judge = judge
        self._faults = faults
        self._tickets: dict[str, tuple[float, frozenset[tuple[str, str]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections: list[Connection] = []
        self.opened = 0
        self.most_at_once = 0
        self.endpoint = ""

    # -- what the HTTP side calls ------------------------------------------------------------------------------------
    def open(self, body: Json) -> Json:
        """POST /v1.0/gateway/connections/open."""
        if not self._tokens.right_pair(body.get("clientId"), body.get("clientSecret")):
            raise ApiError("invalidParameter", "clientId or clientSecret")
        if not self._config.stream_enabled:
            raise ApiError("invalidParameter", "the robot does not receive by Stream")
        wanted = body.get("subscriptions")
        topics = frozenset(
            (str(item.get("type")), str(item.get("topic")))
            for item in (wanted if isinstance(wanted, list) else [])
            if isinstance(item, dict)
        )
        if not topics:
            raise ApiError("invalidParameter", "subscriptions")
        ticket = secrets.token_urlsafe(24) + "+/="
        self._tickets[ticket] = (self._config.clock() + self._config.limits.ticket_life_s, topics)
        return {"endpoint": self.endpoint, "ticket": ticket}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """GET /connect?ticket=…: a ticket is good once, for 90 s."""
        fault = None if self._faults.is_down() else self._faults.take("gateway.connect")
        if fault is not None:
            await asyncio.sleep(fault.latency_s)
        if self._faults.is_down() or (fault is not None and fault.drop):
            _abort(request)
            return web.Response()
        if fault is not None and fault.answers:
            return web.Response(status=fault.status)
        expires, topics = self._tickets.pop(request.query.get("ticket", ""), (0.0, frozenset()))
        if expires <= self._config.clock():
            return web.Response(status=401, text="ticket")
        socket = web.WebSocketResponse(autoping=False, max_msg_size=_MAX_FRAME, timeout=0.2)
        await socket.prepare(request)
        found = Connection(secrets.token_hex(8), socket, request, topics, self._config.clock())
        if self._config.evict_older:
            for older in list(self.connections):
                self.cut(older)
        self.connections.append(found)
        self.opened += 1
        self.most_at_once = max(
            self.most_at_once, len([c for c in self.connections if not c.draining])
        )
        beat = self._spawn(self._beat(found), f"ping {found.id}")
        if self._config.chatty:
            _, text = events.frame(self._config, "SYSTEM", "REGISTERED", {"connected": True})
            await socket.send_str(text)
            _, text = events.frame(self._config, "CALLBACK", "/v9.9/nobody/knows", {"a": 1})
            await socket.send_str(text)
        try:
            await self._read(found)
        finally:
            beat.cancel()
            self._forget(found)
        return socket

    # -- pushing -----------------------------------------------------------------------------------------------------
    async def send(
        self, kind: str, topic: str, data: Json, deadline_s: float, more: Json | None = None
    ) -> Attempt:
        """One frame to one connection, and its acknowledgement. `body` of the attempt is the ack's data."""
        at, begin = self._config.clock(), time.perf_counter()

        def outcome(status: int, error: str = "", body: bytes = b"") -> Attempt:
            return Attempt(at, status, (time.perf_counter() - begin) * 1000, error, body)

        takers = [c for c in self.connections if c.takes(kind, topic)]
        if not takers:
            return outcome(0, "no connection")
        chosen = secrets.choice(takers)
        message_id, text = events.frame(self._config, kind, topic, data, more)
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        chosen.pending[message_id] = future
        try:
            await self._put(chosen, text)
            async with asyncio.timeout(deadline_s):
                ack = await future
        except TimeoutError:
            chosen.late.add(message_id)
            return outcome(0, "timeout")
        except ConnectionError:
            return outcome(0, "closed")
        finally:
            chosen.pending.pop(message_id, None)
        body = str(ack.get("data", "")).encode()
        if kind == "EVENT" and b"LATER" in body:
            return outcome(503, "later", body)
        return outcome(int(ack["code"]), "", body)

    async def _put(self, chosen: Connection, text: str) -> None:
        """Send a push's frame, or what a bad day makes of it. Raises ConnectionError when the socket is gone."""
        fault = None if self._faults.is_down() else self._faults.take("stream.push")
        if fault is not None and fault.latency_s:
            await asyncio.sleep(fault.latency_s)
        drop = "before" if self._faults.is_down() else fault.drop if fault else ""
        if drop != "before" and not chosen.frozen:
            await chosen.socket.send_str(text)
        if drop:
            await asyncio.sleep(0)  # what was written leaves before the connection dies
            self.cut(chosen)

    async def ping(self, connection: Connection) -> bool:
        """A system ping: answered with the same `opaque` in time?"""
        opaque = secrets.token_hex(8)
        message_id, text = events.frame(self._config, "SYSTEM", "ping", {"opaque": opaque})
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        connection.pending[message_id] = future
        try:
            if not connection.frozen:
                await connection.socket.send_str(text)
            async with asyncio.timeout(self._config.stream_ack_s):
                ack = await future
        except (TimeoutError, ConnectionError):
            return False
        finally:
            connection.pending.pop(message_id, None)
        return _decoded(ack.get("data")).get("opaque") == opaque

    # -- bad days ----------------------------------------------------------------------------------------------------
    async def disconnect(self, connection: Connection | None = None) -> None:
        """The system frame `disconnect`: nothing more is sent, and after 10 s the socket is closed."""
        for one in [connection] if connection else list(self.connections):
            one.draining = True
            _, text = events.frame(self._config, "SYSTEM", "disconnect", {"reason": "rebalance"})
            await one.socket.send_str(text)
            _ = self._spawn(self._close_later(one), f"close {one.id}")

    def cut(self, connection: Connection | None = None) -> None:
        """The TCP connection is gone, without a word."""
        for one in [connection] if connection else list(self.connections):
            _abort(one.request)
            self._forget(one)

    def freeze(self, connection: Connection | None = None) -> None:
        """Dead without knowing it: nothing is sent, read or answered, and nobody closes anything."""
        for one in [connection] if connection else self.connections:
            one.frozen = True

    def expire_tickets(self) -> None:
        """No ticket given so far is good any more."""
        self._tickets.clear()

    async def close(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in list(self.connections):
            self.cut(one)

    # -- inside ------------------------------------------------------------------------------------------------------
    async def _read(self, connection: Connection) -> None:
        async for message in connection.socket:
            if connection.frozen:
                continue
            if message.type is WSMsgType.PING:
                await connection.socket.pong(message.data)
            elif message.type is WSMsgType.TEXT:
                self._take(connection, message.data)
            elif message.type is WSMsgType.BINARY:
                self._judge.note("bad_ack", "a binary frame")

    def _take(self, connection: Connection, text: str) -> None:
        ack = _decoded(text)
        headers = ack.get("headers")
        message_id = str(headers.get("messageId", "")) if isinstance(headers, dict) else ""
        wrong = _wrong(ack)
        if wrong:
            self._judge.note("bad_ack", wrong)
        future = connection.pending.get(message_id)
        if future is not None and not future.done() and not wrong:
            future.set_result(ack)
        elif message_id in connection.late:
            self._judge.note("late_ack", f"frame {message_id}")
        elif any(message_id in c.pending for c in self.connections if c is not connection):
            self._judge.note("ack_on_other_socket", f"frame {message_id}")

    async def _beat(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(self._config.ping_s)
            if not connection.draining and not await self.ping(connection):
                if not connection.frozen:
                    self._judge.note("ping_not_answered", f"connection {connection.id}")
                    self.cut(connection)
                return

    async def _close_later(self, connection: Connection) -> None:
        await asyncio.sleep(self._config.disconnect_grace_s)
        self.cut(connection)

    def _forget(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        for future in connection.pending.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the socket is gone"))

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _decoded(text: Any) -> Json:
    try:
        value = msgspec.json.decode(text) if isinstance(text, str | bytes) else None
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _wrong(ack: Json) -> str:
    """What is wrong with an acknowledgement, "" when nothing is (§2.3)."""
    headers = ack.get("headers")
    if not isinstance(headers, dict) or not headers.get("messageId"):
        return "no headers.messageId"
    if headers.get("contentType") != "application/json":
        return "headers.contentType"
    if ack.get("code") not in _CODES:
        return f"code {ack.get('code')!r}"
    if not isinstance(ack.get("message"), str):
        return "message is no string"
    if not isinstance(ack.get("data"), str):
        return "data is no string"
    return ""
