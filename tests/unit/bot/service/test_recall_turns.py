"""Old turns are quoted beside the question they bear on: where, how much, and never what was left behind."""

from __future__ import annotations

import pytest

from bot.domain.types import ChatKind, Outcome, Sender
from bot.errors import StoreError
from engine.types import Priority

N_CTX = 1200
FACT = "The spare key of the archive hangs behind the fire extinguisher."
ASKED = "Where is the spare key of the archive?"
HEADING = "(Said earlier in this conversation"


@pytest.fixture
def small_world(world, tools):
    """One id per byte, a window of 1200: some eight turns of this talk fill it."""
    world.engine.info = tools.ScriptEngine(n_ctx=N_CTX).info
    world.service.reload(tools.make_config(recall={"max_share": 0.3}))
    return world


async def chatter(world, n_turns, **changes):
    for n in range(n_turns):
        said = await world.say(f"Lunch number {n} was fine, " + "and so on, " * 8, **changes)
        assert (await world.final(said)).outcome is Outcome.COMPLETE


def last_prompt(world, tools):
    request = [r for r in world.engine.requests if r.priority < Priority.BACKGROUND][-1]
    assert len(request.prompt_tokens) + request.max_new_tokens <= N_CTX
    return tools.text_of(request)


async def ask(world, tools, text=ASKED, **changes):
    said = await world.say(text, **changes)
    await world.final(said)
    return said, last_prompt(world, tools)


async def test_a_turn_that_left_the_window_comes_back_as_a_quote(small_world, tools):
    await small_world.final(await small_world.say(FACT))
    await chatter(small_world, 10)
    said, prompt = await ask(small_world, tools)
    newest = prompt.rpartition("<user>")[2]
    assert newest.startswith(HEADING)
    assert "- Ann (" in newest
    assert f", turn 1): {FACT}" in newest
    assert newest.index(FACT) < newest.index(ASKED)
    # What is stored is the question alone, and later prompts go on from it without quotes.
    turn = await small_world.turn(said)
    assert turn.prompt_text == ASKED
    _, later = await ask(small_world, tools, "Thanks.")
    assert FACT not in later
    assert f"<user>{ASKED}" in later


async def test_the_canonical_list_is_computed_anew_without_the_quotes(small_world, tools):
    await small_world.final(await small_world.say(FACT))
    await chatter(small_world, 10)
    small_world.engine.warmed.clear()
    said, _ = await ask(small_world, tools)
    turn = await small_world.turn(said)
    canonical = await small_world.store.canonical(turn.session_id)
    assert [warm[2] for warm in small_world.engine.warmed] == [canonical.token_ids]
    assert FACT.encode() not in bytes(i for i in canonical.token_ids if i < 256)
    request = small_world.engine.requests[-1]
    n_before = canonical.boundaries[-2]
    assert request.prompt_tokens[:n_before] == canonical.token_ids[:n_before], (
        "what is cached is used"
    )


async def test_what_is_still_in_the_window_is_not_quoted(small_world, tools):
    await small_world.final(await small_world.say(FACT))
    await chatter(small_world, 2)
    _, prompt = await ask(small_world, tools)
    assert HEADING not in prompt
    assert prompt.count(FACT) == 1


async def test_nothing_is_quoted_for_a_question_about_something_else(small_world, tools):
    await small_world.final(await small_world.say(FACT))
    await chatter(small_world, 10)
    _, prompt = await ask(small_world, tools, "Good morning!")
    assert HEADING not in prompt


@pytest.mark.parametrize("command", ["/new", "/reset"])
async def test_an_epoch_that_ended_is_never_quoted(small_world, tools, command):
    await small_world.final(await small_world.say(FACT))
    await chatter(small_world, 10)
    await small_world.final(await small_world.say(command))
    await chatter(small_world, 10)
    _, prompt = await ask(small_world, tools)
    assert FACT not in prompt


async def test_retry_shows_the_same_question(small_world, tools):
    await small_world.final(await small_world.say(FACT))
    await chatter(small_world, 10)
    said, prompt = await ask(small_world, tools)
    await small_world.final(await small_world.say("/retry"))

    async def again() -> bool:
        turn = await small_world.turn(said)
        return turn.prompt_text == ASKED and len(prompts()) > n_before

    def prompts():
        return [r for r in small_world.engine.requests if r.priority < Priority.BACKGROUND]

    n_before = len(prompts()) - 1
    await tools.eventually(again)
    retried = last_prompt(small_world, tools)
    assert retried.rpartition("<user>")[2] == prompt.rpartition("<user>")[2]


async def test_a_question_comes_back_with_its_answer(small_world, tools):
    script = tools.Script(words=["It holds", " 180 litres."])
    small_world.engine.scripts.append(script)
    await small_world.final(await small_world.say("How much does the boiler hold?"))
    await chatter(small_world, 10)
    _, prompt = await ask(small_world, tools, "How big is the boiler, again?")
    line = prompt.rpartition("<user>")[2].splitlines()[1]
    assert line.endswith("How much does the boiler hold? → your answer: It holds 180 litres.")


async def test_switched_off(small_world, tools):
    small_world.service.reload(tools.make_config(recall={"enabled": False}))
    await small_world.final(await small_world.say(FACT))
    await chatter(small_world, 10)
    _, prompt = await ask(small_world, tools)
    assert FACT not in prompt


@pytest.mark.parametrize("share", [0.05, 0.22, 0.3])
async def test_quotes_take_no_more_than_their_share(small_world, tools, share):
    small_world.service.reload(tools.make_config(recall={"max_share": share, "min_score": 0}))
    for n in range(6):
        await small_world.final(await small_world.say(f"The archive has key {n}, " + f"k{n} " * 20))
    await chatter(small_world, 10)
    _, prompt = await ask(small_world, tools, "archive key")
    shown = prompt.rpartition("<user>")[2].partition("\n\narchive key")[0]
    n_quotes = shown.count("\n- ")
    assert n_quotes == {0.05: 0, 0.22: 1, 0.3: 2}[share]
    assert n_quotes == 0 or len(shown.encode()) <= share * N_CTX


async def test_in_a_full_window_what_does_not_fit_is_left_out(small_world, tools):
    small_world.service.reload(tools.make_config(recall={"max_share": 0.5, "min_score": 0}))
    for n in range(4):
        await small_world.final(await small_world.say(f"The archive has key {n}, " + f"k{n} " * 20))
    await chatter(small_world, 10)
    counts = set()
    for _ in range(12):
        _, prompt = await ask(small_world, tools, f"archive key {'x' * 20}")
        counts.add(prompt.rpartition("<user>")[2].count("\n- "))
    assert len(counts) > 1, counts


async def test_a_search_that_fails_costs_only_the_quotes(small_world, tools, monkeypatch):
    await small_world.final(await small_world.say(FACT))
    await chatter(small_world, 10)

    async def broken(*_args):
        raise StoreError("the index is broken")

    monkeypatch.setattr(small_world.store, "search", broken)
    said, prompt = await ask(small_world, tools)
    assert FACT not in prompt
    assert (await small_world.final(said)).outcome is Outcome.COMPLETE


async def test_a_history_from_before_the_index_is_found_at_the_first_question(small_world, tools):
    small_world.service.reload(tools.make_config(recall={"enabled": False}))
    await small_world.final(await small_world.say(FACT))
    await chatter(small_world, 10)
    small_world.service.reload(tools.make_config(recall={"max_share": 0.3}))
    _, prompt = await ask(small_world, tools)
    assert FACT in prompt.rpartition("<user>")[2]


async def test_who_said_it_in_a_group(small_world, tools):
    small_world.service.reload(
        tools.make_config(recall={"max_share": 0.3}, chat={"session": "shared", "language": "zh"})
    )
    group = {"chat_kind": ChatKind.GROUP, "mentions_bot": True}
    bob = {**group, "sender": Sender("bob", "Bob")}
    await small_world.final(await small_world.say("档案室的备用钥匙挂在灭火器后面。", **bob))
    await chatter(small_world, 10, **group)
    _, prompt = await ask(small_world, tools, "档案室备用钥匙在哪？", **group)
    newest = prompt.rpartition("<user>")[2]
    assert "- Bob（" in newest
    assert "第 1 轮）：档案室的备用钥匙挂在灭火器后面。" in newest
