"""An AI bot's long connection (wecom.md §3.1): one socket, subscribed, watched, and opened again whenever it ends.

Owns the socket, the tasks around it, and the map from frames to their acknowledgements (which name no command). One frame
per `req_id` is in flight. Events are handed on in order; those that wait together are stored together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
import structlog

from bot.errors import Ambiguous, HearthError, PlatformError, RetryLater
from bot.platforms.base import MayConnect, always, permission
from bot.platforms.http import proxy_for
from bot.platforms.wecom.errors import BadCredentials, NotSubscribed, SlowDown, judge
from bot.platforms.wecom.fields import text_of

log = structlog.get_logger()

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_MAX_FRAME_BYTES = 16 * 2**20
_MAX_WAITING_EVENTS = 1000
_EVENT_COMMANDS = {"aibot_msg_callback", "aibot_event_callback"}

# Takes what came in; returns after it is stored, raises HearthError when it was not.
FrameSink = Callable[[list["Frame"]], Awaitable[None]]
# What comes for one frame: its acknowledgement, before it perhaps that of the frame before; None when the socket ends.
_Acks = asyncio.Queue[dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Frame:
    """An event as it came: its body, and the req_id that every frame of the answer carries."""

    req_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. All but the first two are for tests to shorten."""

    ping_every_s: float = 30.0
    ack_within_s: float = 5.0
    connect_within_s: float = 10.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0
    kicked_pause_s: float = 60.0
    refused_pause_s: float = 600.0
    stable_after_s: float = 60.0
    # How long a second acknowledgement is waited for where an earlier frame may still get its own.
    second_ack_s: float = 0.3


class Kicked(RetryLater):
    """Another client subscribed with this bot's id: two of them would throw each other out for ever."""


class _Pauses:
    """How long to wait before the next connection: not long after a cut, long when another client holds the bot."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._pause_s = timing.first_pause_s
        self._kicked_s = timing.kicked_pause_s

    def after(self, failure: Exception | None, lived_s: float) -> float:
        """Seconds to wait after a connection that lived so long."""
        timing = self._timing
        if lived_s >= timing.stable_after_s:
            self._pause_s = timing.first_pause_s
        if isinstance(failure, BadCredentials):  # subscribing is rate-protected: no loop
            return timing.refused_pause_s
        if isinstance(failure, Kicked):
            if lived_s > timing.refused_pause_s:
                self._kicked_s = timing.kicked_pause_s
            wait_s, self._kicked_s = self._kicked_s, min(2 * self._kicked_s, timing.refused_pause_s)
            return wait_s
        wait_s, self._pause_s = self._pause_s, min(2 * self._pause_s, timing.longest_pause_s)
        return max(wait_s, failure.after_s) if isinstance(failure, SlowDown) else wait_s


class LongConnection:
    """One per bot. `start` begins, `close` ends; in between it is connected or says since when it is deaf."""

    def __init__(
        self, name: str, url: str, bot_id: str, secret: str, timing: Timing | None = None
    ) -> None:
        self._name = name
        self._url = url
        self._subscription = {"bot_id": bot_id, "secret": secret}
        self._timing = timing or Timing()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._subscribed = False
        self._connected_s: float | None = None
        self._acks: dict[str, _Acks] = {}
        # The req_ids of frames whose acknowledgement has not come in time, and may come yet.
        self._late: set[str] = set()
        self._lines: dict[str, tuple[asyncio.Lock, int]] = {}
        self._events: asyncio.Queue[Frame] = asyncio.Queue(_MAX_WAITING_EVENTS)
        self._tasks: list[asyncio.Task[None]] = []
        self._since = datetime.now(UTC)
        self._reason = "not connected yet"
        # Counts connections, so that a caller can tell whether it speaks over the same one as before.
        self.generation = 0

    def start(self, sink: FrameSink, may_connect: MayConnect = always) -> None:
        """Connect and stay connected from now on, as long as this process may."""
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._stay(may_connect), name=f"wecom-connection-{self._name}"),
                asyncio.create_task(self._hand_on(sink), name=f"wecom-events-{self._name}"),
            ]

    async def close(self) -> None:
        """End the tasks and the socket. It may be started again."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._deaf("closed")

    def facts(self) -> Mapping[str, str]:
        """Since when it is connected, or deaf and why."""
        since = self._since.isoformat(timespec="seconds")
        if self._subscribed:
            return {"connected_since": since}
        return {"deaf_since": since, "reason": self._reason}

    @property
    def connected(self) -> bool:
        """Frames can be sent."""
        return self._subscribed

    # -- out ---------------------------------------------------------------------------------------------------------
    async def call(self, command: str, body: Mapping[str, Any], req_id: str = "") -> None:
        """Send a frame and wait for its acknowledgement, behind other frames with the same req_id.

        Raises PlatformError: RetryLater when it was not sent, Ambiguous when no acknowledgement came.
        """
        req_id = req_id or f"{command}_{secrets.token_hex(8)}"
        async with self._line(req_id):
            if not self._subscribed:
                raise RetryLater("the long connection is down", after_s=1.0)
            answer = await self._exchange(command, req_id, body)
        error = judge(command, answer)
        if isinstance(error, NotSubscribed):
            await self._drop("WeCom says that the connection is not subscribed")
        if error is not None:
            raise error

    @contextlib.asynccontextmanager
    async def _line(self, req_id: str) -> Any:
        """One at a time per req_id; the lock is forgotten with its last user."""
        lock, n_users = self._lines.get(req_id, (asyncio.Lock(), 0))
        self._lines[req_id] = (lock, n_users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, n_users = self._lines[req_id]
            if n_users == 1:
                del self._lines[req_id]
            else:
                self._lines[req_id] = (lock, n_users - 1)

    async def _exchange(
        self, command: str, req_id: str, body: Mapping[str, Any] | None, within_s: float = 0.0
    ) -> dict[str, Any]:
        within_s = within_s or self._timing.ack_within_s
        socket = self._socket
        if socket is None or socket.closed:
            raise RetryLater("the long connection is down", after_s=1.0)
        frame: dict[str, Any] = {"cmd": command, "headers": {"req_id": req_id}}
        if body is not None:
            frame["body"] = body
        text = json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace").decode()
        acks = self._acks[req_id] = asyncio.Queue()
        try:
            async with asyncio.timeout(within_s):
                await socket.send_str(text)
                answer = await _taken_from(acks)
            if req_id in self._late:
                self._late.discard(req_id)
                answer = await self._own_ack(acks, answer)
        except TimeoutError:
            self._late.add(req_id)
            raise Ambiguous(f"{command}: no acknowledgement within {within_s:g} s") from None
        except (aiohttp.ClientError, ConnectionError, OSError) as error:
            raise Ambiguous(f"{command}: connection lost ({type(error).__name__})") from None
        finally:
            self._acks.pop(req_id, None)
        return answer

    async def _own_ack(self, acks: _Acks, first: dict[str, Any]) -> dict[str, Any]:
        """They come in the order of their frames and name none: of two, the first is that of the frame before."""
        try:
            async with asyncio.timeout(self._timing.second_ack_s):
                return await _taken_from(acks)
        except TimeoutError:
            return first

    async def _drop(self, reason: str) -> None:
        self._deaf(reason)
        if self._socket is not None:
            await self._socket.close()

    # -- staying connected -------------------------------------------------------------------------------------------
    async def _stay(self, may_connect: MayConnect) -> None:
        """Connect again and again."""
        pauses = _Pauses(self._timing)
        while True:
            await permission(may_connect)
            self._connected_s = None
            failure: Exception | None = None
            try:
                await self._live()
            except Exception as error:  # noqa: BLE001 - whatever it was, being deaf for ever is worse
                failure = error
            reason = _reason(failure) if failure else "the connection ended"
            self._deaf(reason)
            wait_s = pauses.after(failure, self._lived_s())
            log.warning("wecom_connection_down", bot=self._name, reason=reason, retry_in_s=wait_s)
            await asyncio.sleep(wait_s)

    def _lived_s(self) -> float:
        began_s = self._connected_s
        return 0.0 if began_s is None else asyncio.get_running_loop().time() - began_s

    async def _live(self) -> None:
        """One connection from its opening to its end."""
        timing = self._timing
        async with aiohttp.ClientSession() as session:
            timeout = aiohttp.ClientWSTimeout(ws_close=2.0)
            async with asyncio.timeout(timing.connect_within_s):
                socket = await session.ws_connect(
                    self._url,
                    timeout=timeout,
                    max_msg_size=_MAX_FRAME_BYTES,
                    proxy=proxy_for(self._url.replace("ws", "http", 1)),
                )
            self._socket = socket
            reader = asyncio.create_task(self._read(socket))
            try:
                await self._subscribe()
                watch = asyncio.create_task(self._watch(socket))
                try:
                    await reader
                finally:
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)
            finally:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
                self._socket = None
                self._fail_acks()
                await socket.close()

    async def _subscribe(self) -> None:
        req_id = f"aibot_subscribe_{secrets.token_hex(8)}"
        answer = await self._exchange("aibot_subscribe", req_id, self._subscription, self._timing.connect_within_s)  # fmt: skip
        error = judge("aibot_subscribe", answer)
        if error is not None and error.code in {40001, 40013}:
            error = BadCredentials(str(error), code=error.code)
        if error is not None:
            raise error
        self._subscribed = True
        self._connected_s = asyncio.get_running_loop().time()
        self.generation += 1
        self._since, self._reason = datetime.now(UTC), ""
        log.info("wecom_connected", bot=self._name)

    async def _watch(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Ping; two pings in a row without an answer mean that nobody is there."""
        missed = 0
        while True:
            await asyncio.sleep(0 if missed else self._timing.ping_every_s)
            try:
                await self._exchange("ping", f"ping_{secrets.token_hex(8)}", None)
                missed = 0
            except PlatformError:
                missed += 1
            if missed == 2:
                self._deaf("two pings without an answer")
                await socket.close()
                return

    def _deaf(self, reason: str) -> None:
        if self._subscribed:
            self._subscribed = False
            self._since = datetime.now(UTC)
        self._reason = reason

    def _fail_acks(self) -> None:
        self._late.clear()
        for acks in self._acks.values():
            acks.put_nowait(None)

    # -- in ----------------------------------------------------------------------------------------------------------
    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Read until the socket ends. Raises Kicked."""
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            try:
                frame = json.loads(_CONTROL.sub("", message.data), strict=False)
            except (ValueError, RecursionError):
                log.info("wecom_frame_not_json", bot=self._name)
                continue
            if isinstance(frame, dict):
                await self._take(frame)
        if self._reason and not self._subscribed:
            raise RetryLater(self._reason)

    async def _take(self, frame: dict[str, Any]) -> None:
        command, req_id = text_of(frame, "cmd"), text_of(frame, "headers", "req_id")
        if command not in _EVENT_COMMANDS:
            acks = self._acks.get(req_id)
            if command not in {"", "pong"}:
                return
            if acks is None:
                self._late.discard(req_id)
            else:
                acks.put_nowait(frame)
            return
        body = frame.get("body")
        if not isinstance(body, dict):
            return
        if text_of(body, "event", "eventtype") == "disconnected_event":
            raise Kicked("another client has connected with this bot's id; only one may")
        await self._events.put(Frame(req_id, body))

    async def _hand_on(self, sink: FrameSink) -> None:
        """Everything that waits goes to the sink together; one event that cannot be taken must not take the others along."""
        while True:
            frames = [await self._events.get()]
            while not self._events.empty():
                frames.append(self._events.get_nowait())
            if not await self._store(sink, frames) and len(frames) > 1:
                for frame in frames:
                    await self._store(sink, [frame])

    async def _store(self, sink: FrameSink, frames: list[Frame]) -> bool:
        """Again and again until they are stored: nobody else keeps them. False for a fault of ours."""
        pause_s = 0.2
        while True:
            try:
                await sink(frames)
            except HearthError as error:
                log.warning("wecom_events_not_stored", bot=self._name, error=str(error), n=len(frames))  # fmt: skip
            except Exception as error:  # noqa: BLE001 - a fault of ours in one event must not end the listening
                log.warning("wecom_events_not_taken", bot=self._name, error=type(error).__name__, n=len(frames))  # fmt: skip
                return False
            else:
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 10.0)


async def _taken_from(acks: _Acks) -> dict[str, Any]:
    """The next acknowledgement. Raises ConnectionError when the socket ends first."""
    answer = await acks.get()
    if answer is None:
        raise ConnectionError("the socket was closed")
    return answer


def _reason(error: Exception) -> str:
    if isinstance(error, PlatformError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the host name cannot be resolved"
    return f"no connection ({type(error).__name__})"
