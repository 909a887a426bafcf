"""Stream mode against a small gateway of our own, over real sockets: tickets, frames, acks, cuts, announced ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bot.config import DingTalkBotConfig
from bot.domain.types import ButtonPressed, InboundEvent, InboundMessage, Unreadable
from bot.errors import StoreError
from bot.platforms.base import WebhookReply
from bot.platforms.budget import MemoryBudget
from bot.platforms.dingtalk import DingTalkAdapter, open_adapter
from bot.platforms.dingtalk import socket as streamsocket
from bot.platforms.dingtalk.longconn import StreamListener
from bot.platforms.dingtalk.track import track_id
from bot.platforms.http import SharedHttp


@dataclass
class Gateway:
    """What DingTalk's gateway does; `refusals` are HTTP statuses for the next openings."""

    opened: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    bad_tickets: int = 0
    sockets: list[web.WebSocketResponse] = field(default_factory=list)
    acks: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    deaf: bool = False
    sends_away: bool = False
    base: str = ""
    _tickets: set[str] = field(default_factory=set)
    _n: int = 0

    async def open(self, request: web.Request) -> web.Response:
        self.opened.append(await request.json())
        if self.refusals:
            return web.json_response({"code": "x", "message": "no"}, status=self.refusals.pop(0))
        ticket = f"a+b/{len(self.opened)}="
        self._tickets.add(ticket)
        return web.json_response(
            {"endpoint": self.base.replace("http", "ws") + "/connect", "ticket": ticket}
        )

    async def connect(self, request: web.Request) -> web.StreamResponse:
        ticket = request.query.get("ticket", "")
        if self.bad_tickets or ticket not in self._tickets:
            self.bad_tickets -= 1
            return web.Response(status=403)
        self._tickets.remove(ticket)
        socket = web.WebSocketResponse(autoping=not self.deaf)
        await socket.prepare(request)
        self.sockets.append(socket)
        n = len(self.sockets) - 1
        if self.sends_away:
            await self.push("disconnect", {}, kind="SYSTEM")
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self.acks.append((n, json.loads(message.data)))
        return socket

    async def push(self, topic: str, data: Any, *, kind: str = "CALLBACK", on: int = -1) -> str:
        self._n += 1
        headers = {"topic": topic, "messageId": f"frame{self._n}", "contentType": "application/json"}  # fmt: skip
        frame = {"specVersion": "1.0", "type": kind, "headers": headers, "data": json.dumps(data)}
        await self.sockets[on].send_str(json.dumps(frame))
        return f"frame{self._n}"

    def ack(self, frame_id: str) -> dict[str, Any] | None:
        found = [ack for _, ack in self.acks if ack["headers"]["messageId"] == frame_id]
        assert len(found) <= 1
        return found[0] if found else None


@dataclass
class Stand:
    gateway: Gateway
    adapter: DingTalkAdapter
    events: list[InboundEvent] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    hold: asyncio.Event = field(default_factory=asyncio.Event)

    async def sink(self, events: tuple[InboundEvent, ...]) -> WebhookReply | None:
        await self.hold.wait()
        if self.faults:
            raise self.faults.pop(0)
        self.events.extend(events)
        self.batches.append(len(events))
        if isinstance(events[0], ButtonPressed):
            return WebhookReply(200, {"cardData": {"cardParamMap": {"x": "y"}}})
        return None

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.005)

    async def connected(self, n: int = 1) -> None:
        await self.until(lambda: len(self.gateway.sockets) >= n and self.adapter.health().get("connected_since"))  # fmt: skip


def message(n: int = 1) -> dict[str, Any]:
    return {
        "msgId": f"m{n}", "conversationId": "cid", "conversationType": "1", "senderStaffId": "ann", "senderId": "x",
        "msgtype": "text", "text": {"content": f"hi {n}"},
    }  # fmt: skip


@pytest.fixture
async def stand(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    monkeypatch.setattr(streamsocket, "_STORE_PAUSES_S", (0.01, 0.01, 0.01))
    gateway = Gateway()
    app = web.Application()
    app.router.add_post("/v1.0/gateway/connections/open", gateway.open)
    app.router.add_get("/connect", gateway.connect)
    app.router.add_post("/v1.0/oauth2/accessToken", _token)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    gateway.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    http = SharedHttp()
    await http.start()
    config = DingTalkBotConfig(
        platform="dingtalk", client_id="ding1", client_secret="s3cret", api_base=gateway.base, oapi_base=gateway.base,
        card_template="t.schema",
    )  # fmt: skip
    adapter = open_adapter("ding", config, http, MemoryBudget())
    adapter.stream = StreamListener(
        adapter.client, ("ding1", "s3cret"), cards=True, heartbeat_s=0.4, first_pause_s=0.01
    )
    made = Stand(gateway, adapter)
    made.hold.set()
    yield made
    await adapter.close()
    await http.close()
    await runner.cleanup()


async def _token(_request: web.Request) -> web.Response:
    return web.json_response({"accessToken": "t", "expireIn": 7200})


async def test_a_message_is_stored_and_then_acknowledged(stand: Stand) -> None:
    assert stand.adapter.health()["reason"] == "not connected yet"
    await stand.adapter.listen(stand.sink)
    await stand.connected()
    assert stand.gateway.opened[0]["clientSecret"] == "s3cret"
    assert {s["topic"] for s in stand.gateway.opened[0]["subscriptions"]} == {
        streamsocket.ROBOT_TOPIC,
        streamsocket.CARD_TOPIC,
    }
    stand.hold.clear()
    frame = await stand.gateway.push(streamsocket.ROBOT_TOPIC, message())
    ping = await stand.gateway.push("ping", {"opaque": "o1"}, kind="SYSTEM")
    await stand.until(lambda: stand.gateway.ack(ping))
    assert stand.gateway.ack(frame) is None
    stand.hold.set()
    await stand.until(lambda: stand.gateway.ack(frame))
    ack = stand.gateway.ack(frame)
    assert ack is not None
    assert (ack["code"], json.loads(ack["data"])) == (200, {"response": None})
    pong = stand.gateway.ack(ping)
    assert pong is not None
    assert json.loads(pong["data"]) == {"opaque": "o1"}
    assert isinstance(stand.events[0], InboundMessage)
    assert "ticket" not in str(stand.adapter.health())


async def test_a_click_gets_its_answer(stand: Stand) -> None:
    await stand.adapter.listen(stand.sink)
    await stand.connected()
    content = json.dumps({"cardPrivateData": {"actionIds": ["stop"], "params": {}}})
    pressed = {"outTrackId": track_id("t1", 0, "ding1"), "userId": "ann", "content": content}
    frame = await stand.gateway.push(streamsocket.CARD_TOPIC, pressed)
    await stand.until(lambda: stand.gateway.ack(frame))
    ack = stand.gateway.ack(frame)
    assert ack is not None
    assert json.loads(ack["data"]) == {"response": {"cardData": {"cardParamMap": {"x": "y"}}}}


async def test_what_waits_is_stored_together_and_in_order(stand: Stand) -> None:
    await stand.adapter.listen(stand.sink)
    await stand.connected()
    stand.hold.clear()
    content = json.dumps({"cardPrivateData": {"actionIds": ["stop"]}})
    pressed = {"outTrackId": track_id("t1", 0, "ding1"), "userId": "ann", "content": content}
    for n in range(4):
        await stand.gateway.push(streamsocket.ROBOT_TOPIC, message(n))
    await stand.gateway.push(streamsocket.CARD_TOPIC, pressed)
    frame = await stand.gateway.push(streamsocket.ROBOT_TOPIC, message(5))
    ping = await stand.gateway.push("ping", {"opaque": "x"}, kind="SYSTEM")
    await stand.until(lambda: stand.gateway.ack(ping))
    stand.hold.set()
    await stand.until(lambda: stand.gateway.ack(frame))
    assert sum(stand.batches) == 6
    assert len(stand.batches) <= 4
    kinds = [type(event) for event in stand.events]
    assert kinds == [*[InboundMessage] * 4, ButtonPressed, InboundMessage]
    texts = [event.text for event in stand.events if isinstance(event, InboundMessage)]
    assert texts == [f"hi {n}" for n in (0, 1, 2, 3, 5)]


async def test_what_cannot_be_stored_is_not_acknowledged(stand: Stand) -> None:
    await stand.adapter.listen(stand.sink)
    await stand.connected()
    stand.faults = [StoreError("full")] * 2
    frame = await stand.gateway.push(streamsocket.ROBOT_TOPIC, message(1))
    await stand.until(lambda: stand.gateway.ack(frame))
    assert len(stand.events) == 1
    stand.faults = [StoreError("full")] * 4
    lost = await stand.gateway.push(streamsocket.ROBOT_TOPIC, message(2))
    await stand.until(lambda: not stand.faults)
    stand.faults = [ValueError("a fault of ours")]
    fault = await stand.gateway.push(streamsocket.ROBOT_TOPIC, message(3))
    last = await stand.gateway.push(streamsocket.CARD_TOPIC, {})
    await stand.until(lambda: stand.gateway.ack(last))
    assert stand.gateway.ack(lost) is None
    assert stand.gateway.ack(fault) is None
    assert isinstance(stand.events[-1], Unreadable)


@pytest.mark.parametrize("fault", [ValueError("a fault of ours"), StoreError("too large")])
async def test_what_cannot_be_stored_takes_nothing_along(stand: Stand, fault: Exception) -> None:
    async def picky(events: tuple[InboundEvent, ...]) -> WebhookReply | None:
        if any(isinstance(event, InboundMessage) and event.text == "hi 1" for event in events):
            await stand.hold.wait()
            raise fault
        return await stand.sink(events)

    await stand.adapter.listen(picky)
    await stand.connected()
    stand.hold.clear()
    frames = [await stand.gateway.push(streamsocket.ROBOT_TOPIC, message(n)) for n in range(4)]
    ping = await stand.gateway.push("ping", {"opaque": "x"}, kind="SYSTEM")
    await stand.until(lambda: stand.gateway.ack(ping))
    stand.hold.set()
    await stand.until(lambda: stand.gateway.ack(frames[3]))
    assert stand.gateway.ack(frames[1]) is None
    assert [event.message_id for event in stand.events if isinstance(event, InboundMessage)] == ["m0", "m2", "m3"]  # fmt: skip


async def test_junk_does_no_harm(stand: Stand) -> None:
    await stand.adapter.listen(stand.sink)
    await stand.connected()
    for junk in ("junk", "[]", "{}", '{"headers": 7}', '{"headers": {"messageId": "x"}}', "[" * 5000):  # fmt: skip
        await stand.gateway.sockets[0].send_str(junk)
    unknown = await stand.gateway.push("/v1.0/graph/api/invoke", {})
    event = await stand.gateway.push("*", {}, kind="EVENT")
    odd = await stand.gateway.push("KEEPALIVE", {}, kind="SYSTEM")
    frame = await stand.gateway.push(streamsocket.ROBOT_TOPIC, "not an object")
    await stand.until(lambda: stand.gateway.ack(frame))
    found = stand.gateway.ack(unknown)
    assert found is not None
    assert found["code"] == 404
    told = stand.gateway.ack(event)
    assert told is not None
    assert json.loads(told["data"]) == {"status": "SUCCESS"}
    assert stand.gateway.ack(odd) is None
    assert isinstance(stand.events[-1], Unreadable)
    assert len(stand.gateway.sockets) == 1


async def test_an_announced_end_leaves_no_gap(stand: Stand) -> None:
    await stand.adapter.listen(stand.sink)
    await stand.connected()
    since = stand.adapter.health()["connected_since"]
    await stand.gateway.push("disconnect", {"reason": "x"}, kind="SYSTEM")
    await stand.connected(2)
    old = await stand.gateway.push(streamsocket.ROBOT_TOPIC, message(1), on=0)
    new = await stand.gateway.push(streamsocket.ROBOT_TOPIC, message(2), on=1)
    await stand.until(lambda: stand.gateway.ack(old) and stand.gateway.ack(new))
    where = {ack["headers"]["messageId"]: n for n, ack in stand.gateway.acks}
    assert (where[old], where[new]) == (0, 1)
    assert stand.adapter.health()["connected_since"] == since
    await stand.gateway.sockets[0].close()
    await asyncio.sleep(0.05)
    assert len(stand.gateway.sockets) == 2


async def test_sent_away_again_and_again_it_takes_its_time_and_says_so(stand: Stand) -> None:
    stand.gateway.sends_away = True
    await stand.adapter.listen(stand.sink)
    await stand.until(lambda: "announced" in stand.adapter.health().get("reason", ""))
    stand.gateway.sends_away = False
    await stand.connected()


async def test_a_fault_of_ours_does_not_make_it_deaf(stand: Stand) -> None:
    faults, exchange = [TypeError("x")], stand.adapter.client.exchange

    async def faulty(api: str, request: Any) -> dict[str, Any]:
        if faults:
            raise faults.pop()
        return await exchange(api, request)

    stand.adapter.client.exchange = faulty  # type: ignore[method-assign, assignment]
    await stand.adapter.listen(stand.sink)
    await stand.connected()


async def test_a_cut_socket_comes_back_with_a_fresh_ticket(stand: Stand) -> None:
    await stand.adapter.listen(stand.sink)
    await stand.connected()
    transport = stand.gateway.sockets[0]._req.transport  # type: ignore[union-attr]
    assert transport is not None
    transport.abort()
    await stand.connected(2)
    await stand.gateway.sockets[1].close()
    await stand.connected(3)
    assert len(stand.gateway.opened) == 3
    frame = await stand.gateway.push(streamsocket.ROBOT_TOPIC, message())
    await stand.until(lambda: stand.gateway.ack(frame))


async def test_no_pong_means_no_connection(stand: Stand) -> None:
    stand.gateway.deaf = True
    await stand.adapter.listen(stand.sink)
    await stand.until(lambda: len(stand.gateway.sockets) == 1)
    stand.gateway.deaf = False
    await stand.connected(2)


async def test_refusals_are_told_and_outlived(stand: Stand) -> None:
    stand.gateway.refusals = [400, 500, 401, 429]
    await stand.adapter.listen(stand.sink)
    await stand.until(lambda: "not in our table" in stand.adapter.health().get("reason", ""))
    stand.gateway.refusals = stand.gateway.refusals[-1:]
    await stand.connected()
    stand.gateway.bad_tickets = 2
    await stand.gateway.sockets[0].close()
    await stand.until(lambda: "refuses the ticket (HTTP 403)" in stand.adapter.health().get("reason", ""))  # fmt: skip
    await stand.connected(2)


@pytest.mark.parametrize("endpoint", ["ws://evil.example/connect", "http://x", "", None, 7, "wss://[", "wss://h:99999999/x"])  # fmt: skip
async def test_only_encrypted_addresses(stand: Stand, endpoint: Any) -> None:
    async def exchange(_api: str, _request: Any) -> dict[str, Any]:
        return {"endpoint": endpoint, "ticket": "t"}

    stand.adapter.client.exchange = exchange  # type: ignore[method-assign]
    await stand.adapter.listen(stand.sink)
    await stand.until(lambda: "stream_open" in stand.adapter.health().get("reason", ""))
    assert stand.gateway.sockets == []


async def test_closing_stores_what_was_heard(stand: Stand) -> None:
    await stand.adapter.listen(stand.sink)
    await stand.connected()
    stand.hold.clear()
    for n in range(3):
        await stand.gateway.push(streamsocket.ROBOT_TOPIC, message(n))
    ping = await stand.gateway.push("ping", {"opaque": "x"}, kind="SYSTEM")
    await stand.until(lambda: stand.gateway.ack(ping))
    closing = asyncio.create_task(stand.adapter.close())
    await asyncio.sleep(0.02)
    stand.hold.set()
    await closing
    assert len(stand.events) == 3
