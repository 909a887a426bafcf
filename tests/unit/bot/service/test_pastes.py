"""A long paste that its client cut into messages becomes one question; anything shorter waits for nothing."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from bot.domain.types import ChatKind, Sender, TurnState
from bot.service import inbox
from bot.service.pastes import PART_CHARS

GROUP = {"chat_kind": ChatKind.GROUP, "chat_id": "group"}


def _part(word: str) -> str:
    return (word + " ") * (PART_CHARS // len(word)) + "end"


def _window(world, tools, seconds: float, **chat) -> None:
    world.config = tools.make_config(
        chat={"language": "en", "show_date": False, "max_new_tokens": 64, "paste_window_s": seconds, **chat},
        models={"main": {"backend": "fake", "n_ctx": 32768}},
    )  # fmt: skip
    world.engine.info = tools.ScriptEngine(n_ctx=32768).info
    world.service.reload(world.config)


@pytest.mark.parametrize("while_busy", ["merge", "queue", "interrupt"])
async def test_the_parts_become_one_question(world, tools, while_busy):
    _window(world, tools, 10.0, while_busy=while_busy)
    parts = [await world.say(_part("alpha")), await world.say(_part("beta"))]
    last = await world.say("gamma")
    begun = time.monotonic()
    turn = await world.settled(last)
    assert time.monotonic() - begun < 9.0, "a short part ends the waiting"
    assert turn.question == f"{_part('alpha')}\n{_part('beta')}\ngamma"
    assert [(await world.turn(one)).id for one in parts] == [turn.id, turn.id]
    assert turn.state is TurnState.DONE
    assert (len(world.engine.requests), len(world.adapter.finals)) == (1, 1)
    assert turn.target.reply_to == last.message_id


async def test_without_another_part_it_is_answered_after_the_window(world, tools):
    _window(world, tools, 0.3)
    begun = time.monotonic()
    said = await world.say(_part("alpha"))
    await asyncio.sleep(0.15)
    assert world.engine.requests == []
    await world.settled(said)
    assert time.monotonic() - begun >= 0.3


async def test_what_is_shorter_waits_for_nothing_and_joins_nothing(world, tools):
    _window(world, tools, 10.0, while_busy="queue")
    begun = time.monotonic()
    said = await world.say("x" * (PART_CHARS - 1))
    await world.settled(said)
    assert time.monotonic() - begun < 9.0
    _window(world, tools, 0.0, while_busy="queue")
    long = [await world.say(_part("alpha")), await world.say(_part("beta"))]
    assert len({(await world.settled(one)).id for one in long}) == 2, "0 = never"


async def test_only_the_same_persons_parts_in_the_same_chat_are_joined(world, tools):
    _window(world, tools, 0.4, while_busy="queue", session="shared")
    ann = await world.say(_part("alpha"), **GROUP, mentions_bot=True)
    bob = await world.say("beta", **GROUP, mentions_bot=True, sender=Sender("bob", "Bob"))
    direct = await world.say("gamma")
    turns = [await world.settled(one) for one in (ann, bob, direct)]
    assert [turn.question for turn in turns] == [_part("alpha"), "beta", "gamma"]


async def test_later_parts_need_no_mention_in_a_group(world, tools):
    _window(world, tools, 5.0)
    ann = await world.say(_part("alpha"), **GROUP, mentions_bot=True)
    strange = await world.say("hi all", **GROUP, mentions_bot=False, sender=Sender("bob", "Bob"))
    last = await world.say("/x marks the spot", **GROUP, mentions_bot=False)
    turn = await world.settled(last)
    assert turn.id == (await world.turn(ann)).id
    assert turn.question.endswith("end\n/x marks the spot"), "no unknown command inside a paste"
    assert await world.turn(strange) is None
    later = await world.say("unasked", **GROUP, mentions_bot=False)
    assert await world.turn(later) is None


async def test_commands_are_commands_also_between_parts(world, tools):
    _window(world, tools, 5.0)
    said = await world.say(_part("alpha"))
    await world.answer(await world.say("/stop"))
    assert (await world.settled(said)).state is TurnState.CANCELLED
    assert world.engine.requests == []


async def test_a_crash_between_the_parts_loses_nothing(world, tools):
    _window(world, tools, 0.5)
    first = await world.say(_part("alpha"))
    world.kill()
    await world.start()
    second = await world.say(_part("beta"))
    turn = await world.settled(second)
    assert turn.question == f"{_part('alpha')}\n{_part('beta')}"
    assert (await world.turn(first)).id == turn.id
    lone = await world.say(_part("gamma"))
    world.kill()
    await world.start()
    await world.settled(lone)
    assert len(world.adapter.finals) == 2


async def test_a_part_that_a_crash_kept_away_is_not_lost_in_a_group(world, tools, monkeypatch):
    monkeypatch.setattr(inbox, "LATE_AFTER_S", 0.5)
    _window(world, tools, 0.1)
    first = await world.say(_part("alpha"), **GROUP, mentions_bot=True)
    world.kill()
    await world.start()
    await world.settled(first)
    back = {"sent_at": first.sent_at - timedelta(seconds=1)}
    other = await world.say("hi all", **GROUP, **back, sender=Sender("bob", "Bob"))
    second = await world.say("beta", **GROUP, **back)
    assert (await world.settled(second)).question == "beta"
    assert await world.turn(other) is None
    old = await world.say("gamma", **GROUP, sent_at=first.sent_at - timedelta(minutes=5))
    assert await world.turn(old) is None


async def test_a_part_that_comes_twice_is_joined_once(world, tools):
    _window(world, tools, 5.0)
    first = await world.say(_part("alpha"))
    for _ in range(3):
        await world.service.inbox.accept("feishu", world.adapter, (first,))
    last = await world.say("beta")
    assert (await world.settled(last)).question == f"{_part('alpha')}\nbeta"
