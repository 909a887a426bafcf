"""The DingTalk adapter against the strict sandbox, over real sockets: webhooks or the stream in, cards or messages out.

Both were written apart from dingtalk.md; where they disagree, one of them misread it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from bot.config import DingTalkBotConfig
from bot.domain.types import (
    ButtonPressed,
    ChatKind,
    InboundEvent,
    InboundMessage,
    Outcome,
    Quoted,
    ReplyPart,
    Unreadable,
)
from bot.errors import Ambiguous, GiveUp, Rejected, RetryLater, TargetGone, TooLarge
from bot.platforms.base import Button, ReplyDriver, ReplyView, WebhookReply, WebhookRequest
from bot.platforms.budget import MemoryBudget
from bot.platforms.dingtalk import DingTalkAdapter, open_adapter
from bot.platforms.dingtalk.errors import SlowDown
from bot.platforms.dingtalk.longconn import StreamListener
from bot.platforms.http import SharedHttp
from bot.platforms.limits import RateLimiter
from bot.sandbox.dingtalk import (
    DEFAULT_TEMPLATE,
    DingTalkSandbox,
    Fault,
    Faults,
    Limits,
    Message,
    SandboxConfig,
    SentMessage,
    Template,
    visible_text,
)

STOP, AGAIN, FRESH = (
    Button("stop", "停止"),
    Button("regenerate", "重新回答"),
    Button("new_topic", "新话题"),
)
CARDS = {"card_template": DEFAULT_TEMPLATE, "card_buttons_key": "buttons"}


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
    """Sandbox, adapter, and what takes the events between them: a webhook server, or the adapter's stream."""

    sandbox: DingTalkSandbox
    adapter: DingTalkAdapter
    events: list[InboundEvent] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    n_turns: int = 0

    async def sink(self, events: tuple[InboundEvent, ...]) -> WebhookReply | None:
        self.events.extend(events)
        if any(isinstance(event, ButtonPressed) for event in events):
            return self.adapter.button_reply("好的")
        return None

    async def ask(self, text: Any = "hello", *, direct: bool = False, **options: Any) -> Any:
        user = self.sandbox.add_user("Ann", outside=options.pop("outside", False))
        chat = self.sandbox.direct_chat(user) if direct else self.sandbox.add_group("G", [user])
        sent = await self.sandbox.say(chat, user, text, **options)
        event = self.events[-1]
        assert isinstance(event, InboundMessage)
        self.n_turns += 1
        return sent, event, Ledger(f"turn{self.n_turns:04d}")

    def reply(self, event: InboundMessage, ledger: Ledger) -> ReplyDriver:
        return self.adapter.open_reply(event.target, ledger)

    def seen(self, sent: SentMessage) -> list[Message]:
        return self.sandbox.replies(sent)

    def only(self, sent: SentMessage) -> Message:
        messages = self.seen(sent)
        assert len(messages) == 1
        return messages[0]

    def apis(self) -> list[str]:
        aside = {"token.app_key", "gateway.open", "card.register_callback"}
        return [call.api for call in self.sandbox.calls if call.api not in aside]

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.005)


async def webhook_server(stand: Stand) -> web.AppRunner:
    async def webhook(request: web.Request) -> web.Response:
        headers = {key.lower(): value for key, value in request.headers.items()}
        try:
            received = stand.adapter.receive(
                WebhookRequest(request.method, headers, {}, await request.read())
            )
        except Rejected as error:
            stand.statuses.append(error.status)
            return web.Response(status=error.status)
        reply = await stand.sink(received.events) or received.reply
        stand.statuses.append(reply.status)
        if isinstance(reply.body, str):
            return web.Response(status=reply.status, text=reply.body)
        return web.json_response(reply.body, status=reply.status)

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/webhook/ding", webhook)
    app.router.add_route("*", "/webhook/ding/card", webhook)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


def hurried(times: float) -> RateLimiter:
    """The same limits in a time that runs faster: one answer alone never comes near the platform's own."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / times)

    return RateLimiter(clock=lambda: time.monotonic() * times, sleep=sleep)


async def stand_on(
    config: SandboxConfig | None = None,
    mode: str = "webhook",
    pace: float = 20.0,
    faults: Faults | None = None,
    **bot: Any,
) -> AsyncIterator[Stand]:
    config = config or SandboxConfig()
    async with DingTalkSandbox(config, faults=faults) as sandbox:
        http = SharedHttp()
        await http.start()
        server: web.AppRunner | None = None
        stand = Stand(sandbox, None)  # type: ignore[arg-type]
        if mode == "webhook":
            server = await webhook_server(stand)
            url = f"http://127.0.0.1:{server.addresses[0][1]}/webhook/ding"
            sandbox.subscribe(url)
            bot = {"card_callback_url": f"{url}/card", **bot}
        settings: dict[str, Any] = {
            "platform": "dingtalk", "mode": mode, "client_id": config.client_id, "client_secret": config.client_secret,
            "api_base": sandbox.base_url, "oapi_base": sandbox.base_url, **CARDS, **bot,
        }  # fmt: skip
        bot_config = DingTalkBotConfig(**settings)
        adapter = open_adapter("ding", bot_config, http, MemoryBudget(bot_config.monthly_calls))
        adapter.client.limiter = hurried(pace)
        stand.adapter = adapter
        if adapter.stream is not None:
            adapter.stream = StreamListener(
                adapter.client, (config.client_id, config.client_secret), cards=True,
                heartbeat_s=0.6, first_pause_s=0.05,
            )  # fmt: skip
        await adapter.start()
        await adapter.listen(stand.sink)
        if mode == "webhook":
            await stand.until(lambda: "buttons" not in adapter.health())
        else:
            await stand.until(lambda: sandbox.gateway.connections)
        yield stand
        await adapter.close()
        if server is not None:
            await server.cleanup()
        await http.close()


@pytest.fixture(params=["webhook", "stream"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async for made in stand_on(mode=request.param):
        yield made
        assert made.sandbox.violations == []


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async for made in stand_on():
        yield made
        assert made.sandbox.violations == []


@pytest.fixture
async def plain() -> AsyncIterator[Stand]:
    """Without a card template."""
    async for made in stand_on(card_template=""):
        yield made
        assert made.sandbox.violations == []


def grow(text: str, rev: int = 1, **more: Any) -> ReplyView:
    return ReplyView(rev, text, **{"buttons": (STOP,), "possible_repeat": "(可能重复)", **more})


def done(text: str, rev: int = 99, outcome: Outcome = Outcome.COMPLETE, **more: Any) -> ReplyView:
    fields = {"buttons": (AGAIN, FRESH), "possible_repeat": "(可能重复)", "refused": "抱歉。", **more}  # fmt: skip
    return ReplyView(rev, text, outcome=outcome, **fields)


async def insist(reply: ReplyDriver, view: ReplyView) -> None:
    """As the streamer does: again after what may be repeated, with the wait that was asked for."""
    for _ in range(20):
        try:
            await (reply.show(view) if view.outcome is Outcome.GROWING else reply.finish(view))
        except RetryLater as error:
            await asyncio.sleep(min(error.after_s, 0.8) if isinstance(error, SlowDown) else 0.02)
        except Ambiguous:
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError("never done")


def bare(text: str) -> str:
    """Without what no person sees, and without the asker's name."""
    return text.replace("\u200b", "").replace("  \n", "\n")


def body_of(message: Message) -> str:
    """The text of a message behind the mention of the asker."""
    text = bare(visible_text(message))
    head, _, rest = text.partition("\n\n")
    return rest if head.startswith("@") else text


# -- in ---------------------------------------------------------------------------------------------------------------
async def test_messages_arrive_as_ours(either: Stand) -> None:
    stand = either
    ann = stand.sandbox.add_user("Ann")
    group = stand.sandbox.add_group("G", [ann])
    sent = await stand.sandbox.say(group, ann, "吃什么", mentions=[stand.sandbox.add_user("Bob")])
    assert sent.acked
    event = stand.events[-1]
    assert isinstance(event, InboundMessage)
    assert (event.text, event.mentions_bot, event.message_id) == ("吃什么", True, sent.id)
    assert (event.sender.user_id, event.sender.name) == (ann.staff_id, "Ann")
    direct = stand.sandbox.direct_chat(ann)
    quoting = await stand.sandbox.say(direct, ann, "why", reply_to=sent.message)
    assert quoting.acked
    event = stand.events[-1]
    assert isinstance(event, InboundMessage)
    assert (event.chat_kind, event.text) == (ChatKind.DIRECT, "why")
    assert event.quoted is not None
    assert event.quoted.text == "吃什么"
    rich = {"richText": [{"text": "look"}, {"type": "picture", "downloadCode": "c"}]}
    await stand.sandbox.say(group, ann, rich)
    event = stand.events[-1]
    assert isinstance(event, InboundMessage)
    assert (event.text, event.attachments[0].kind) == ("look", "image")
    for kind, content, expected in (
        ("audio", {"recognition": "说的", "downloadCode": "d", "duration": 1}, "说的"),
        ("file", {"downloadCode": "d", "fileName": "a.txt"}, ""),
        ("video", {"downloadCode": "d", "videoType": "mp4", "duration": 1}, ""),
    ):
        assert (await stand.sandbox.say(direct, ann, content, message_type=kind)).acked
        event = stand.events[-1]
        assert isinstance(event, InboundMessage)
        assert event.text == expected


async def test_a_redelivery_has_the_same_key(either: Stand) -> None:
    sent, event, _ = await either.ask()
    await either.sandbox.redeliver(sent)
    again = either.events[-1]
    assert isinstance(again, InboundMessage)
    assert again.dedupe_key == event.dedupe_key
    assert len(either.events) == 2


async def test_forgeries_are_refused(stand: Stand) -> None:
    await stand.ask()
    body = stand.sandbox.records.pushes[-1].body
    headers = stand.sandbox.courier.signed_headers()
    count = len(stand.events)
    assert (await stand.sandbox.post_raw(body)).status == 401
    assert (await stand.sandbox.post_raw(body, {**headers, "sign": "x"})).status == 401
    old = {**headers, "timestamp": str(int(headers["timestamp"]) - 400_000)}
    assert (await stand.sandbox.post_raw(body, old)).status == 401
    assert (await stand.sandbox.post_raw(b"junk", headers)).status == 400
    assert len(stand.events) == count


async def test_a_forged_webhook_is_not_answered(plain: Stand) -> None:
    sent, event, ledger = await plain.ask(foreign_webhook=True)
    await insist(plain.reply(event, ledger), done("geheim"))
    assert plain.apis() == ["robot.group_send"]
    assert body_of(plain.only(sent)) == "geheim"


async def test_the_message_quota_is_told() -> None:
    config = replace(SandboxConfig(), limits=replace(Limits(), monthly_messages=1))
    async for stand in stand_on(config):
        await stand.ask()
        ann = stand.sandbox.add_user("Ann")
        sent = await stand.sandbox.say(stand.sandbox.direct_chat(ann), ann, "hi")
        assert sent.acked
        assert isinstance(stand.events[-1], Unreadable)
        assert "quota" in stand.adapter.health()["error"]


# -- cards ------------------------------------------------------------------------------------------------------------
TEXT = "# 标题\n\n第一行\n第二行\n- one\n  - two\n\n```py\nprint('<a atId=x>')\n```\n\n<a atId=\"1\">x</a> ![x](http://y) **end**"


async def test_a_card_grows_and_closes(either: Stand) -> None:
    sent, event, ledger = await either.ask()
    reply = either.reply(event, ledger)
    await reply.prepare()
    for rev, end in enumerate(range(3, len(TEXT), 20), 1):
        await insist(reply, grow(TEXT[:end], rev))
        card = either.only(sent).card
        assert card is not None
        assert card.growing
        assert [button.text for button in card.buttons] == ["停止"]
    await insist(reply, done(TEXT))
    card = either.only(sent).card
    assert card is not None
    assert card.shown_state == "finished"
    assert card.kept_source == card.source
    assert [button.text for button in card.buttons] == ["重新回答", "新话题"]
    assert "第一行\n第二行" in card.text
    assert "**end**" in card.text
    assert all(op.code == "" for op in card.ops)
    assert card.shown.mentions == ()


async def test_a_card_in_a_chat_of_two(either: Stand) -> None:
    sent, event, ledger = await either.ask(direct=True)
    reply = either.reply(event, ledger)
    await insist(reply, grow("", status="第 3 位"))
    assert visible_text(either.only(sent)) == "第 3 位"
    await insist(reply, grow("答", 2))
    await insist(reply, done("答案。"))
    assert visible_text(either.only(sent)) == "答案。"


@pytest.mark.parametrize("action", ["stop", "regenerate"])
async def test_a_click(either: Stand, action: str) -> None:
    sent, event, ledger = await either.ask()
    reply = either.reply(event, ledger)
    await insist(reply, grow("half"))
    if action == "regenerate":
        await insist(reply, done("half and half"))
    user = sent.message.sender
    pressed = await either.sandbox.press(either.only(sent), action, user)
    assert pressed.error == ""
    click = either.events[-1]
    assert isinstance(click, ButtonPressed)
    assert (click.action, click.turn_id) == (action, ledger.turn_id)
    assert (click.operator_id, click.app_id) == (user.staff_id, event.app_id)
    if action == "stop":
        await insist(reply, done("half", outcome=Outcome.STOPPED, notice="已停止。"))
        assert visible_text(either.only(sent)) == "half\n\n已停止。"


async def test_a_template_with_a_flow_status() -> None:
    template = Template("flow.schema", "msgContent", flow_status=True)
    config = replace(SandboxConfig(), templates=(template,))
    bot = {"card_template": template.id, "card_content_key": template.key, "card_flow_status": True}
    async for stand in stand_on(config, **bot):
        sent, event, ledger = await stand.ask()
        reply = stand.reply(event, ledger)
        await insist(reply, grow("one"))
        await insist(reply, done("one two"))
        assert visible_text(stand.only(sent)) == "one two"
        assert stand.sandbox.violations == []


APIS = ["card.create_deliver", "card.stream", "card.update"]
FAULTS = ["gateway", "before", "after", "token", "busy", "concurrent"]


@pytest.mark.parametrize(
    ("api", "fault"), [*((api, fault) for api in APIS for fault in FAULTS), ("card.stream", "rate")]
)
async def test_any_fault_ends_in_one_whole_answer(stand: Stand, api: str, fault: str) -> None:
    sent, event, ledger = await stand.ask()
    faults = stand.sandbox.faults
    if fault == "gateway":
        faults.bad_gateway(api, 2)
    elif fault == "rate":
        faults.rate_limit(api, 1)
    elif fault in {"before", "after"}:
        faults.drop(api, 2, after=fault == "after")
    else:
        code, status = {
            "token": ("InvalidAuthentication", 401),
            "busy": ("system.busy", 503),
            "concurrent": ("Forbidden.AccessDenied.CardConcurrency", 403),
        }[fault]
        faults.refuse(api, code, status=status)
    reply = stand.reply(event, ledger)
    for rev, text in enumerate(["one", "one two"], 1):
        await insist(reply, grow(text, rev))
    await insist(reply, done("one two three four"))
    message = stand.only(sent)
    assert visible_text(message) == "one two three four"
    assert message.card is not None
    assert message.card.shown_state == "finished"


@pytest.mark.parametrize("reused", ["error", "silent"])
@pytest.mark.parametrize("restart", [True, False])
async def test_a_card_whose_making_was_lost(reused: Any, restart: bool) -> None:
    async for stand in stand_on(replace(SandboxConfig(), reused_track=reused)):
        sent, event, ledger = await stand.ask()
        stand.sandbox.faults.drop("card.create_deliver", after=True)
        reply = stand.reply(event, ledger)
        with pytest.raises(Ambiguous):
            await reply.show(grow("one"))
        await insist(stand.reply(event, ledger) if restart else reply, done("one two"))
        assert visible_text(stand.only(sent)) == "one two"
        assert stand.sandbox.violations == []


async def test_a_process_that_takes_over(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    await insist(stand.reply(event, ledger), grow("one"))
    await insist(stand.reply(event, ledger), grow("one two"))
    stand.sandbox.faults.drop("card.update", 2)
    with pytest.raises(Ambiguous):
        await stand.reply(event, ledger).finish(done("one two three"))
    await insist(stand.reply(event, ledger), done("one two three"))
    await insist(stand.reply(event, ledger), done("one two three"))
    assert visible_text(stand.only(sent)) == "one two three"


@pytest.mark.parametrize(
    ("sizes", "streamed"), [("field", True), ("documented", True), ("documented", False)]
)
async def test_a_very_long_answer(sizes: Any, streamed: bool) -> None:
    config = replace(SandboxConfig(), sizes=sizes)
    text = "".join(f"第{n}段：" + '很长的段落，"quoted"<b>。' * 9 + "\n\n" for n in range(52))
    async for stand in stand_on(config, documented=sizes == "documented"):
        sent, event, ledger = await stand.ask()
        reply = stand.reply(event, ledger)
        for end in range(1500, len(text), 1500) if streamed else ():
            await insist(reply, grow(text[:end], end))
        await insist(reply, done(text, 10**6))
        messages = stand.seen(sent)
        assert len(messages) >= 3
        shown = "".join(body_of(message) for message in messages)
        assert shown.replace("\n", "") == text.replace("\n", "")
        assert stand.sandbox.violations == []
        refused = {call.code for call in stand.sandbox.calls} - {0}
        assert refused == set()


class OneInFive(Faults):
    """Every fifth call fails, in turns by a gateway's page, a busy platform and a lost answer."""

    def __init__(self) -> None:
        super().__init__()
        self._n = 0

    def take(self, api: str) -> Fault | None:
        self._n += 1
        if self._n % 5 or api not in APIS:
            return super().take(api)
        turn = self._n // 5 % 3
        return (Fault(api, html=True, status=502), Fault(api, code="system.busy", status=503), Fault(api, drop="after"))[turn]  # fmt: skip


async def test_with_one_call_in_five_failing() -> None:
    async for stand in stand_on(faults=OneInFive()):
        for n in range(8):
            sent, event, ledger = await stand.ask()
            reply, text = stand.reply(event, ledger), f"words of {n}, " * 5 + "end"
            for end in range(4, 40, 6):
                await insist(reply, grow(text[:end], end))
            await insist(reply, done(text))
            message = stand.only(sent)
            assert visible_text(message) == text
            assert message.card is not None
            assert message.card.shown_state == "finished"
        assert stand.sandbox.violations == []


async def test_undelivered_cards_become_messages(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    sent.chat.has_bot = False
    reply = stand.reply(event, ledger)
    await insist(reply, grow("one"))
    sent.chat.has_bot = True
    await insist(reply, done("one two"))
    assert body_of(stand.only(sent)) == "one two"
    assert stand.apis() == ["card.create_deliver", "session.send"]


@pytest.mark.parametrize(
    "config",
    [
        replace(SandboxConfig(), templates=()),
        replace(SandboxConfig(), templates=(Template(published=False),)),
        replace(SandboxConfig(), scopes=frozenset({"qyapi_robot_sendmsg"})),
    ],
)
async def test_cards_that_cannot_work(config: SandboxConfig) -> None:
    async for stand in stand_on(config, mode="stream"):
        for n in range(2):
            sent, event, ledger = await stand.ask()
            reply = stand.reply(event, ledger)
            await insist(reply, grow("one"))
            await insist(reply, done("one two"))
            assert body_of(stand.only(sent)) == "one two"
            assert stand.apis().count("card.create_deliver") == 1, n
        assert stand.adapter.health()["cards"] != "streaming"
        assert stand.sandbox.violations == []


async def test_a_card_that_can_no_longer_be_written(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    reply = stand.reply(event, ledger)
    await insist(reply, grow("one"))
    stand.sandbox.faults.bad_gateway("card.stream", 5)
    await insist(reply, done("one two"))
    card, message = stand.seen(sent)
    assert body_of(message).endswith("one two")
    await stand.sandbox.recall(card)


async def test_unsafe_words() -> None:
    async for stand in stand_on(replace(SandboxConfig(), unsafe_words=frozenset({"schlecht"}))):
        sent, event, ledger = await stand.ask()
        reply = stand.reply(event, ledger)
        await insist(reply, grow("gut"))
        with pytest.raises(GiveUp):
            await insist(reply, done("gut schlecht"))
        assert visible_text(stand.only(sent)) == "gut\n\n抱歉。"
        assert stand.sandbox.violations == []


async def test_ten_answers_at_once_stay_under_the_limits() -> None:
    """One limiter for the app: nobody sees an error, every answer is whole, nothing is refused."""
    async for stand in stand_on(pace=1.0):
        await ten_answers(stand)
        assert stand.sandbox.violations == []


async def ten_answers(stand: Stand) -> None:
    asked = [await stand.ask(f"q{n}") for n in range(10)]

    async def answer(event: InboundMessage, ledger: Ledger) -> None:
        reply = stand.reply(event, ledger)
        await insist(reply, grow("word "))
        await insist(reply, done("word end"))

    async with asyncio.TaskGroup() as group:
        for _, event, ledger in asked:
            group.create_task(answer(event, ledger))
    for sent, _, _ in asked:
        assert visible_text(stand.only(sent)).endswith("end")
    assert {call.code for call in stand.sandbox.calls} == {0}


async def test_the_month_runs_out() -> None:
    config = replace(SandboxConfig(), limits=replace(Limits(), monthly_calls=6))
    async for stand in stand_on(config):
        for _ in range(3):
            sent, event, ledger = await stand.ask()
            reply = stand.reply(event, ledger)
            await insist(reply, grow("one"))
            await insist(reply, done("one two"))
            assert body_of(stand.seen(sent)[-1]).endswith("one two")
        assert "none is left" in stand.adapter.health()["calls_this_month"]


async def test_the_soft_cap() -> None:
    async for stand in stand_on(monthly_calls=5):
        kinds = []
        for _ in range(3):
            sent, event, ledger = await stand.ask()
            reply = stand.reply(event, ledger)
            await insist(reply, grow("one"))
            await insist(reply, done("one two"))
            assert body_of(stand.only(sent)) == "one two"
            kinds.append(stand.only(sent).by)
        assert kinds == ["card", "session", "session"]
        assert "80% of the month's calls are used" in stand.adapter.health()["cards"]


# -- messages ---------------------------------------------------------------------------------------------------------
async def test_without_a_template_one_message(plain: Stand) -> None:
    sent, event, ledger = await plain.ask()
    reply = plain.reply(event, ledger)
    await insist(reply, grow("one"))
    assert plain.seen(sent) == []
    await insist(reply, done("one\ntwo"))
    message = plain.only(sent)
    assert (body_of(message), message.by) == ("one\ntwo", "session")
    assert [user.name for user in message.pinged] == ["Ann"]
    assert plain.apis() == ["session.send"]


@pytest.mark.parametrize("direct", [True, False])
async def test_a_session_that_ends(plain: Stand, direct: bool) -> None:
    sent, event, ledger = await plain.ask(direct=direct, session_life_s=3.0)
    await insist(plain.reply(event, ledger), done("late"))
    message = plain.only(sent)
    assert (body_of(message), message.by) == ("late", "api")
    sent, event, ledger = await plain.ask(direct=direct)
    plain.sandbox.faults.refuse("session.send", 300001)
    await insist(plain.reply(event, ledger), done("late"))
    assert plain.only(sent).by == "api"


async def test_people_from_outside(plain: Stand) -> None:
    sent, event, ledger = await plain.ask(direct=True, outside=True)
    await insist(plain.reply(event, ledger), done("hi"))
    assert visible_text(plain.only(sent)) == "hi"
    _, event, ledger = await plain.ask(direct=True, outside=True, session_life_s=1.0)
    with pytest.raises(TargetGone):
        await insist(plain.reply(event, ledger), done("hi"))


@pytest.mark.parametrize("fault", ["gateway", "rate", "before", "after", "busy"])
async def test_faults_of_a_session(plain: Stand, fault: str) -> None:
    sent, event, ledger = await plain.ask()
    faults = plain.sandbox.faults
    if fault == "gateway":
        faults.bad_gateway("session.send", 2)
    elif fault == "rate":
        faults.refuse("session.send", 88)
    elif fault == "busy":
        faults.refuse("session.send", -1)
    else:
        faults.drop("session.send", after=fault == "after")
    await insist(plain.reply(event, ledger), done("whole"))
    messages = plain.seen(sent)
    assert len(messages) == (2 if fault == "after" else 1)
    assert body_of(messages[-1]).endswith("whole")
    assert ("可能重复" in visible_text(messages[-1])) is (fault in {"before", "after"})


# -- the stream -------------------------------------------------------------------------------------------------------
@pytest.fixture
async def streamed() -> AsyncIterator[Stand]:
    config = replace(SandboxConfig(), redelivery_s=(0.3, 1.0, 2.0), chatty=True)
    async for made in stand_on(config, mode="stream"):
        yield made
        assert made.sandbox.violations == []


async def test_acknowledged_within_a_second(streamed: Stand) -> None:
    sent, _, _ = await streamed.ask()
    assert sent.acked
    assert len(sent.attempts) == 1
    connections = streamed.sandbox.gateway.connections
    assert len(connections) == 1
    assert await streamed.sandbox.gateway.ping(connections[0])


@pytest.mark.parametrize("bad_day", ["cut", "freeze", "disconnect", "tickets"])
async def test_bad_days_of_the_stream(streamed: Stand, bad_day: str) -> None:
    sandbox, adapter = streamed.sandbox, streamed.adapter
    gateway = sandbox.gateway
    await streamed.ask("before")
    if bad_day == "disconnect":
        await gateway.disconnect()
    elif bad_day == "freeze":
        gateway.freeze()
    else:
        if bad_day == "tickets":
            sandbox.faults.bad_gateway("gateway.open", 2)
        gateway.cut()
        await streamed.until(lambda: "deaf_since" in adapter.health() or gateway.opened >= 2)
    await streamed.until(lambda: gateway.opened >= 2 and "connected_since" in adapter.health())
    ann = sandbox.add_user("Ann")
    sent = await sandbox.say(sandbox.direct_chat(ann), ann, "after")
    await streamed.until(lambda: sent.push is not None and any(a.ok for a in sent.push.attempts))
    heard = {event.text for event in streamed.events if isinstance(event, InboundMessage)}
    assert heard == {"before", "after"}
    assert len([c for c in gateway.connections if not c.draining and not c.frozen]) == 1


async def test_a_wrong_secret_is_told() -> None:
    async with DingTalkSandbox() as sandbox:
        http = SharedHttp()
        await http.start()
        config = DingTalkBotConfig(
            platform="dingtalk", client_id=sandbox.config.client_id, client_secret="wr0ng", api_base=sandbox.base_url,
            oapi_base=sandbox.base_url,
        )  # fmt: skip
        adapter = open_adapter("ding", config, http, MemoryBudget())
        stand = Stand(sandbox, adapter)
        await adapter.start()
        await adapter.listen(stand.sink)
        await stand.until(lambda: "stream_open" in adapter.health()["reason"])
        await stand.until(lambda: "client_secret is wrong" in adapter.health().get("error", ""))
        assert "wr0ng" not in str(adapter.health())
        await adapter.close()
        await http.close()


async def test_files_are_fetched_by_their_download_code(either: Stand) -> None:
    stored = either.sandbox.add_file("notes.txt", b"the bytes" * 99)
    content = {"downloadCode": stored.code, "fileName": stored.name}
    _, event, _ = await either.ask(content, direct=True, message_type="file")
    attachment = event.attachments[0]
    assert (attachment.kind, attachment.name) == ("file", "notes.txt")
    assert await either.adapter.fetch(attachment, event.target, max_bytes=891) == b"the bytes" * 99
    with pytest.raises(TooLarge):
        await either.adapter.fetch(attachment, event.target, max_bytes=890)
    unknown = replace(attachment, remote_key="unknown")
    with pytest.raises(GiveUp):
        await either.adapter.fetch(unknown, event.target, max_bytes=891)


async def test_an_address_that_leads_elsewhere_is_not_asked(either: Stand) -> None:
    stored = either.sandbox.add_file("notes.txt", b"x")
    content = {"downloadCode": stored.code, "fileName": stored.name}
    _, event, _ = await either.ask(content, direct=True, message_type="file")

    async def elsewhere(*_: object) -> str:
        return "http://127.0.0.1:1/files/x"

    either.adapter.api.file_url = elsewhere  # type: ignore[method-assign]
    with pytest.raises(GiveUp, match="may be asked"):
        await either.adapter.fetch(event.attachments[0], event.target, max_bytes=9)


async def test_what_a_question_answers_comes_with_it(either: Stand) -> None:
    first, _, _ = await either.ask("the budget is 7")
    _, quoting, _ = await either.ask("agreed?", reply_to=first.message)
    assert (quoting.text, quoting.quoted) == ("agreed?", Quoted(first.id, "the budget is 7"))
    stored = either.sandbox.add_file("plan.txt", b"the plan")
    content = {"downloadCode": stored.code, "fileName": stored.name}
    file, _, _ = await either.ask(content, direct=True, message_type="file")
    _, asked, _ = await either.ask("and this?", reply_to=file.message)
    (attachment,) = asked.quoted.attachments
    assert await either.adapter.fetch(attachment, asked.target, max_bytes=99) == b"the plan"
