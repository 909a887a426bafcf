"""Feishu's long connection through lark-oapi against the sandbox's gateway: stored before acknowledged, never deaf for long."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.config import FeishuBotConfig
from bot.domain.types import ButtonPressed, InboundEvent, InboundMessage
from bot.errors import StoreError
from bot.platforms.base import WebhookReply
from bot.platforms.budget import MemoryBudget
from bot.platforms.feishu import FeishuAdapter, longconn, open_adapter
from bot.platforms.feishu.parse import Identity
from bot.platforms.http import SharedHttp
from bot.sandbox.feishu import FeishuSandbox, SandboxConfig, frames


@dataclass
class Stand:
    """A sandbox and an adapter that is connected to it."""

    sandbox: FeishuSandbox
    adapter: FeishuAdapter
    events: list[InboundEvent] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    failures: int = 0

    async def take(self, events: tuple[InboundEvent, ...]) -> WebhookReply | None:
        if self.failures:
            self.failures -= 1
            raise StoreError("the disk is full")
        if self.delays_s:
            await asyncio.sleep(self.delays_s.pop(0))
        self.events.extend(events)
        pressed = isinstance(events[0], ButtonPressed)
        return self.adapter.button_reply("好的") if pressed else None

    async def say(self, text: str = "hello") -> object:
        user = self.sandbox.add_user("Ann")
        return await self.sandbox.say(self.sandbox.direct_chat(user), user, text)

    async def connected(self, n: int = 1) -> None:
        gateway = self.sandbox.gateway
        await self.sandbox.wait_for(lambda: gateway.n_opened >= n and gateway.sockets, 120)
        await self.sandbox.wait_for(lambda: "connected_since" in self.adapter.health(), 5)


@pytest.fixture
async def stand(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    monkeypatch.setattr(longconn, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(longconn, "_PING_S", 0.3)
    config = SandboxConfig(redelivery_s=(0.2, 0.4, 0.8), deadline_s=1.5)
    http = SharedHttp()
    await http.start()
    async with FeishuSandbox(config) as sandbox:
        sandbox.use_long_connection()
        bot = FeishuBotConfig.model_validate(
            {
                "platform": "feishu",
                "mode": "websocket",
                "app_id": config.app_id,
                "app_secret": config.app_secret,
                "api_base": sandbox.base_url,
            }
        )
        adapter = open_adapter("feishu", bot, http, MemoryBudget(0))
        connection = adapter._connection
        assert connection
        connection._ping_s, connection._silent_s = 0.3, 0.8
        stand = Stand(sandbox, adapter)
        await adapter.start()
        await adapter.listen(stand.take)
        await stand.connected()
        yield stand
        await adapter.close()
    await http.close()


async def test_a_message_is_acknowledged_once_it_is_stored(stand: Stand) -> None:
    stand.delays_s = [0.3]
    await stand.say("你好 🙂")
    push = stand.sandbox.records.pushes[-1]
    assert push.acked
    assert push.attempts[0].ms >= 300
    (event,) = stand.events
    assert isinstance(event, InboundMessage)
    assert event.text == "你好 🙂"


async def test_what_could_not_be_stored_comes_again(stand: Stand) -> None:
    stand.failures = 1
    await stand.say("important")
    await stand.sandbox.wait_for(lambda: stand.events)
    assert [attempt.status for attempt in stand.sandbox.records.pushes[-1].attempts] == [500, 200]


async def test_events_do_not_wait_for_each_other(stand: Stand) -> None:
    stand.delays_s = [0.7] * 6
    async with asyncio.timeout(2.5):
        await asyncio.gather(*(stand.say(str(n)) for n in range(6)))
    assert len(stand.events) == 6
    assert all(len(push.attempts) == 1 for push in stand.sandbox.records.pushes)


async def test_a_slow_store_is_not_acknowledged(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longconn, "STORE_S", 0.2)
    stand.delays_s = [0.6]
    await stand.say()
    await stand.sandbox.wait_for(lambda: stand.sandbox.records.pushes[-1].acked)
    assert stand.sandbox.records.pushes[-1].attempts[0].status == 500


async def test_a_huge_event_arrives_in_fragments(stand: Stand) -> None:
    await stand.say("长" * 20_000)
    (event,) = stand.events
    assert isinstance(event, InboundMessage)
    assert event.text == "长" * 20_000


async def test_a_cut_socket_is_opened_again_and_nothing_is_lost(stand: Stand) -> None:
    await stand.sandbox.gateway.cut()
    await stand.say("said while it was deaf")
    await stand.connected(2)
    await stand.sandbox.wait_for(lambda: stand.events)
    assert len(stand.sandbox.gateway.sockets) == 1


async def test_a_silent_socket_is_noticed(stand: Stand) -> None:
    stand.sandbox.gateway.silent = True
    await stand.sandbox.wait_for(lambda: "deaf_since" in stand.adapter.health(), 10)
    stand.sandbox.gateway.silent = False
    await stand.connected(2)
    await stand.say()
    assert stand.events


async def test_refused_credentials_are_named_and_tried_again(stand: Stand) -> None:
    stand.sandbox.gateway.refuse = (514, "auth failed")
    await stand.sandbox.gateway.cut()
    await stand.sandbox.wait_for(lambda: "refuses" in stand.adapter.health().get("reason", ""), 10)
    assert "secret" not in stand.adapter.health()["reason"].replace("app id and secret", "")
    stand.sandbox.gateway.refuse = None
    await stand.connected(2)


async def test_unreadable_events_are_acknowledged_and_harm_nobody(stand: Stand) -> None:
    gateway = stand.sandbox.gateway
    for body in (b"[]", b"{", b'{"schema":"2.0"}', b"\xff"):
        assert (await gateway.deliver(body, 2)).status == 200
    await stand.say()
    assert stand.events


async def test_a_mention_before_the_bot_knows_itself_comes_again(stand: Stand) -> None:
    known, stand.adapter._identity = stand.adapter._identity, Identity(stand.adapter.app_id)
    ann = stand.sandbox.add_user("Ann")
    group = stand.sandbox.add_group("G", [ann])
    await stand.sandbox.say(group, ann, "are you there?")
    push = stand.sandbox.records.pushes[-1]
    assert [attempt.status for attempt in push.attempts] == [500]
    stand.adapter._identity = known
    await stand.sandbox.wait_for(lambda: push.acked)
    (event,) = stand.events
    assert isinstance(event, InboundMessage)
    assert event.mentions_bot


async def test_a_library_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bot.platforms.feishu.larkclient", None)
    connection = longconn.LongConnection("http://127.0.0.1:1", "app", "s")

    async def store(_payload: bytes) -> None:
        raise AssertionError

    connection.start(store)
    await connection.close()
    assert "lark-oapi cannot be used" in connection.health()["reason"]


async def test_a_peer_that_reads_nothing_any_more_is_noticed() -> None:
    class Stuck:
        def __init__(self) -> None:
            self.receiving = asyncio.create_task(asyncio.Event().wait())

        async def ping(self) -> None:
            await asyncio.Event().wait()

    connection = longconn.LongConnection("http://127.0.0.1:1", "app", "s", ping_s=0.02)
    connection._sign()
    stuck = Stuck()
    with pytest.raises(TimeoutError):
        await connection._watch(stuck)
    stuck.receiving.cancel()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("x"), "OSError"),
        (ConnectionResetError(), "was lost"),
        (TimeoutError(), "in time"),
        (type("InvalidSchema", (ValueError,), {})("socks5://me:secret@host"), "no http:// proxy"),
        (type("ConnectionError", (OSError,), {})("wss://x?ticket=secret"), "check the network"),
    ],
)
def test_why_it_is_deaf_is_a_clause_without_secrets(error: Exception, words: str) -> None:
    reason = longconn._reason(error)
    assert words in reason
    assert "secret" not in reason


async def test_closing_ends_the_connection(stand: Stand) -> None:
    await stand.adapter.close()
    await stand.sandbox.wait_for(lambda: not stand.sandbox.gateway.sockets, 5)


@given(
    st.dictionaries(st.text(min_size=1, max_size=10), st.text(max_size=40), max_size=5),
    st.binary(max_size=300),
    st.integers(0, 2**63),
)
def test_our_frames_are_lark_frames(headers: dict[str, str], payload: bytes, seq: int) -> None:
    from lark_oapi.ws.pb.pbbp2_pb2 import Frame

    ours = frames.Frame(frames.DATA, headers, payload, seq, 5, 7)
    theirs = Frame()
    theirs.ParseFromString(ours.encode())
    assert (theirs.SeqID, theirs.LogID, theirs.service, theirs.method) == (seq, 5, 7, 1)
    assert {header.key: header.value for header in theirs.headers} == headers
    assert theirs.payload == payload
    assert frames.decode(theirs.SerializeToString()) == ours
