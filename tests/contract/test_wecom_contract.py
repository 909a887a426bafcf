"""The WeCom adapters against the strict sandbox, over real sockets, in all three modes: polled streams, pushed streams, app.

Both were written apart from wecom.md; where they disagree, one of them misread it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from bot.config import WeComAppConfig, WeComBotConfig
from bot.domain.types import (
    BotAdded,
    ChatKind,
    InboundEvent,
    InboundMessage,
    Outcome,
    PartState,
    ReplyPart,
    Unreadable,
)
from bot.errors import Ambiguous, GiveUp, Rejected, RetryLater, TooLarge
from bot.platforms.base import Button, ReplyDriver, ReplyView, WebhookRequest
from bot.platforms.budget import MemoryBudget
from bot.platforms.http import SharedHttp
from bot.platforms.wecom import (
    WeComAppAdapter,
    WeComCallbackAdapter,
    WeComSocketAdapter,
    open_adapter,
    pollreply,
    style,
)
from bot.platforms.wecom.errors import SlowDown
from bot.platforms.wecom.longconn import Timing
from bot.sandbox.wecom import Message, SentMessage, WeComConfig, WeComSandbox, visible_text

BUTTONS = (Button("stop", "停止"),)
Adapter = WeComCallbackAdapter | WeComSocketAdapter | WeComAppAdapter
BOTS = ["callback", "websocket"]
MODES = [*BOTS, "app"]
QUICK = Timing(first_pause_s=0.02, longest_pause_s=0.2, ack_within_s=0.5, ping_every_s=0.2, kicked_pause_s=0.5)  # fmt: skip


class Ledger:
    """Parts as a store keeps them."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self._parts: dict[int, ReplyPart] = {}

    def parts(self) -> tuple[ReplyPart, ...]:
        return tuple(self._parts[n] for n in sorted(self._parts))

    async def save(self, part: ReplyPart) -> None:
        self._parts[part.n] = part


@dataclass
class Stand:
    """Sandbox, adapter, and what takes the events between them."""

    sandbox: WeComSandbox
    adapter: Adapter
    events: list[InboundEvent] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    n_turns: int = 0

    async def sink(self, events: tuple[InboundEvent, ...]) -> None:
        self.events.extend(events)

    async def ask(
        self, text: str = "hello", **options: Any
    ) -> tuple[SentMessage, InboundMessage, Ledger]:
        user = self.sandbox.add_user("Ann")
        n_before = len(self.events)
        sent = await self.sandbox.say(self.sandbox.direct_chat(user), user, text, **options)
        await self.until(lambda: len(self.events) > n_before)
        event = await self.message()
        self.n_turns += 1
        return sent, event, Ledger(f"turn{self.n_turns:04d}")

    async def message(self, n: int = 0) -> InboundMessage:
        """The newest event, or the n-th, once it has come."""
        await self.until(lambda: len(self.events) >= max(n, 1))
        event = self.events[n - 1]
        assert isinstance(event, InboundMessage)
        return event

    def reply(self, event: InboundMessage, ledger: Ledger) -> ReplyDriver:
        return self.adapter.open_reply(event.target, ledger)

    def seen(self, sent: SentMessage) -> list[str]:
        return [visible_text(m).replace("\u200b", "") for m in self.sandbox.replies(sent)]

    async def shows(self, sent: SentMessage, *texts: str) -> None:
        """These are the answers to a message, now or after the next poll, and none of them moves any more."""
        with contextlib.suppress(TimeoutError):
            await self.until(
                lambda: (
                    self.seen(sent) == list(texts)
                    and not any(message.streaming for message in self.sandbox.replies(sent))
                )
            )
        assert self.seen(sent) == list(texts)

    def only(self, sent: SentMessage) -> Message:
        messages = self.sandbox.replies(sent)
        assert len(messages) == 1
        return messages[0]

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.005)


async def serve(stand: Stand) -> web.AppRunner:
    async def webhook(request: web.Request) -> web.Response:
        headers = {key.lower(): value for key, value in request.headers.items()}
        asked = WebhookRequest(request.method, headers, dict(request.query), await request.read())
        try:
            received = stand.adapter.receive(asked)
        except Rejected as error:
            stand.statuses.append(error.status)
            return web.Response(status=error.status)
        stand.events.extend(received.events)
        stand.statuses.append(received.reply.status)
        if isinstance(received.reply.body, str):
            return web.Response(text=received.reply.body, status=received.reply.status)
        return web.json_response(received.reply.body, status=received.reply.status)

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/webhook/wecom", webhook)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


def bot_config(sandbox: WeComSandbox, **more: Any) -> WeComBotConfig | WeComAppConfig:
    config = sandbox.config
    keys = {"token": config.token, "encoding_aes_key": config.encoding_aes_key, "api_base": sandbox.base_url}  # fmt: skip
    if config.mode == "app":
        return WeComAppConfig(platform="wecom_app", corp_id=config.corp_id, corp_secret=config.corp_secret,
                              agent_id=config.agent_id, **keys, **more)  # fmt: skip
    mode = "webhook" if config.mode == "callback" else "websocket"
    return WeComBotConfig(platform="wecom_bot", mode=mode, bot_id=config.bot_id, secret=config.bot_secret,
                          ws_url=sandbox.ws_url, **keys, **more)  # fmt: skip


@asynccontextmanager
async def stand_on(mode: str, *, bot: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Stand]:  # fmt: skip
    made: Any = {"poll_interval_s": 0.02, "redelivery_s": (0.05, 0.05), **settings}
    async with WeComSandbox(WeComConfig(mode=mode, **made)) as sandbox:  # type: ignore[arg-type]
        http = SharedHttp()
        await http.start()
        adapter = open_adapter("wecom", bot_config(sandbox, **(bot or {})), http, MemoryBudget())
        stand = Stand(sandbox, adapter)
        runner = await serve(stand)
        host, port = runner.addresses[0][:2]
        sandbox.subscribe(f"http://{host}:{port}/webhook/wecom")
        if isinstance(adapter, WeComSocketAdapter):
            adapter.connection._timing = QUICK
        try:
            await adapter.start()
            await adapter.listen(stand.sink)
            if isinstance(adapter, WeComSocketAdapter):
                await stand.until(lambda: sandbox.gateway.live)
            yield stand
        finally:
            await adapter.close()
            await runner.cleanup()
            await http.close()


@pytest.fixture(params=MODES)
async def stand(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async with stand_on(request.param) as made:
        yield made
        assert made.sandbox.violations == []


@pytest.fixture(params=BOTS)
async def bot(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async with stand_on(request.param) as made:
        yield made
        assert made.sandbox.violations == []


@pytest.fixture
async def called() -> AsyncIterator[Stand]:
    async with stand_on("callback") as made:
        yield made
        assert made.sandbox.violations == []


@pytest.fixture
async def socket() -> AsyncIterator[Stand]:
    async with stand_on("websocket") as made:
        yield made
        assert made.sandbox.violations == []


@pytest.fixture
async def app() -> AsyncIterator[Stand]:
    async with stand_on("app") as made:
        yield made
        assert made.sandbox.violations == []


def grow(text: str, rev: int = 1, **more: Any) -> ReplyView:
    return ReplyView(rev, text, **{"buttons": BUTTONS, "possible_repeat": "（可能重复）", **more})


def done(text: str, rev: int = 10**6, outcome: Outcome = Outcome.COMPLETE, **more: Any) -> ReplyView:  # fmt: skip
    return ReplyView(rev, text, outcome=outcome, **{"buttons": BUTTONS, "possible_repeat": "（可能重复）", **more})  # fmt: skip


async def insist(reply: ReplyDriver, view: ReplyView) -> None:
    """As the streamer does: again after what may be repeated."""
    for _ in range(60):
        try:
            await (reply.show(view) if view.outcome is Outcome.GROWING else reply.finish(view))
        except RetryLater as error:
            await asyncio.sleep(min(error.after_s, 0.3) if isinstance(error, SlowDown) else 0.05)
        except Ambiguous:
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError("never done")


# -- in ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["callback", "app"])
async def test_the_console_accepts_the_url(mode: str) -> None:
    async with stand_on(mode) as made:
        assert await made.sandbox.url_check()
        assert await made.sandbox.url_check(raw_plus=True)
        assert made.events == []
        assert made.sandbox.violations == []


async def test_a_trailer_behind_the_text_is_no_obstacle() -> None:
    async with stand_on("callback", receive_trailer="ww-something") as made:
        _, event, _ = await made.ask("hi")
        assert event.text == "hi"


async def test_messages_arrive_as_ours(bot: Stand) -> None:
    _, direct, _ = await bot.ask("hi @Bob")
    assert (direct.chat_kind, direct.text, direct.mentions_bot) == (ChatKind.DIRECT, "hi @Bob", False)  # fmt: skip
    ann = bot.sandbox.add_user("Ann")
    group = bot.sandbox.add_group("G", [ann])
    sent = await bot.sandbox.say(group, ann, "eat with @Bob")
    event = await bot.message(2)
    assert (event.chat_kind, event.text, event.mentions_bot) == (ChatKind.GROUP, "eat with @Bob", True)  # fmt: skip
    assert (event.chat_id, event.sender.user_id, event.message_id) == (group.id, ann.id, sent.message.id)  # fmt: skip
    await bot.sandbox.say(group, ann, "about this", quote=sent.message)
    quoting = await bot.message(3)
    assert quoting.text == "about this"
    assert quoting.quoted is not None
    assert "eat with @Bob" in quoting.quoted.text
    for driver in (bot.reply(direct, Ledger("a")), bot.reply(event, Ledger("b")), bot.reply(quoting, Ledger("c"))):  # fmt: skip
        await insist(driver, done("ok"))


async def test_files_are_fetched_and_decrypted(bot: Stand) -> None:
    assert isinstance(bot.adapter, WeComCallbackAdapter | WeComSocketAdapter)
    _, event, ledger = await bot.ask("", kind="file", data=b"the bytes" * 99, filename="a.txt")
    assert [item.kind for item in event.attachments] == ["file"]
    assert (
        await bot.adapter.fetch(event.attachments[0], event.target, max_bytes=891)
        == b"the bytes" * 99
    )
    with pytest.raises(TooLarge):
        await bot.adapter.fetch(event.attachments[0], event.target, max_bytes=700)
    await insist(bot.reply(event, ledger), done("read"))
    _, mixed, ledger = await bot.ask("", kind="mixed", items=["look", b"\x89PNG picture"])
    assert mixed.text == "look"
    assert (
        await bot.adapter.fetch(mixed.attachments[0], mixed.target, max_bytes=99)
        == b"\x89PNG picture"
    )
    await insist(bot.reply(mixed, ledger), done("seen"))
    _, voice, ledger = await bot.ask("what I said", kind="voice")
    assert (voice.text, voice.attachments) == ("what I said", ())
    await insist(bot.reply(voice, ledger), done("heard"))


async def test_an_app_takes_events_and_commands(app: Stand) -> None:
    user = app.sandbox.add_user("Ann")
    chat = app.sandbox.direct_chat(user)
    await app.sandbox.enter_chat(user)
    assert isinstance(app.events[-1], Unreadable)
    await app.sandbox.send_event(chat, user, {"MsgType": "event", "Event": "subscribe", "EventKey": ""})  # fmt: skip
    assert isinstance(app.events[-1], BotAdded)
    await app.sandbox.send_event(chat, user, {"MsgType": "event", "Event": "click", "EventKey": "/new"})  # fmt: skip
    click = app.events[-1]
    assert isinstance(click, InboundMessage)
    assert click.text == "/new"
    assert set(app.statuses) == {200}


async def test_a_redelivery_has_the_same_key_and_the_same_stream(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    await stand.sandbox.redeliver(sent)
    await stand.until(lambda: len(stand.events) == 2)
    again = await stand.message(2)
    assert again.dedupe_key == event.dedupe_key
    await insist(stand.reply(event, ledger), done("answer"))
    await stand.shows(sent, "answer")


@pytest.mark.parametrize("mode", ["callback", "app"])
async def test_forgeries_are_refused(mode: str) -> None:
    async with stand_on(mode) as made:
        body = b'{"encrypt": "AAAA"}' if mode == "callback" else b"<xml><Encrypt>AAAA</Encrypt></xml>"  # fmt: skip
        assert (await made.sandbox.post_raw(body)).status == 401
        assert (await made.sandbox.post_raw(b"junk")).status == 400
        if mode == "app":
            assert (await made.sandbox.post_raw(b" " * 300_000)).status == 413
        assert made.events == []


# -- out --------------------------------------------------------------------------------------------------------------
TEXT = "# 标题\n\n- one\n  - two\n\n```py\nprint('<@all>')\n```\n\n<@zhangsan> <think>x</think> ![x](http://y) **end**"


async def test_an_answer_grows_and_closes(bot: Stand) -> None:
    sent, event, ledger = await bot.ask()
    token = await bot.adapter.show_alive(event.target)
    await bot.until(lambda: bot.sandbox.replies(sent))
    reply = bot.reply(event, ledger)
    await reply.prepare()
    await insist(reply, grow("", status="第 3 位"))
    await bot.until(lambda: bot.seen(sent) == ["第 3 位"])
    await bot.adapter.clear_alive(event.target, token)
    for rev, end in enumerate(range(3, len(TEXT), 9), 1):
        await insist(reply, grow(TEXT[:end], rev))
        assert bot.only(sent).streaming
    await insist(reply, done(TEXT, notice="已停止。"))
    await bot.until(lambda: not bot.only(sent).streaming)
    message = bot.only(sent)
    assert "**end**" in message.text
    assert message.text.endswith("已停止。")


async def test_a_finished_answer_is_one_message(stand: Stand) -> None:
    sent, event, ledger = await stand.ask("/help")
    await insist(stand.reply(event, ledger), done("help text", buttons=()))
    await stand.shows(sent, "help text")
    await insist(stand.reply(event, ledger), done("help text", buttons=()))
    await stand.shows(sent, "help text")


async def test_a_very_long_answer(stand: Stand) -> None:
    n_paragraphs = 160 if stand.sandbox.config.mode != "app" else 20
    text = "".join(f"第{n}段：" + '很长的段落，"quoted"<b>。' * 6 + "\n\n" for n in range(n_paragraphs))  # fmt: skip
    if isinstance(stand.adapter, WeComAppAdapter):
        stand.adapter.client.limiter._sleep = _no_sleep
    sent, event, ledger = await stand.ask()
    reply = stand.reply(event, ledger)
    for end in range(2000, len(text), 9000):
        await insist(reply, grow(text[:end], end))
    await insist(reply, done(text))
    await stand.until(lambda: not any(m.streaming for m in stand.sandbox.replies(sent)))
    shown = "\n".join(stand.seen(sent))
    assert [shown.count(f"第{n}段：") for n in range(n_paragraphs)] == [1] * n_paragraphs


async def _no_sleep(_: float) -> None:
    """The sandbox counts by the minute; the pace itself is a unit test."""


FAULTS = {
    "callback": ["callback.message", "callback.poll"],
    "websocket": ["ws.respond"],
    "app": ["message.send", "gettoken"],
}


@pytest.mark.parametrize(("mode", "api"), [(mode, api) for mode, apis in FAULTS.items() for api in apis])  # fmt: skip
@pytest.mark.parametrize("fault", ["busy", "gateway", "before", "after"])
async def test_any_fault_ends_in_one_whole_answer(mode: str, api: str, fault: str) -> None:
    async with stand_on(mode) as made:
        if isinstance(made.adapter, WeComAppAdapter):
            made.adapter.client.limiter._sleep = _no_sleep
        faults = made.sandbox.faults
        if fault == "busy":
            faults.refuse(api, 6000 if mode == "websocket" else 45033)
        elif fault == "gateway":
            faults.bad_gateway(api, 2)
        else:
            faults.drop(api, 2, after=fault == "after")
        sent, event, ledger = await made.ask()
        reply = made.reply(event, ledger)
        for rev, text in enumerate(["one", "one two"], 1):
            await insist(reply, grow(text, rev))
        await insist(reply, done("one two three four"))
        marked = "（可能重复）\none two three four"
        if api == "message.send" and fault in {"before", "after"}:
            # No idempotency there: what may have arrived is sent again and says so.
            await made.shows(sent, *(["one two three four", marked, marked] if fault == "after" else [marked]))  # fmt: skip
        else:
            await made.shows(sent, "one two three four")
            assert made.sandbox.violations == []


@pytest.mark.parametrize("fault", ["busy", "gateway", "before", "after"])
async def test_a_response_url_with_faults_is_used_once(called: Stand, fault: str) -> None:
    assert isinstance(called.adapter, WeComCallbackAdapter)
    sent, event, ledger = await called.ask()
    called.adapter.shelf.cutoff_s = 0.0
    await called.until(lambda: not called.only(sent).streaming)
    faults = called.sandbox.faults
    if fault == "busy":
        faults.refuse("aibot.response", 45033)
    elif fault == "gateway":
        faults.bad_gateway("aibot.response", 2)
    else:
        faults.drop("aibot.response", after=fault == "after")
    await insist(called.reply(event, ledger), done("the answer"))
    await called.shows(sent, style.CONTINUED, "the answer")
    called.sandbox.judge.clear()  # a second use of the URL is the only way to learn that the first one arrived


# -- callback ---------------------------------------------------------------------------------------------------------
async def test_the_rest_comes_by_response_url_after_the_cutoff(called: Stand) -> None:
    assert isinstance(called.adapter, WeComCallbackAdapter)
    sent, event, ledger = await called.ask()
    reply = called.reply(event, ledger)
    await insist(reply, grow("first part. "))
    await called.until(lambda: called.seen(sent) == ["first part."])
    called.adapter.shelf.cutoff_s = 0.0
    await called.until(lambda: not called.only(sent).streaming)
    await insist(reply, grow("first part. and more"))
    await insist(reply, done("first part. and more, the end"))
    await called.shows(sent, f"first part.\n\n{style.CONTINUED}", "and more, the end")
    assert len(called.sandbox.calls_of("aibot.response")) == 1


async def test_merged_messages_each_have_a_finished_bubble(called: Stand) -> None:
    user = called.sandbox.add_user("Ann")
    chat = called.sandbox.direct_chat(user)
    asked = [await called.sandbox.say(chat, user, f"part {n}") for n in range(3)]
    first, last = await called.message(1), await called.message(3)
    token = await called.adapter.show_alive(first.target)
    reply = called.reply(last, Ledger("turn-merged"))
    await insist(reply, grow("ans"))
    await called.adapter.clear_alive(first.target, token)
    await insist(reply, done("answer"))
    await called.until(lambda: not any(m.streaming for m in called.sandbox.messages(chat)))
    assert [called.seen(sent) for sent in asked] == [[style.SEE_BELOW], [style.SEE_BELOW], ["answer"]]  # fmt: skip


async def test_a_restart_in_the_middle(called: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(called.adapter, WeComCallbackAdapter)
    sent, event, ledger = await called.ask()
    await insist(called.reply(event, ledger), grow("half"))
    await called.until(lambda: called.seen(sent) == ["half"])
    http = called.adapter._http
    fresh = open_adapter("wecom", called.adapter.config, http, MemoryBudget())
    assert isinstance(fresh, WeComCallbackAdapter)
    called.adapter = fresh
    await called.until(lambda: called.seen(sent) == [""])  # the moving dots
    await insist(called.reply(event, ledger), done("half and whole"))
    await called.shows(sent, "half and whole")


async def test_nobody_polls_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pollreply, "PATIENCE_S", 0.2)
    async with stand_on("callback") as made:
        sent, event, ledger = await made.ask()
        reply = made.reply(event, ledger)
        await insist(reply, grow("seen. "))
        await made.until(lambda: made.seen(sent) == ["seen."])
        made.sandbox.faults.drop("callback.poll", 10**6)
        await insist(reply, done("seen. unseen"))
        made.sandbox.faults.clear()
        await made.until(lambda: not made.sandbox.replies(sent)[0].streaming)
        await made.shows(sent, f"seen.\n\n{style.SEE_BELOW}", "unseen")


# -- long connection --------------------------------------------------------------------------------------------------
async def test_streams_rotate_before_they_die() -> None:
    async with stand_on("websocket", bot={"stream_cutoff_s": 5}) as made:
        assert isinstance(made.adapter, WeComSocketAdapter)
        sent, event, ledger = await made.ask()
        reply = made.reply(event, ledger)
        desk, clock = made.adapter.desk, made.adapter.desk._clock
        await insist(reply, grow("line 1\nline 2\nli"))
        desk._clock = lambda: clock() + 6
        await insist(reply, grow("line 1\nline 2\nline 3"))
        await insist(reply, done("line 1\nline 2\nline 3"))
        await made.shows(sent, "line 1\nline 2", "line 3")
        assert made.sandbox.violations == []


@pytest.mark.parametrize("trouble", ["cut", "mute", "close", "kick"])
async def test_it_comes_back_and_goes_on(socket: Stand, trouble: str) -> None:
    sent, event, ledger = await socket.ask()
    reply = socket.reply(event, ledger)
    await insist(reply, grow("half"))
    before = socket.sandbox.gateway.live
    match trouble:
        case "cut":
            socket.sandbox.cut_socket()
        case "mute":
            socket.sandbox.mute_socket()
        case "close":
            await socket.sandbox.close_socket()
        case _:
            await socket.sandbox.kick()
    await socket.until(lambda: "deaf_since" in socket.adapter.health() or socket.sandbox.gateway.live not in {None, before})  # fmt: skip
    await insist(reply, done("half and whole"))
    await socket.shows(sent, "half and whole")
    assert "connected_since" in socket.adapter.health()


async def test_a_message_that_came_while_deaf_is_not_lost(socket: Stand) -> None:
    socket.sandbox.cut_socket()
    sent, event, ledger = await socket.ask("while deaf")
    assert event.text == "while deaf"
    await insist(socket.reply(event, ledger), done("heard"))
    await socket.shows(sent, "heard")


@pytest.mark.parametrize("settings", [{"kicked": "zombie"}, {"drop_equal_final": True}, {"late_frames": "silent"}, {"pong": "cmd"}, {"ack_delay_s": 0.05}])  # fmt: skip
async def test_the_moods_of_the_gateway(settings: dict[str, Any]) -> None:
    async with stand_on("websocket", **settings) as made:
        sent, event, ledger = await made.ask()
        reply = made.reply(event, ledger)
        await made.adapter.show_alive(event.target)
        await insist(reply, grow("same"))
        if "kicked" in settings:
            await made.sandbox.kick()
        await insist(reply, done("same"))
        assert [text.strip("\u200b") for text in made.seen(sent)] == ["same"]
        assert made.sandbox.violations == []


async def test_ten_answers_at_once(socket: Stand) -> None:
    asked = [await socket.ask(f"q{n}") for n in range(10)]

    async def answer(event: InboundMessage, ledger: Ledger) -> None:
        reply = socket.reply(event, ledger)
        for end in range(1, 6):
            await insist(reply, grow(f"{event.text} " * end, end))
        await insist(reply, done(f"{event.text} done"))

    events = [await socket.message(n + 1) for n in range(10)]
    await asyncio.gather(*(answer(event, ledger) for event, (_, _, ledger) in zip(events, asked, strict=True)))  # fmt: skip
    assert [socket.seen(sent) for sent, _, _ in asked] == [[f"q{n} done"] for n in range(10)]


# -- app --------------------------------------------------------------------------------------------------------------
async def test_an_untrusted_address_is_named(app: Stand) -> None:
    app.sandbox.trust_ips("198.51.100.1")
    _, event, ledger = await app.ask()
    with pytest.raises(GiveUp, match=r"127\.0\.0\.1 is not among the app's trusted IPs"):
        await insist(app.reply(event, ledger), done("x"))
    assert "127.0.0.1" in app.adapter.health()["error"]
    assert ledger.parts()[-1].state is not PartState.CLOSED


async def test_a_dead_token_is_replaced(app: Stand) -> None:
    sent, event, ledger = await app.ask()
    app.sandbox.tokens.revoke()
    await insist(app.reply(event, ledger), done("answer"))
    await app.shows(sent, "answer")
