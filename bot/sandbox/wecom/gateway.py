"""The AI bot's long connection: subscribe, ping, one live connection per bot, deliveries (wecom.md §3.1, §3.2).

Owns the connections and the messages that wait for one.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import WSMsgType, web

from bot.sandbox.records import Attempt, Push
from bot.sandbox.wecom import errors
from bot.sandbox.wecom.answering import Answering
from bot.sandbox.wecom.connection import Connection, parse
from bot.sandbox.wecom.errors import ApiError

if TYPE_CHECKING:
    from bot.sandbox.faults import Faults
    from bot.sandbox.records import Records
    from bot.sandbox.wecom.commands import Commands
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.connection import Frame
    from bot.sandbox.wecom.exchanges import Exchanges
    from bot.sandbox.wecom.judge import Judge
    from bot.sandbox.wecom.limits import Rates
    from bot.sandbox.wecom.uploads import Uploads

Json = dict[str, Any]
MAX_FRAME_BYTES = 2 * 1024 * 1024
_FIRST_FRAME_S = 10.0
_KICK_WAR_S = 60.0
_KICKS = 2


class Desk:
    """What the gateway asks others for: the commands, the uploads, the exchanges, the rates."""

    __slots__ = ("commands", "exchanges", "rates", "uploads")

    def __init__(
        self, commands: Commands, uploads: Uploads, exchanges: Exchanges, rates: Rates
    ) -> None:
        self.commands = commands
        self.uploads = uploads
        self.exchanges = exchanges
        self.rates = rates


class Gateway:
    """openws on loopback."""

    def __init__(
        self, config: WeComConfig, desk: Desk, judge: Judge, records: Records, faults: Faults
    ) -> None:
        self._config = config
        self._desk = desk
        self._judge = judge
        self._records = records
        self._faults = faults
        self._answering = Answering(config, records, faults, judge, self._handle, self._on_acked)
        self._all: set[Connection] = set()
        self._waiting: deque[Push] = deque()
        self._kicks: deque[float] = deque(maxlen=_KICKS)
        self.live: Connection | None = None
        self.subscriptions = 0
        self.on_change: Callable[[], None] = _nobody
        self.copies = 1

    async def close(self) -> None:
        """End every connection."""
        for connection in list(self._all):
            connection.abort()
        await self._answering.close()

    # -- what WeCom sends --------------------------------------------------------------------------------------------
    async def push(self, body: Json) -> Push:
        """A message or an event of an exchange that is known by the body's msgid."""
        kind = body["event"]["eventtype"] if "event" in body else body["msgtype"]
        push = Push(
            str(body["msgid"]),
            str(kind),
            body,
            msgspec.json.encode(body),
            encrypted=False,
            way="stream",
        )
        self._records.add_push(push)
        for _ in range(self.copies):
            await self.deliver(push)
        return push

    async def deliver(self, push: Push) -> None:
        """Send it on the live connection, under a new req_id; without one it waits or is lost, as configured."""
        is_event = "event" in push.payload
        fault = self._faults.take("callback.event" if is_event else "callback.message")
        if fault is not None and fault.latency_s > 0:
            await asyncio.sleep(fault.latency_s)
        if self._faults.is_down() or (fault is not None and fault.drop == "before"):
            self.cut()
        connection = self.live
        sent = False
        if connection is not None:
            exchange = self._desk.exchanges.by_msgid[push.event_id]
            req_id = self._desk.exchanges.new_req_id(exchange)
            cmd = "aibot_event_callback" if is_event else "aibot_msg_callback"
            sent = await connection.send(
                {"cmd": cmd, "headers": {"req_id": req_id}, "body": push.payload}
            )
        # What went into a half-dead socket comes again on the next one.
        lost = not sent or (connection is not None and connection.muted)
        if lost and self._config.offline == "queue":
            self._waiting.append(push)
        self._records.add_attempt(
            push,
            Attempt(self._config.clock(), 200 if sent else 0, 0.0, "" if sent else "no connection"),
        )
        if sent and fault is not None and fault.drop == "after":
            self.cut()

    # -- what happens to connections ---------------------------------------------------------------------------------
    def cut(self) -> None:
        """The live socket dies without a word."""
        if self.live is not None:
            self.live.abort()
            self.live = None

    def mute(self) -> None:
        """The live socket stays open, but nothing comes out of it any more."""
        if self.live is not None:
            self.live.muted = True

    async def hang_up(self) -> None:
        """The live socket is closed with a handshake."""
        connection, self.live = self.live, None
        if connection is not None:
            await connection.close()

    async def kick(self) -> None:
        """The live connection is told that another one took its place, although none did."""
        connection, self.live = self.live, None
        if connection is not None:
            await self._say_goodbye(connection)

    async def _say_goodbye(self, connection: Connection) -> None:
        connection.kicked, connection.subscribed = True, False
        body = {
            "msgid": f"disconnect-{self.subscriptions}",
            "create_time": int(self._config.clock()),
            "aibotid": self._config.bot_id,
            "msgtype": "event",
            "event": {"eventtype": "disconnected_event"},
        }
        await connection.send(
            {"cmd": "aibot_event_callback", "headers": {"req_id": body["msgid"]}, "body": body}
        )
        if self._config.kicked == "close":
            await connection.close()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """GET /openws."""
        if self._faults.is_down():
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        ws = web.WebSocketResponse(max_msg_size=MAX_FRAME_BYTES)
        await ws.prepare(request)
        now = self._config.clock()
        connection = Connection(ws, request.transport, now, now)
        self._all.add(connection)
        try:
            await self._read(connection)
        finally:
            self._all.discard(connection)
            if self.live is connection:
                self.live = None
            self.on_change()
        return ws

    async def _read(self, connection: Connection) -> None:
        limit_s = _FIRST_FRAME_S
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    message = await connection.ws.receive()
            except TimeoutError:
                self._judge.note("silent_connection", f"nothing for {limit_s:.0f} s")
                await connection.close()
                return
            if message.type in {WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR}:  # fmt: skip
                return
            frame = parse(message.data) if message.type is WSMsgType.TEXT else None
            if frame is None:
                self._judge.note("frame_malformed", f"{message.type.name}: {message.data[:60]!r}")
                await connection.close()
                return
            limit_s = self._config.silence_s
            self._look_at_pace(connection, frame)
            self._answering.take(connection, frame)

    def _look_at_pace(self, connection: Connection, frame: Frame) -> None:
        now = self._config.clock()
        if frame.cmd in {"ping", "aibot_subscribe"}:
            gap = now - connection.heard_at
            if connection.subscribed and gap > self._config.ping_gap_s:
                self._judge.note("ping_gap", f"no ping for {gap:.0f} s")
            connection.heard_at = now

    # -- frames ------------------------------------------------------------------------------------------------------
    def _handle(self, connection: Connection, frame: Frame) -> Json | None:
        if frame.cmd == "ping":
            return {"cmd": "pong"} if self._config.pong == "cmd" else {}
        if frame.cmd == "aibot_subscribe":
            self._check_credentials(frame.body)
            connection.subscribed, connection.kicked = True, False
            connection.heard_at = self._config.clock()
            return {}
        if not connection.subscribed:
            if not connection.kicked:
                self._judge.note("not_subscribed", frame.cmd)
            raise ApiError(errors.NOT_SUBSCRIBED)
        extra = self._desk.uploads.run(frame.cmd, frame.body)
        return extra if extra is not None else self._desk.commands.run(frame)

    def _check_credentials(self, body: Json) -> None:
        try:
            self._desk.rates.check_subscribe()
        except ApiError:
            self._judge.note("subscribe_storm", "more than 10 subscriptions a minute")
            raise
        known = hmac.compare_digest(
            f"{body.get('bot_id')}\n{body.get('secret')}".encode(),
            f"{self._config.bot_id}\n{self._config.bot_secret}".encode(),
        )
        if not known or self._config.mode != "websocket":
            raise ApiError(errors.BAD_BOT)

    async def _on_acked(self, connection: Connection, frame: Frame) -> None:
        """A subscription takes effect: the older connection goes, and what waited is sent."""
        if frame.cmd != "aibot_subscribe" or self.live is connection:
            return
        older, self.live = self.live, connection
        self.subscriptions += 1
        self.on_change()
        waiting, self._waiting = self._waiting, deque()
        for push in waiting:
            await self.deliver(push)
        if older is not None:
            now = self._config.clock()
            if len(self._kicks) == _KICKS and now - self._kicks[0] < _KICK_WAR_S:
                self._judge.note("kick_war", "connections of one bot kick each other")
            self._kicks.append(now)
            await self._say_goodbye(older)


def _nobody() -> None:
    """Nobody listens."""
