"""The Feishu adapter against the strict sandbox, over real sockets: signed webhooks in, CardKit out.

Both were written apart from feishu.md; where they disagree, one of them misread it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from aiohttp import web

from bot.config import FeishuBotConfig
from bot.domain.types import (
    BotAdded,
    ButtonPressed,
    ChatKind,
    InboundEvent,
    InboundMessage,
    MessageRecalled,
    Outcome,
    Quoted,
    ReplyPart,
    Unreadable,
)
from bot.errors import Ambiguous, GiveUp, Rejected, RetryLater, TargetGone, TooLarge
from bot.platforms.base import Button, ReplyDriver, ReplyView, WebhookRequest
from bot.platforms.budget import MemoryBudget
from bot.platforms.feishu import FeishuAdapter, open_adapter
from bot.platforms.feishu.errors import SlowDown
from bot.platforms.http import SharedHttp, Token
from bot.sandbox.feishu import (
    FeishuSandbox,
    Limits,
    Message,
    SandboxConfig,
    envelope_v1,
    visible_text,
)

STOP, AGAIN, FRESH = (
    Button("stop", "停止"),
    Button("regenerate", "重新回答"),
    Button("new_topic", "新话题"),
)


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
    """Sandbox, adapter, and a webhook server between them that stores what came in."""

    sandbox: FeishuSandbox
    adapter: FeishuAdapter
    events: list[InboundEvent]
    statuses: list[int]

    async def ask(self, text: Any = "hello", **options: Any) -> tuple[Any, InboundMessage, Ledger]:
        user = self.sandbox.add_user("Ann")
        chat = self.sandbox.add_group("G", [user])
        sent = await self.sandbox.say(chat, user, text, **options)
        event = self.events[-1]
        assert isinstance(event, InboundMessage)
        return sent, event, Ledger(f"turn-{sent.id}")

    def reply(self, event: InboundMessage, ledger: Ledger) -> ReplyDriver:
        return self.adapter.open_reply(event.target, ledger)

    def seen(self, sent: Any) -> list[Message]:
        return self.sandbox.replies(sent)

    def only(self, sent: Any) -> Message:
        messages = self.seen(sent)
        assert len(messages) == 1
        return messages[0]

    def apis(self) -> list[str]:
        return [
            call.api for call in self.sandbox.calls if call.api not in {"auth.token", "bot.info"}
        ]


async def serve(
    adapter: FeishuAdapter, events: list[InboundEvent], statuses: list[int]
) -> web.AppRunner:
    async def webhook(request: web.Request) -> web.Response:
        headers = {key.lower(): value for key, value in request.headers.items()}
        try:
            received = adapter.receive(
                WebhookRequest(request.method, headers, {}, await request.read())
            )
        except Rejected as error:
            statuses.append(error.status)
            return web.Response(status=error.status)
        events.extend(received.events)
        statuses.append(received.reply.status)
        reply = received.reply
        if received.events and isinstance(received.events[0], ButtonPressed):
            reply = adapter.button_reply("好的")
        return web.json_response(reply.body, status=reply.status)

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/webhook/feishu", webhook)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


async def stand_on(config: SandboxConfig, **bot: Any) -> AsyncIterator[Stand]:
    async with FeishuSandbox(config) as sandbox:
        http = SharedHttp()
        await http.start()
        bot_config = FeishuBotConfig(
            platform="feishu", app_id=config.app_id, app_secret=config.app_secret, encrypt_key=config.encrypt_key,
            verification_token=config.verification_token, api_base=sandbox.base_url, **bot,
        )  # fmt: skip
        adapter = open_adapter("feishu", bot_config, http, MemoryBudget(bot_config.monthly_calls))
        await adapter.start()
        events: list[InboundEvent] = []
        statuses: list[int] = []
        runner = await serve(adapter, events, statuses)
        host, port = runner.addresses[0][:2]
        sandbox.subscribe(f"http://{host}:{port}/webhook/feishu")
        yield Stand(sandbox, adapter, events, statuses)
        await adapter.close()
        await runner.cleanup()
        await http.close()


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async for made in stand_on(SandboxConfig()):
        yield made
        assert made.sandbox.violations == []


def grow(text: str, rev: int = 1, **more: Any) -> ReplyView:
    return ReplyView(rev, text, **{"buttons": (STOP,), "possible_repeat": "(可能重复)", **more})


def done(text: str, rev: int = 99, outcome: Outcome = Outcome.COMPLETE, **more: Any) -> ReplyView:
    return ReplyView(
        rev,
        text,
        outcome=outcome,
        **{"buttons": (AGAIN, FRESH), "possible_repeat": "(可能重复)", **more},
    )


async def insist(reply: ReplyDriver, view: ReplyView) -> None:
    """As the streamer does: again after what may be repeated, with the wait that was asked for."""
    for _ in range(20):
        try:
            await (reply.show(view) if view.outcome is Outcome.GROWING else reply.finish(view))
        except RetryLater as error:
            await asyncio.sleep(min(error.after_s, 1.2) if isinstance(error, SlowDown) else 0.02)
        except Ambiguous:
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError("never done")


# -- in ---------------------------------------------------------------------------------------------------------------
async def test_the_console_accepts_the_url(stand: Stand) -> None:
    assert await stand.sandbox.url_check()
    assert stand.events == []


async def test_events_arrive_as_ours(stand: Stand) -> None:
    sent, event, _ = await stand.ask(
        "@Bob and @Hearth eat", mentions=[stand.sandbox.add_user("Bob")]
    )
    assert (event.text, event.mentions_bot, event.message_id) == ("@Bob and eat", True, sent.id)
    ann = stand.sandbox.add_user("Ann")
    await stand.sandbox.say(stand.sandbox.direct_chat(ann), ann, "hi")
    direct = stand.events[-1]
    assert isinstance(direct, InboundMessage)
    assert (direct.chat_kind, direct.text) == (ChatKind.DIRECT, "hi")
    topics = stand.sandbox.add_group("T", [ann], topic=True)
    await stand.sandbox.say(
        topics, ann, {"title": "T", "content": [[{"tag": "text", "text": " post"}]]}
    )
    post = stand.events[-1]
    assert isinstance(post, InboundMessage)
    assert post.topic_id
    assert post.mentions_bot
    assert "post" in post.text
    await stand.sandbox.say(topics, ann, {"image_key": "img_x"}, message_type="image", deliver=True)
    image = stand.events[-1]
    assert isinstance(image, InboundMessage)
    assert image.attachments[0].kind == "image"
    await stand.sandbox.say(
        topics, ann, "dinner", mention_bot=False, mention_all=True, deliver=True
    )
    everybody = stand.events[-1]
    assert isinstance(everybody, InboundMessage)
    assert not everybody.mentions_bot
    assert everybody.text
    await stand.sandbox.recall(sent)
    assert isinstance(stand.events[-1], MessageRecalled)
    await stand.sandbox.bot_added(topics, ann)
    assert isinstance(stand.events[-1], BotAdded)
    await stand.sandbox.bot_removed(topics, ann)
    assert isinstance(stand.events[-1], Unreadable)
    old = envelope_v1(stand.sandbox.config, "message", {"text": "x"})
    push = await stand.sandbox.send_event(old, retry=False)
    assert push.acked
    assert set(stand.statuses) == {200}


async def test_a_redelivery_has_the_same_key(stand: Stand) -> None:
    sent, event, _ = await stand.ask()
    await stand.sandbox.redeliver(sent, new_event_id=True)
    again = stand.events[-1]
    assert isinstance(again, InboundMessage)
    assert again.dedupe_key == event.dedupe_key


async def test_forgeries_are_refused(stand: Stand) -> None:
    _, _, _ = await stand.ask()
    body = stand.sandbox.records.pushes[-1].body
    headers = stand.sandbox.courier.signed_headers(body)
    count = len(stand.events)
    assert (await stand.sandbox.post_raw(body)).status == 401
    assert (await stand.sandbox.post_raw(body + b" ", headers)).status == 401
    assert (
        await stand.sandbox.post_raw(b"junk", stand.sandbox.courier.signed_headers(b"junk"))
    ).status == 400
    assert (await stand.sandbox.post_raw(b" " * 2**20)).status == 401
    assert len(stand.events) == count


# -- out --------------------------------------------------------------------------------------------------------------
async def test_a_card_grows_and_closes(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    reply = stand.reply(event, ledger)
    await reply.prepare()
    text = "# 标题\n\n- one\n  - two\n\n```py\nprint('<at id=all></at>')\n```\n\n<at id=all></at> ![x](http://y) **end**"
    for rev, end in enumerate(range(3, len(text), 9), 1):
        await insist(reply, grow(text[:end], rev))
        card = stand.only(sent).card
        assert card is not None
        assert card.streaming
        assert [b["text"]["content"] for b in card.buttons] == ["停止"]
    await insist(reply, done(text, summary="标题"))
    card = stand.only(sent).card
    assert card is not None
    assert not card.streaming
    assert card.closed_by_app
    assert card.summary == "标题"
    assert [b["text"]["content"] for b in card.buttons] == ["重新回答", "新话题"]
    assert "**end**" in card.text
    sequences = [op.sequence for op in card.ops]
    assert sequences == sorted(set(sequences))
    assert all(op.code == 0 for op in card.ops)


async def test_a_status_then_the_answer(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    reply = stand.reply(event, ledger)
    await insist(reply, grow("", status="第 3 位"))
    await insist(reply, grow("", 2, status="第 2 位"))
    assert visible_text(stand.only(sent)) == "第 2 位"
    await insist(reply, grow("答", 3))
    await insist(reply, grow("答案", 4))
    await insist(reply, done("答案。"))
    assert visible_text(stand.only(sent)) == "答案。"


async def test_a_short_answer_is_one_call(stand: Stand) -> None:
    sent, event, ledger = await stand.ask("/help")
    before = len(stand.apis())
    await insist(stand.reply(event, ledger), done("**help**", buttons=()))
    assert stand.apis()[before:] == ["message.reply"]
    assert visible_text(stand.only(sent)) == "**help**"


async def test_a_greeting_goes_to_the_chat(stand: Stand) -> None:
    ann = stand.sandbox.add_user("Ann")
    group = stand.sandbox.add_group("G", [ann])
    await stand.sandbox.bot_added(group, ann)
    event = stand.events[-1]
    assert isinstance(event, BotAdded)
    await insist(
        stand.adapter.open_reply(event.target, Ledger("greet")), done("大家好", buttons=())
    )
    assert [visible_text(message) for message in stand.sandbox.messages(group)] == ["大家好"]


async def test_a_click_on_a_streaming_card(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    reply = stand.reply(event, ledger)
    await insist(reply, grow("half"))
    user = sent.message.sender
    pressed = await stand.sandbox.press(stand.only(sent), "stop", user)
    assert pressed.code == 0
    assert pressed.toast is not None
    click = stand.events[-1]
    assert isinstance(click, ButtonPressed)
    assert (click.action, click.turn_id, click.operator_id) == ("stop", ledger.turn_id, user.id)
    assert click.message_id == stand.only(sent).id
    await insist(reply, done("half", outcome=Outcome.STOPPED, notice="已停止。"))
    assert visible_text(stand.only(sent)) == "half\n\n已停止。"


async def test_a_recalled_question(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    await stand.sandbox.recall(sent)
    with pytest.raises(TargetGone):
        await insist(stand.reply(event, ledger), grow("x"))
    assert stand.seen(sent) == []
    sent, event, ledger = await stand.ask()
    reply = stand.reply(event, ledger)
    await insist(reply, grow("half"))
    await stand.sandbox.recall(sent)
    await insist(reply, done("half more", outcome=Outcome.SILENT, buttons=()))
    assert visible_text(stand.only(sent)) == "half"


async def test_signs_of_life(stand: Stand) -> None:
    sent, event, _ = await stand.ask()
    token = await stand.adapter.show_alive(event.target)
    assert [reaction.emoji for reaction in sent.message.reactions] == ["Typing"]
    await stand.adapter.clear_alive(event.target, token)
    assert sent.message.reactions == []


APIS = [
    "card.create",
    "message.reply",
    "card.update",
    "card.content",
    "card.settings",
    "element.update",
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("fault", ["gateway", "rate", "before", "after", "token", "clicking"])
async def test_any_fault_ends_in_one_whole_answer(stand: Stand, api: str, fault: str) -> None:
    sent, event, ledger = await stand.ask()
    faults = stand.sandbox.faults
    if fault == "gateway":
        faults.bad_gateway(api, 2)
    elif fault == "rate":
        faults.rate_limit(api, 1, reset_s=1.0)
    elif fault in {"before", "after"}:
        faults.drop(api, 2, after=fault == "after")
    else:
        faults.refuse(api, 99991663 if fault == "token" else 200810)
    reply = stand.reply(event, ledger)
    await reply.prepare()
    for rev, text in enumerate(["one", "one two"], 1):
        await insist(reply, grow(text, rev))
    await insist(reply, done("one two three four"))
    message = stand.only(sent)
    assert visible_text(message) == "one two three four"
    assert message.card is not None
    assert not message.card.streaming


@pytest.mark.parametrize("tables", [1, 4, 6, 12])
async def test_many_tables(stand: Stand, tables: int) -> None:
    """cases B10: always delivered; what is over the limit becomes text; a table in a code block does not count."""
    text = "```\n| in | code |\n|---|---|\n```\n\n" + "\n".join(
        f"| t{n} | b |\n|---|---|\n| 1 | 2 |\n" for n in range(tables)
    )
    sent, event, ledger = await stand.ask()
    reply = stand.reply(event, ledger)
    for end in range(20, len(text), 80):
        await insist(reply, grow(text[:end], end))
    await insist(reply, done(text, 10**6))
    shown = "\n".join(visible_text(message) for message in stand.seen(sent))
    assert all(f"| t{n} | b |" in shown for n in range(tables))


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_very_long_answer(stand: Stand, streamed: bool) -> None:
    text = "".join(f"第{n}段：" + '很长的段落，"quoted"<b>。' * 12 + "\n\n" for n in range(200))
    sent, event, ledger = await stand.ask()
    reply = stand.reply(event, ledger)
    for end in range(2000, len(text), 9000) if streamed else ():
        await insist(reply, grow(text[:end], end))
    await insist(reply, done(text, 10**6))
    messages = stand.seen(sent)
    assert len(messages) >= 3
    shown = "".join(visible_text(message) for message in messages).replace("&#60;", "<")
    assert shown.replace("\n", "") == text.replace("\n", "")
    assert [bool(message.card and message.card.buttons) for message in messages] == [False] * (
        len(messages) - 1
    ) + [True]


async def test_the_chain_of_simpler_messages(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    stand.sandbox.faults.refuse("card.create", 99991672)
    reply = stand.reply(event, ledger)
    await insist(reply, grow("one"))
    await insist(reply, grow("one two"))
    await insist(reply, done("one two three"))
    assert visible_text(stand.only(sent)) == "one two three"
    assert stand.apis()[-3:] == ["message.reply", "message.patch", "message.patch"]
    for codes, kind in (([230001], "post"), ([230001, 230001], "text")):
        sent, event, ledger = await stand.ask()
        for refused in codes:
            stand.sandbox.faults.refuse("message.reply", refused)
        await insist(stand.reply(event, ledger), done('x <at user_id="all">all</at> y'))
        assert stand.only(sent).kind == kind


async def test_a_process_that_takes_over(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    await insist(stand.reply(event, ledger), grow("one"))
    second = stand.reply(event, ledger)
    await insist(second, grow("one two"))
    await insist(stand.reply(event, ledger), done("one two three"))
    await insist(stand.reply(event, ledger), done("one two three"))
    assert visible_text(stand.only(sent)) == "one two three"


async def test_a_send_whose_answer_was_lost_with_the_process(stand: Stand) -> None:
    sent, event, ledger = await stand.ask()
    stand.sandbox.faults.drop("message.reply", after=True)
    reply = stand.reply(event, ledger)
    await reply.prepare()
    with pytest.raises(Ambiguous):
        await reply.show(grow("one"))
    await insist(stand.reply(event, ledger), done("one two"))
    assert visible_text(stand.only(sent)) == "one two"


@pytest.mark.parametrize("late", ["error", "silent"])
async def test_streaming_that_times_out(late: Any) -> None:
    """cases B6, with streaming that ends after 0.3 s instead of 10 min: by refusal and in silence."""
    config = replace(SandboxConfig(), limits=replace(Limits(), streaming_s=0.3), late_updates=late)
    async for stand in stand_on(config):
        sent, event, ledger = await stand.ask()
        reply = stand.reply(event, ledger)
        await insist(reply, grow("one"))
        await asyncio.sleep(0.35)
        await insist(reply, grow("one two", 2))
        if late == "error":
            assert visible_text(stand.only(sent)) == "one two"
        await insist(stand.reply(event, ledger), done("one two three"))
        assert visible_text(stand.only(sent)) == "one two three"
        assert stand.sandbox.violations == []


async def test_a_short_lived_token_is_never_waited_for() -> None:
    """cases F10."""
    async for stand in stand_on(replace(SandboxConfig(), token_ttl_s=2.0)):
        _, event, ledger = await stand.ask()
        reply = stand.reply(event, ledger)
        loop = asyncio.get_running_loop()
        text = "x"
        begin = loop.time()
        while loop.time() - begin < 3.0:
            text += " x"
            await reply.show(grow(text))
            await asyncio.sleep(0.2)
        await insist(reply, done(text))
        refused = [call for call in stand.sandbox.calls if call.code in {99991663, 99991661}]
        assert refused == []
        assert len([call for call in stand.sandbox.calls if call.api == "auth.token"]) <= 4


async def test_ten_answers_at_once_stay_under_the_limits(stand: Stand) -> None:
    """cases B2: one limiter for the app; nobody sees an error, every answer is whole."""
    asked = [await stand.ask(f"q{n}") for n in range(10)]

    async def answer(event: InboundMessage, ledger: Ledger) -> None:
        reply = stand.reply(event, ledger)
        await reply.prepare()
        for n in range(1, 9):
            await insist(reply, grow("word " * n, n))
        await insist(reply, done("word " * 9 + "end"))

    async with asyncio.TaskGroup() as group:
        for _, event, ledger in asked:
            group.create_task(answer(event, ledger))
    for sent, _, _ in asked:
        assert visible_text(stand.only(sent)).endswith("end")
    refused = {call.code for call in stand.sandbox.calls} - {0}
    assert refused <= {
        99991400,
        230020,
    }  # a machine that stalls may bunch calls up; nothing else may be refused


async def test_files_are_fetched_by_their_message_and_key(stand: Stand) -> None:
    data = b'{"code": 1, "msg": "this is a file, not a refusal"}'
    stored = stand.sandbox.add_file("notes.json", data)
    content = {"file_key": stored.key, "file_name": stored.name}
    user = stand.sandbox.add_user("Ann")
    direct = stand.sandbox.direct_chat(user)
    await stand.sandbox.say(direct, user, content, message_type="file")
    event = stand.events[-1]
    assert isinstance(event, InboundMessage)
    attachment = event.attachments[0]
    assert (attachment.kind, attachment.name) == ("file", "notes.json")
    stand.adapter.client.tokens._token = Token("t-refused", 9e9)  # replaced once here, too
    assert await stand.adapter.fetch(attachment, event.target, max_bytes=len(data)) == data
    with pytest.raises(TooLarge):
        await stand.adapter.fetch(attachment, event.target, max_bytes=len(data) - 1)
    elsewhere = replace(event.target, reply_to="om_other")
    for wrong, target in ((replace(attachment, remote_key="x"), event.target), (attachment, elsewhere)):  # fmt: skip
        with pytest.raises((GiveUp, TargetGone)):
            await stand.adapter.fetch(wrong, target, max_bytes=99)
    await stand.sandbox.say(direct, user, {"file_key": stored.key}, message_type="sticker")
    sticker = stand.events[-1]
    assert isinstance(sticker, InboundMessage)
    with pytest.raises(GiveUp):
        await stand.adapter.fetch(sticker.attachments[0], sticker.target, max_bytes=99)


async def test_a_pasted_screenshot_is_fetched_as_an_image(stand: Stand) -> None:
    stored = stand.sandbox.add_file("", b"\x89PNG", is_image=True)
    user = stand.sandbox.add_user("Ann")
    content = {"content": [[{"tag": "img", "image_key": stored.key}]]}
    await stand.sandbox.say(stand.sandbox.direct_chat(user), user, content)
    event = stand.events[-1]
    assert isinstance(event, InboundMessage)
    assert await stand.adapter.fetch(event.attachments[0], event.target, max_bytes=99) == b"\x89PNG"


async def test_what_a_question_answers_is_looked_up(stand: Stand) -> None:
    """The event names the message only; a file in it is fetched by the message that brought it."""
    ann, bob = stand.sandbox.add_user("Ann"), stand.sandbox.add_user("Bob")
    chat = stand.sandbox.add_group("G", [ann, bob])
    said = await stand.sandbox.say(chat, bob, "@Ann the budget is 7", False, mentions=[ann])
    await stand.sandbox.say(chat, ann, "agreed?", reply_to=said.message)
    event = stand.events[-1]
    assert isinstance(event, InboundMessage)
    assert (event.text, event.quoted) == ("agreed?", Quoted(said.id))
    assert event.quoted is not None
    found = await stand.adapter.look_up(event.quoted, event.target)
    assert found == Quoted(said.id, "@Ann the budget is 7")
    stored = stand.sandbox.add_file("plan.txt", b"the plan")
    file = await stand.sandbox.say(
        chat, bob, {"file_key": stored.key, "file_name": stored.name}, False, message_type="file"
    )
    found = await stand.adapter.look_up(Quoted(file.id), event.target)
    assert found is not None
    (attachment,) = found.attachments
    target = replace(event.target, reply_to=attachment.message_id)
    assert await stand.adapter.fetch(attachment, target, max_bytes=99) == b"the plan"
    await stand.sandbox.recall(said)
    assert await stand.adapter.look_up(event.quoted, event.target) is None
    assert await stand.adapter.look_up(Quoted("om_nowhere"), event.target) is None
    elsewhere = replace(event.target, chat_id="oc_other")
    assert await stand.adapter.look_up(Quoted(file.id), elsewhere) is None
