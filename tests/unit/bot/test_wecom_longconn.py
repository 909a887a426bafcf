"""The long connection against a small server on a real socket: staying connected, frames and their acknowledgements."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from bot.config import WeComBotConfig
from bot.domain.types import InboundMessage
from bot.errors import Ambiguous, PlatformError, Rejected, RetryLater, StoreError
from bot.platforms.base import WebhookRequest
from bot.platforms.budget import MemoryBudget
from bot.platforms.http import SharedHttp
from bot.platforms.wecom import WeComSocketAdapter, open_adapter
from bot.platforms.wecom.errors import BadCredentials, Conflict, judge
from bot.platforms.wecom.longconn import Frame, Kicked, LongConnection, Timing, _Pauses

QUICK = Timing(
    ping_every_s=0.05, ack_within_s=0.3, connect_within_s=2.0, first_pause_s=0.01, longest_pause_s=0.05,
    kicked_pause_s=0.3, refused_pause_s=5.0, stable_after_s=60.0,
)  # fmt: skip
Answer = Callable[[dict[str, Any]], dict[str, Any] | None]


class Server:
    """WeCom's gateway in miniature. `answer` may replace an acknowledgement; None keeps silent."""

    def __init__(self) -> None:
        self.url = ""
        self.sockets: list[web.WebSocketResponse] = []
        self.frames: list[dict[str, Any]] = []
        self.subscriptions = 0
        self.answer: Answer = lambda _: {"errcode": 0, "errmsg": "ok"}
        self.changed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                continue
            frame = json.loads(message.data)
            self.frames.append(frame)
            if frame["cmd"] == "aibot_subscribe":
                self.subscriptions += 1
                self.sockets.append(socket)
            answer = self.answer(frame)
            if answer is not None:
                await socket.send_json({"headers": frame["headers"], **answer})
            self.changed.set()
        return socket

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.005)

    async def event(self, body: dict[str, Any], req_id: str = "req-1", cmd: str = "aibot_msg_callback") -> None:  # fmt: skip
        await self.sockets[-1].send_json({"cmd": cmd, "headers": {"req_id": req_id}, "body": body})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_get("/", made.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"ws://127.0.0.1:{runner.addresses[0][1]}/"
    yield made
    await runner.cleanup()


class Taker:
    """A sink. `fail` times it cannot store."""

    def __init__(self) -> None:
        self.batches: list[list[Frame]] = []
        self.fail = 0

    async def __call__(self, frames: list[Frame]) -> None:
        if self.fail:
            self.fail -= 1
            raise StoreError("the disk is full")
        self.batches.append(frames)

    @property
    def ids(self) -> list[str]:
        return [frame.body["msgid"] for batch in self.batches for frame in batch]


@pytest.fixture
async def taker() -> Taker:
    return Taker()


@pytest.fixture
async def connection(server: Server, taker: Taker) -> AsyncIterator[LongConnection]:
    made = LongConnection("wecom", server.url, "aib1", "s3cret", QUICK)
    assert "deaf_since" in made.facts()
    made.start(taker)
    await server.until(lambda: made.connected)
    yield made
    await made.close()


async def test_it_subscribes_before_anything_else_and_pings(
    server: Server, connection: LongConnection
) -> None:
    assert "connected_since" in connection.facts()
    first = server.frames[0]
    assert first["cmd"] == "aibot_subscribe"
    assert first["body"] == {"bot_id": "aib1", "secret": "s3cret"}
    await server.until(lambda: sum(frame["cmd"] == "ping" for frame in server.frames) >= 2)
    ids = [frame["headers"]["req_id"] for frame in server.frames]
    assert len(set(ids)) == len(ids)


async def test_a_pong_by_name_counts(server: Server, connection: LongConnection) -> None:
    server.answer = lambda frame: {"cmd": "pong", "errcode": 0} if frame["cmd"] == "ping" else {"errcode": 0}  # fmt: skip
    await server.until(lambda: sum(frame["cmd"] == "ping" for frame in server.frames) >= 4)
    assert server.subscriptions == 1


async def test_events_are_handed_on_in_order_until_they_are_stored(
    server: Server, connection: LongConnection, taker: Taker
) -> None:
    taker.fail = 1
    for n in range(5):
        await server.event({"msgid": f"m{n}"}, f"req-{n}")
    await server.until(lambda: len(taker.ids) == 5)
    assert taker.ids == [f"m{n}" for n in range(5)]
    assert len(taker.batches) < 5  # those that waited went together
    assert taker.batches[0][0].req_id == "req-0"


async def test_noise_is_survived(server: Server, connection: LongConnection, taker: Taker) -> None:
    socket = server.sockets[-1]
    for noise in ["", "{", "[]", '"x"', '{"cmd": 7}', '{"cmd":"aibot_msg_callback","body":7}', '{"headers":{"req_id":"?"}}', "[" * 5000]:  # fmt: skip
        await socket.send_str(noise)
    await socket.send_bytes(b"\x00")
    await socket.send_str('{"cmd":"aibot_msg_callback","headers":{"req_id":"r"},"body":{"msgid":"m\x01 1"}}')  # fmt: skip
    await server.until(lambda: taker.ids == ["m 1"])
    assert server.subscriptions == 1


async def test_one_frame_per_req_id_is_in_flight(
    server: Server, connection: LongConnection
) -> None:
    held: list[dict[str, Any]] = []
    server.answer = lambda frame: held.append(frame) if frame["cmd"] == "x" else {"errcode": 0}  # type: ignore[func-returns-value]
    first = asyncio.create_task(connection.call("x", {"n": 1}, "r1"))
    second = asyncio.create_task(connection.call("x", {"n": 2}, "r1"))
    other = asyncio.create_task(connection.call("x", {"n": 3}, "r2"))
    await server.until(lambda: len(held) == 2)
    assert [frame["body"]["n"] for frame in held] == [1, 3]
    await server.sockets[-1].send_json({"headers": {"req_id": "r1"}, "errcode": 0})
    await first
    await server.until(lambda: len(held) == 3)
    await server.sockets[-1].send_json({"headers": {"req_id": "r1"}, "errcode": 6000})
    with pytest.raises(Conflict):
        await second
    with pytest.raises(Ambiguous, match="no acknowledgement"):
        await other
    assert not connection._lines


async def test_a_cut_socket_is_replaced(server: Server, connection: LongConnection) -> None:
    server.answer = lambda frame: None if frame["cmd"] == "x" else {"errcode": 0}
    flying = asyncio.create_task(connection.call("x", {}, "r1"))
    await server.until(lambda: any(frame["cmd"] == "x" for frame in server.frames))
    generation = connection.generation
    await server.sockets[-1].close()
    with pytest.raises(Ambiguous):
        await flying
    await server.until(lambda: server.subscriptions == 2 and connection.connected)
    assert connection.generation == generation + 1


async def test_a_deaf_connection_says_so(server: Server, connection: LongConnection) -> None:
    server.answer = lambda _: None
    await server.sockets[-1].close()
    await server.until(lambda: not connection.connected)
    facts = connection.facts()
    assert set(facts) == {"deaf_since", "reason"}
    with pytest.raises(RetryLater, match="down"):
        await connection.call("x", {})


async def test_a_half_dead_socket_is_noticed_by_its_pings(
    server: Server, connection: LongConnection
) -> None:
    silent = True
    server.answer = lambda frame: None if silent and frame["cmd"] == "ping" else {"errcode": 0}
    await server.until(lambda: not connection.connected)
    silent = False
    await server.until(lambda: server.subscriptions >= 2 and connection.connected)


async def test_an_unsubscribed_connection_is_given_up(
    server: Server, connection: LongConnection
) -> None:
    server.answer = lambda frame: {"errcode": 846609 if frame["cmd"] == "x" else 0}
    with pytest.raises(RetryLater):
        await connection.call("x", {})
    await server.until(lambda: server.subscriptions == 2 and connection.connected)


async def test_a_kicked_connection_waits(server: Server, connection: LongConnection) -> None:
    await server.event({"event": {"eventtype": "disconnected_event"}}, cmd="aibot_event_callback")
    await server.until(lambda: not connection.connected)
    assert "another client" in connection.facts()["reason"]
    await asyncio.sleep(0.1)
    assert server.subscriptions == 1
    await server.until(lambda: connection.connected)


async def test_wrong_credentials_do_not_loop(server: Server, taker: Taker) -> None:
    server.answer = lambda _: {"errcode": 853000, "errmsg": "bad"}
    connection = LongConnection("wecom", server.url, "aib1", "s3cret", QUICK)
    connection.start(taker)
    await server.until(lambda: "bot_id or secret" in connection.facts().get("reason", ""))
    await asyncio.sleep(0.1)
    assert server.subscriptions == 1
    assert "s3cret" not in str(connection.facts())
    await connection.close()


async def test_nobody_listens_there(taker: Taker) -> None:
    connection = LongConnection("wecom", "ws://127.0.0.1:9/", "aib1", "s", QUICK)
    connection.start(taker)
    async with asyncio.timeout(30):
        while "no connection" not in connection.facts().get("reason", ""):
            await asyncio.sleep(0.005)
    await connection.close()


def test_how_long_it_waits() -> None:
    pauses = _Pauses(Timing())
    assert [pauses.after(None, 0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert pauses.after(None, 61) == 1
    assert pauses.after(BadCredentials("x"), 0) == 600
    assert [pauses.after(Kicked("x"), 5) for _ in range(6)] == [60, 120, 240, 480, 600, 600]
    assert pauses.after(Kicked("x"), 3600) == 60


async def test_the_adapter_hands_messages_to_the_sink(server: Server) -> None:
    config = WeComBotConfig(platform="wecom_bot", mode="websocket", bot_id="aib1", secret="s", ws_url=server.url)  # fmt: skip
    adapter = open_adapter("wecom", config, SharedHttp(), MemoryBudget())
    assert isinstance(adapter, WeComSocketAdapter)
    events: list[Any] = []

    async def sink(stored: tuple[Any, ...]) -> None:
        events.extend(stored)

    await adapter.start()
    await adapter.listen(sink)
    await server.until(lambda: "connected_since" in adapter.health())
    await server.event({"msgid": "m1", "chattype": "single", "from": {"userid": "li"}, "msgtype": "text", "text": {"content": "hi"}}, "req-7")  # fmt: skip
    await server.until(lambda: len(events) == 1)
    event = events[0]
    assert isinstance(event, InboundMessage)
    assert event.target.opaque["req"] == "req-7"
    token = await adapter.show_alive(event.target)
    shown = server.frames[-1]
    assert shown["headers"]["req_id"] == "req-7"
    stream = {"id": token, "finish": False, "content": "<think></think>", "feedback": {"id": token}}
    assert shown["body"]["stream"] == stream
    assert await adapter.find_alive(event.target) == token
    await adapter.clear_alive(event.target, token)
    assert server.frames[-1]["body"]["stream"]["finish"]
    with pytest.raises(Rejected):
        adapter.receive(WebhookRequest("POST", {}, {}, b""))
    await adapter.close()
    assert "deaf_since" in adapter.health()


async def test_no_secret_in_an_error(server: Server, connection: LongConnection) -> None:
    server.answer = lambda _: {"errcode": 45009, "errmsg": "s3cret"}
    with pytest.raises(PlatformError) as caught:
        await connection.call("x", {})
    assert "s3cret" not in str(caught.value)


async def test_one_event_that_cannot_be_taken_takes_no_other_along(
    server: Server, connection: LongConnection, taker: Taker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that waited together go to the sink together: a fault of ours over one of them is not the others' end."""
    original = Taker.__call__

    async def call(self: Taker, frames: list[Frame]) -> None:
        if any(frame.body["msgid"] == "bad" for frame in frames):
            raise KeyError("bad")
        await original(self, frames)

    monkeypatch.setattr(Taker, "__call__", call)
    for msgid in ("m1", "bad", "m2"):
        connection._events.put_nowait(Frame("req", {"msgid": msgid}))
    await server.until(lambda: taker.ids == ["m1", "m2"])


async def test_an_acknowledgement_that_comes_late_is_not_taken_for_the_next_frames(
    server: Server, connection: LongConnection
) -> None:
    """Acknowledgements name no frame: "taken" for the first must not hide that the second was refused."""
    seen: list[str] = []

    def answer(frame: dict[str, Any]) -> dict[str, Any] | None:
        if frame["cmd"] != "aibot_respond_msg":
            return {"errcode": 0}
        seen.append(frame["headers"]["req_id"])
        return None

    server.answer = answer
    with pytest.raises(Ambiguous):
        await connection.call("aibot_respond_msg", {"n": 1}, "req-1")
    call = asyncio.create_task(connection.call("aibot_respond_msg", {"n": 2}, "req-1"))
    await server.until(lambda: len(seen) == 2)
    for code in (0, 6000):
        await server.sockets[-1].send_json({"headers": {"req_id": "req-1"}, "errcode": code})
    with pytest.raises(Conflict):
        await call
    server.answer = lambda _: {"errcode": 0}
    await connection.call("aibot_respond_msg", {"n": 3}, "req-1")


async def test_a_lost_acknowledgement_does_not_spoil_the_next(
    server: Server, connection: LongConnection
) -> None:
    server.answer = lambda frame: {"errcode": 0} if frame["cmd"] == "ping" else None
    with pytest.raises(Ambiguous):
        await connection.call("aibot_respond_msg", {"n": 1}, "req-1")
    server.answer = lambda _: {"errcode": 0}
    await connection.call("aibot_respond_msg", {"n": 2}, "req-1")
    assert connection._late == set()


async def test_a_subscription_may_take_longer_than_a_frame(server: Server, taker: Taker) -> None:
    made = LongConnection("wecom", server.url, "aib1", "s3cret", QUICK)

    def answer(frame: dict[str, Any]) -> dict[str, Any] | None:
        return None if frame["cmd"] == "aibot_subscribe" else {"errcode": 0}

    server.answer = answer
    made.start(taker)
    try:
        await server.until(lambda: server.subscriptions == 1)
        await asyncio.sleep(2 * QUICK.ack_within_s)
        req_id = server.frames[0]["headers"]["req_id"]
        await server.sockets[-1].send_json({"headers": {"req_id": req_id}, "errcode": 0})
        await server.until(lambda: made.connected)
        assert server.subscriptions == 1
    finally:
        await made.close()


def test_a_rate_limit_on_subscribing_is_waited_out() -> None:
    pauses = _Pauses(Timing())
    assert pauses.after(judge("aibot_subscribe", {"errcode": 45009}), 0.0) >= 60.0
    assert pauses.after(ConnectionError(), 0.0) == 2.0
