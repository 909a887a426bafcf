"""Groups that are listened to: off by default, told to the group, bounded, and never of people who do not want it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bot.domain.catalogue import say
from bot.domain.listening import asks_what_was_missed
from bot.domain.types import Attachment, ChatKind, MessageRecalled, Sender
from bot.errors import GiveUp

GROUP = {"chat_kind": ChatKind.GROUP, "chat_id": "group"}
TALK = {**GROUP, "mentions_bot": False}
ASKED = {**GROUP, "mentions_bot": True}
BOB, CARL = Sender("bob", "Bob"), Sender("carl", "Carl")


def _listen(world, tools, *groups: str, session: str = "shared", **access) -> None:
    world.config = tools.make_config(
        chat={"listen": list(groups), "session": session}, access=access or {"per_user_per_minute": 0}
    )  # fmt: skip
    world.service.reload(world.config)


async def _kept(world) -> list[str]:
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    return [one.text for one in await world.store.heard("app", "group", long_ago, 100)]


async def _prompt(world, tools, said) -> str:
    await world.settled(said)
    return tools.text_of(world.engine.requests[-1])


async def test_by_default_nothing_is_kept_and_nothing_said(world, tools):
    await world.say("lunch at noon?", **TALK)
    assert (await _kept(world), world.adapter.replies) == ([], {})
    _listen(world, tools, "feishu:another")
    await world.say("lunch at one?", **TALK)
    await world.say("in private", chat_kind=ChatKind.DIRECT)
    assert await _kept(world) == []


async def test_the_group_is_told_once_before_anything_is_kept(world, tools):
    _listen(world, tools, "feishu:*")
    for n in range(3):
        await world.say(f"lunch {n}", **TALK)
    await tools.eventually(lambda: len(world.adapter.finals) == 1)
    assert "let me listen here" in world.adapter.finals[0]
    assert "/ignore me" in world.adapter.finals[0]
    assert await _kept(world) == ["lunch 0", "lunch 1", "lunch 2"]
    await world.service.close(1.0)
    await world.start()
    await world.say("lunch 3", **TALK)
    await tools.settle()
    assert len(world.adapter.finals) == 1, "also after a restart"


async def test_a_group_that_cannot_be_told_is_not_listened_to(world, tools, monkeypatch):
    _listen(world, tools, "feishu:*")
    world.adapter.errors = [GiveUp("muted")]
    await world.say("lunch?", **TALK)
    turn_ended = world.service.dispatcher
    await tools.eventually(lambda: not world.adapter.errors and not turn_ended.n_held)
    await world.say("dinner?", **TALK)
    assert (await _kept(world), world.adapter.finals) == ([], [])
    monkeypatch.setattr(world.service.inbox._listening, "_deaf_until_s", {})  # an hour later
    await world.say("breakfast?", **TALK)
    await tools.eventually(lambda: len(world.adapter.finals) == 1)
    assert await _kept(world) == ["breakfast?"]


async def test_the_talk_is_context_in_shared_conversations_only(world, tools):
    _listen(world, tools, "feishu:group")
    await world.say("the oven is broken", **TALK, sender=BOB)
    said = await world.say("what shall we do?", **ASKED)
    prompt = await _prompt(world, tools, said)
    assert "(Said in the group lately, not to you; for reference)\n- Bob (" in prompt
    assert "): the oven is broken\n\n[Ann] what shall we do?" in prompt
    again = await _prompt(world, tools, await world.say("sure?", **ASKED))
    assert again.count("the oven is broken") == 1, "beside the newest question only"
    _listen(world, tools, "feishu:group", session="per_user")
    own = await _prompt(world, tools, await world.say("what shall I do?", **ASKED))
    assert "the oven is broken" not in own


@pytest.mark.parametrize("session", ["shared", "per_user"])
@pytest.mark.parametrize("question", ["/missed", "what did I miss?"])
async def test_what_did_i_miss(world, tools, session, question):
    _listen(world, tools, "feishu:group", session=session)
    early = datetime.now(UTC) - timedelta(hours=2)
    await world.say("old news", **TALK, sender=BOB, sent_at=early)
    await world.say("I leave now", **TALK, sent_at=early + timedelta(minutes=1))
    await world.say("Carl, you bake", **TALK, sender=BOB, sent_at=early + timedelta(minutes=2))
    await world.say("fine", **TALK, sender=CARL, sent_at=early + timedelta(minutes=3))
    prompt = await _prompt(world, tools, await world.say(question, **ASKED))
    assert "): Carl, you bake\n- Carl (" in prompt
    assert "old news" not in prompt, "since the asker's last word"


async def test_status_says_that_it_listens(world, tools):
    assert "Listening" not in await world.answer(await world.say("/status", **ASKED))
    _listen(world, tools, "feishu:group")
    assert "Listening: on" in await world.answer(await world.say("/status", **ASKED))
    assert "Listening" not in await world.answer(await world.say("/status"))


async def test_where_nothing_is_known_it_is_said(world, tools):
    assert "do not listen" in await world.answer(await world.say("/missed", **ASKED))
    assert "do not listen" in await world.answer(await world.say("/missed"))
    _listen(world, tools, "feishu:group")
    assert "no talk" in await world.answer(await world.say("/missed", **ASKED))
    assert world.engine.requests == []


async def test_who_excludes_himself_is_erased_and_never_kept_again(world, tools):
    _listen(world, tools, "feishu:group")
    await world.say("my secret", **TALK, sender=BOB)
    await world.say("no secret", **TALK, sender=CARL)
    done = await world.say("/ignore me", **ASKED, sender=BOB)
    assert "1 messages were erased" in await world.answer(done)
    await world.say("my other secret", **TALK, sender=BOB)
    assert await _kept(world) == ["no secret"]
    assert "secret" not in (await _prompt(world, tools, await world.say("hm?", **ASKED))).replace("no secret", "")  # fmt: skip
    still = await world.say("but I may ask?", **ASKED, sender=BOB)
    assert await world.answer(still) == "Hello there"
    await world.answer(await world.say("/别记我 取消", sender=BOB))
    await world.say("public", **TALK, sender=BOB)
    assert await _kept(world) == ["no secret", "public"]
    assert "Usage" in await world.answer(await world.say("/ignore them"))


async def test_strangers_denied_people_and_bots_are_not_kept(world, tools):
    _listen(world, tools, "feishu:group", deny=["feishu:bob"], allow=["feishu:ann", "feishu:bob"])
    for sender in (BOB, CARL, Sender("robot", is_bot=True)):
        await world.say("psst", **TALK, sender=sender)
    assert await _kept(world) == []
    _listen(world, tools, "feishu:group")
    await world.say("psst", **TALK, sender=BOB)
    _listen(world, tools, "feishu:group", deny=["feishu:bob"])
    assert "psst" not in await _prompt(world, tools, await world.say("hm?", **ASKED))
    await world.service.timers._sweep_heard()
    assert await _kept(world) == []


async def test_taken_back_reset_and_forgotten_talk_goes(world, tools):
    _listen(world, tools, "feishu:group", admins=["feishu:ann"])
    oops = await world.say("oops", **TALK)
    gone = MessageRecalled("app", "r1", "r1", oops.message_id, "group")
    await world.service.inbox.accept("feishu", world.adapter, (gone,))
    assert await _kept(world) == []
    for command in ("/reset", "/forget yes"):
        await world.say("between us", **TALK)
        assert await _kept(world) == ["between us"]
        await world.answer(await world.say(command, **ASKED))
        assert await _kept(world) == []


async def test_no_more_than_configured_and_not_for_longer(world, tools):
    _listen(world, tools, "feishu:group")
    world.config = tools.make_config(chat={"listen": ["feishu:group"], "listen_messages": 3, "listen_hours": 1.0, "session": "shared"})  # fmt: skip
    world.service.reload(world.config)
    for n in range(5):
        await world.say(f"talk {n}", **TALK)
    assert await _kept(world) == ["talk 2", "talk 3", "talk 4"]
    await world.say("stale", **TALK, sent_at=datetime.now(UTC) - timedelta(hours=2))
    assert "stale" not in await _prompt(world, tools, await world.say("hm?", **ASKED))
    await world.service.timers._sweep_heard()
    assert "stale" not in await _kept(world)


async def test_switched_off_it_is_erased_and_told_anew_when_switched_on(world, tools):
    _listen(world, tools, "feishu:group")
    await world.say("psst", **TALK)
    _listen(world, tools)
    await world.service.timers._sweep_heard()
    assert await _kept(world) == []
    _listen(world, tools, "feishu:group")
    await world.say("hello", **TALK)
    await tools.eventually(lambda: len(world.adapter.finals) == 2)


async def test_long_talk_never_overflows_the_window(world, tools):
    _listen(world, tools, "feishu:group")
    for n in range(40):
        await world.say(f"talk {n} " + "word " * 190, **TALK, sender=BOB)
    said = await world.say("what did I miss?", **ASKED)
    await world.settled(said)
    request = world.engine.requests[-1]
    assert len(request.prompt_tokens) + request.max_new_tokens <= 4096
    assert "talk 39" in tools.text_of(request)


async def test_what_is_not_text_is_kept_by_its_kind(world, tools):
    _listen(world, tools, "feishu:group")
    await world.say("", **TALK, attachments=(Attachment("image"), Attachment("image")))
    await world.say("look " + "x" * 2000, **TALK, attachments=(Attachment("file", "a.txt"),))
    first, second = await _kept(world)
    assert (first, second[:6], second[-7:], len(second)) == ("[image]", "look x", " [file]", 1008)


@pytest.mark.parametrize(
    ("question", "asks"),
    [
        ("我错过了什么？", True), ("刚才大家聊了什么", True), ("帮我爬楼", True), ("总结一下群里的讨论", True),
        ("What did I miss?", True), ("catch me up please", True), ("summarize the discussion", True),
        ("我错过了末班车怎么办", False), ("what is a summary", False), ("总结一下这份报告", False),
        (say("en", "missed.ask"), True), (say("zh", "missed.ask"), True),
    ],
)  # fmt: skip
def test_who_asks_for_it(question: str, asks: bool) -> None:
    assert asks_what_was_missed(question) is asks
