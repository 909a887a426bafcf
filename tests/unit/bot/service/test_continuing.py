"""Answers that were cut go on from their own ids: nothing is said twice, and to later prompts it is one answer."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bot.domain.types import ButtonPressed, ChatKind, Outcome, Sender, SessionPolicy
from engine.types import FinishReason

LONG = " And so on and so on, as we said so often, in so many words that nobody could count them any more."
GROUP = {"chat_kind": ChatKind.GROUP, "mentions_bot": True, "chat_id": "group"}


def cut(tools, *words, **changes):
    return tools.Script(words=list(words), reason=FinishReason.LENGTH, **changes)


def press(turn, action="continue", by="ann", event="ev_b"):
    return ButtonPressed("app", event, event, turn.target.chat_id, "card", by, action, turn.id)


async def pressed(world, event):
    reply = await world.service.inbox.accept("feishu", world.adapter, (event,))
    return reply.body["toast"]


async def chat_finals(world, session_id):
    return [one.answer for one in await world.store.past_turns(session_id)]


@pytest.mark.parametrize("word", ["/continue", "/继续", "继续", "／继续"])
async def test_it_goes_on_from_the_stored_ids(world, tools, word):
    world.engine.scripts = [
        cut(tools, "One", " two\n"),
        tools.Script(["One", " two\n", " three", " four"]),
    ]
    first = await world.say("count")
    assert (await world.final(first)).text == "One two"
    more = await world.say(word)
    assert (await world.final(more)).text == "three four"
    one, two = world.engine.requests
    assert two.prompt_tokens == one.prompt_tokens
    assert two.generated_tokens == (1000, 1001)
    assert two.max_new_tokens == 2 + 64
    assert two.cache_key == one.cache_key


async def test_to_later_prompts_it_is_one_answer(world, tools):
    world.engine.scripts = [
        cut(tools, "One", " two\n"),
        cut(tools, "One", " two\n", "  three"),
        tools.Script(["One", " two\n", "  three", " four"]),
    ]
    first = await world.say("count")
    await world.final(first)
    await world.final(await world.say("/continue"))
    await world.final(await world.say("/continue"))
    turn = await world.turn(first)
    (past,) = await world.store.past_turns(turn.session_id)
    assert past.answer == "One two\n  three four"
    assert past.answer_token_ids == (1000, 1001, 1002, 1003)
    assert (past.turn_no, past.last_turn_no) == (1, 3)
    before = await world.store.canonical(turn.session_id)
    await world.final(await world.say("and?"))
    last = world.engine.requests[-1]
    assert last.prompt_tokens[: len(before.token_ids)] == before.token_ids
    assert tools.text_of(last).count("<user>") == 2
    assert "«1000»«1001»«1002»«1003»" in tools.text_of(last)
    # People find it again as they saw it.
    told = await world.store.told(turn.session, 10)
    assert [one.answer.strip() for one in told] == ["One two", "three", "four", "Hello there"]


async def test_a_crash_before_the_list_was_stored_loses_nothing_of_it(world, tools):
    world.engine.scripts = [cut(tools, "One"), tools.Script(["One", " two"])]
    first = await world.say("count")
    await world.final(first)
    turn = await world.turn(first)
    old = await world.store.canonical(turn.session_id)
    await world.final(await world.say("/continue"))
    await world.store.save_canonical(turn.session_id, old)
    await world.final(await world.say("and?"))
    assert "«1000»«1001»" in tools.text_of(world.engine.requests[-1])


async def test_it_goes_on_within_the_window(world, tools):
    world.engine.info = tools.ScriptEngine(n_ctx=260).info
    world.engine.scripts = [cut(tools, *(f"w{n} " for n in range(20)))]
    for n in range(20):
        await world.final(await world.say("/continue" if n else "tell me"))
        world.engine.scripts = [cut(tools, *(f"w{m} " for m in range(20 * (n + 2))))]
    for request in world.engine.requests:
        assert len(request.prompt_tokens) + request.max_new_tokens <= 260
        assert len(request.generated_tokens) < request.max_new_tokens


@pytest.mark.parametrize("how", ["another model", "no ids", "an answer between", "whole"])
async def test_else_it_is_asked_in_words(world, tools, how):
    world.engine.with_ids = how != "no ids"
    world.engine.scripts = [tools.Script(["One"]) if how == "whole" else cut(tools, "One")]
    await world.final(await world.say("count"))
    world.engine.scripts = []
    if how == "another model":
        world.engine.info = msgspec.structs.replace(world.engine.info, fingerprint="model-b")
    if how == "an answer between":
        await world.final(await world.say("something else"))
    assert (await world.final(await world.say("/continue"))).text == "Hello there"
    request = world.engine.requests[-1]
    assert request.generated_tokens == ()
    shown = request.messages[-1].content if how == "no ids" else tools.text_of(request)
    assert "go on with your last answer" in shown


async def test_nothing_to_go_on_with(world):
    assert "no answer to go on with" in await world.answer(await world.say("/continue"))
    assert world.engine.requests == []


async def test_an_answer_that_was_complete_says_so(world, tools):
    world.engine.scripts = [cut(tools, "One"), tools.Script(["One"])]
    await world.final(await world.say("count"))
    view = await world.final(await world.say("/continue"))
    assert view.notice == "The answer was complete already."
    await world.final(await world.say("and?"))
    assert tools.text_of(world.engine.requests[-1]).count("<user>") == 2


async def test_taken_up_after_a_crash_it_goes_on_behind_its_own_ids(world, tools):
    hold = asyncio.Event()
    world.engine.scripts = [cut(tools, "One"), tools.Script(["One", " two", " three"])]
    await world.final(await world.say("count"))
    world.adapter.gate = hold
    more = await world.say("/continue")
    await tools.eventually(lambda: len(world.engine.requests) == 2)
    await tools.settle()
    world.kill()
    world.adapter.gate = None
    world.engine.scripts = [tools.Script(["One", " two", " three"])]
    await world.start()
    assert (await world.final(more)).text == "two three"


# -- the button ------------------------------------------------------------------------------------------------------------
async def test_only_a_cut_answer_has_the_button(world, tools):
    world.engine.scripts = [cut(tools, "One")]
    view = await world.final(await world.say("count"))
    assert view.outcome is Outcome.LENGTH
    assert [b.action for b in view.buttons] == ["continue", "regenerate", "new_topic"]
    view = await world.final(await world.say("again"))
    assert [b.action for b in view.buttons] == ["regenerate", "new_topic"]


async def test_the_button_goes_on_once(world, tools):
    world.engine.scripts = [cut(tools, "One"), tools.Script(["One", " two"])]
    said = await world.say("count")
    turn = await world.settled(said)
    assert await pressed(world, press(turn)) == "Going on"
    await tools.eventually(lambda: "two" in world.adapter.finals)
    toast = await pressed(world, press(turn, event="ev_c"))
    assert "Only the last answer" in toast
    assert len(world.engine.requests) == 2


async def test_the_button_is_the_askers(world, tools):
    await world.store.set_chat_policy("app", "group", SessionPolicy.SHARED)
    world.engine.scripts = [cut(tools, "One")]
    said = await world.say("count", **GROUP)
    turn = await world.settled(said)
    assert "Only the asker" in await pressed(world, press(turn, by="bob"))
    # In words anybody in the group may ask for more.
    world.engine.scripts = [tools.Script(["One", " two"])]
    more = await world.say("/continue", sender=Sender("bob", "Bob"), **GROUP)
    assert (await world.final(more)).text == "two"


async def test_regenerating_the_cut_answer_takes_what_followed_with_it(world, tools):
    world.engine.scripts = [cut(tools, "One"), tools.Script(["One", " two"])]
    said = await world.say("count")
    turn = await world.settled(said)
    await world.final(await world.say("/continue"))
    world.engine.scripts = [tools.Script(["Better"])]
    await pressed(world, press(turn, "regenerate"))
    await tools.eventually(lambda: "Better" in world.adapter.finals)

    async def only_that() -> bool:
        return await chat_finals(world, turn.session_id) == ["Better"]

    await tools.eventually(only_that)


async def test_retry_of_a_continuation_continues_again(world, tools):
    world.engine.scripts = [cut(tools, "One"), tools.Script(["One", " two"])]
    said = await world.say("count")
    await world.final(said)
    await world.final(await world.say("/continue"))
    world.engine.scripts = [tools.Script(["One", " 2"])]
    await world.final(await world.say("/retry"))
    await tools.eventually(lambda: "2" in world.adapter.finals)
    assert world.engine.requests[-1].generated_tokens == (1000,)

    async def joined() -> bool:
        turn = await world.turn(said)
        return await chat_finals(world, turn.session_id) == ["One 2"]

    await tools.eventually(joined)


# -- turns that are no longer shown whole ------------------------------------------------------------------------------------
async def test_a_cut_is_told_once(world, tools):
    world.engine.info = tools.ScriptEngine(n_ctx=420).info
    notices = [
        (await world.final(await world.say(f"question {n} " + "y" * 20))).notice for n in range(12)
    ]
    told = [n for n, notice in enumerate(notices) if "no longer fit" in notice]
    assert len(told) == 1
    assert told[0] > 0


async def test_a_compression_is_told_once(world, tools):
    for n in range(4):
        await world.final(await world.say(f"Stall {n}: Nr{n}.{LONG}"))
    assert "tokens" in await world.answer(await world.say("/compact"))
    first = await world.final(await world.say("and?"))
    assert "Older turns are a summary now" in first.notice
    for n in range(4):
        assert (await world.final(await world.say(f"Stall {n}: Mr{n}.{LONG}"))).notice == ""
    assert "tokens" in await world.answer(await world.say("/compact"))
    assert (await world.final(await world.say("and then?"))).notice == ""
