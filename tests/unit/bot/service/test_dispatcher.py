"""Claims, order, restarts: exactly one answer whatever is cut off."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bot.domain.types import Outcome, Sender, TurnState
from bot.errors import RetryLater
from bot.service.board import ActiveTurn, StopReason


def _open_cards(world):
    return [s.turn_id for s in world.adapter.replies.values() if s.views and s.final is None]


async def test_one_conversation_in_order_others_in_parallel(world, tools):
    world.service.reload(tools.make_config(chat={"while_busy": "queue"}))
    hold = asyncio.Event()
    world.engine.scripts = [tools.Script(["One", " two"], hold=hold)]
    first = await world.say("first")
    await tools.eventually(lambda: len(world.engine.requests) == 1)
    second = await world.say("second")
    other = await world.say("other", chat_id="chat2", sender=Sender("bob"))
    assert await world.answer(other) == "Hello there"
    assert (await world.turn(second)).state is TurnState.QUEUED
    hold.set()
    await world.final(second)
    assert "first" in tools.text_of(world.engine.requests[2])
    assert (await world.turn(first)).state is TurnState.DONE


async def test_messages_sent_while_waiting_become_one_turn(world, tools):
    hold = asyncio.Event()
    world.engine.scripts = [tools.Script(["One", " two"], hold=hold)]
    first = await world.say("first")
    await tools.eventually(lambda: len(world.engine.requests) == 1)
    second, third = await world.say("second"), await world.say("third")
    hold.set()
    await world.final(first)
    await world.final(third)
    assert (await world.turn(second)).id == (await world.turn(third)).id
    assert "second\nthird" in tools.text_of(world.engine.requests[1])
    assert len(world.engine.requests) == 2


async def test_interrupt_ends_the_running_answer(world, tools):
    world.service.reload(tools.make_config(chat={"while_busy": "interrupt"}))
    world.engine.scripts = [tools.Script(["One", " two"], hold=asyncio.Event())]
    first = await world.say("first")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    second = await world.say("second")
    assert await world.answer(second) == "Hello there"
    assert (await world.final(first)).outcome is Outcome.STOPPED


async def test_five_questions_three_chats_and_a_crash(world, tools):
    """Cases A12: all answered, each once, in order per chat."""
    world.service.reload(tools.make_config(chat={"while_busy": "queue"}))
    world.engine.scripts = [tools.Script(["One", " two"], hold=asyncio.Event()) for _ in range(3)]
    said = []
    for n, chat in enumerate(["a", "b", "c", "a", "b"]):
        said.append(await world.say(f"q{n}", chat_id=chat))
    await tools.eventually(lambda: len(world.engine.requests) == 3)
    world.kill()
    world.engine = tools.ScriptEngine()
    world.config = tools.make_config(chat={"while_busy": "queue"})
    await world.start()
    for one in said:
        await world.settled(one)
    assert all(s.n_finishes == 1 for s in world.adapter.replies.values())
    assert len(world.adapter.finals) == 5
    prompts = [tools.text_of(r) for r in world.engine.requests]
    order = {p.rsplit("<user>", 1)[1][:2]: n for n, p in enumerate(prompts)}
    assert order["q0"] < order["q3"]
    assert order["q1"] < order["q4"]


async def test_a_half_shown_answer_goes_on_after_a_crash(world, tools):
    """Cases B1: no card stays open; the shown text is continued, not thrown away."""
    words = ["One", " two", " three"]
    world.engine.scripts = [tools.Script(words, hold=asyncio.Event())]
    said = await world.say("count")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    await tools.eventually(lambda: world.adapter.alive == {})
    world.kill()
    assert len(_open_cards(world)) == 1
    world.engine = tools.ScriptEngine()
    world.engine.scripts = [tools.Script(words)]
    await world.start()
    view = await world.final(said)
    assert (view.text, view.notice) == ("One two three", "")
    assert world.engine.requests[0].generated_tokens == (1000,)
    assert _open_cards(world) == []
    assert world.adapter.shown((await world.turn(said)).id).n_finishes == 1


async def test_turns_go_back_when_another_process_leads_their_bot(world, tools):
    """The lead can be lost while a process is stopped: it wakes up with turns whose connection is another one's."""
    dispatcher, away = world.service.dispatcher, set()
    dispatcher._elsewhere = lambda: frozenset(away)
    words = ["One", " two", " three"]
    world.engine.scripts = [tools.Script(words, hold=asyncio.Event()), tools.Script(words)]
    said = await world.say("count")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    away.add(said.app_id)
    dispatcher.wake()
    await tools.eventually(lambda: dispatcher.n_held == 0)
    assert (await world.turn(said)).state is TurnState.QUEUED
    assert len(_open_cards(world)) == 1
    away.clear()
    dispatcher.wake()
    assert (await world.final(said)).text == "One two three"
    assert world.engine.requests[1].generated_tokens == (1000,)
    assert world.adapter.shown((await world.turn(said)).id).n_finishes == 1


async def test_what_another_process_has_finished_is_left_alone(world, tools):
    """The turn was given back too late: its lease had run out, and somebody else has answered."""
    dispatcher, away = world.service.dispatcher, set()
    dispatcher._elsewhere = lambda: frozenset(away)
    world.engine.scripts = [tools.Script(["One", " two"], hold=asyncio.Event())]
    said = await world.say("count")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    turn = await world.turn(said)
    snapshot, _ = await world.store.reply(turn.id)
    assert snapshot is not None
    # What the other process does, with fewer changes of the text than this one had.
    theirs = replace(snapshot, rev=snapshot.rev + 1, text="Theirs", outcome=Outcome.COMPLETE)
    await world.store.save_reply(turn.id, theirs, None)
    await world.store.finish_turn(turn.id, dispatcher._owner, TurnState.DONE)
    away.add(said.app_id)
    dispatcher.wake()
    await tools.eventually(lambda: dispatcher.n_held == 0)
    assert (await world.turn(said)).state is TurnState.DONE
    await world.store.save_reply(turn.id, replace(snapshot, rev=snapshot.rev + 50), None)
    assert (await world.store.reply(turn.id))[0] == theirs, "what has ended does not grow again"


async def test_a_fault_while_a_turn_is_given_back_counts_for_nothing(world, tools):
    """However often the lead was lost: the database's fault and the lost lead have one cause."""
    dispatcher = world.service.dispatcher
    turns = []
    give_up = dispatcher._runner.give_up

    async def noted(active):
        turns.append(active)
        await give_up(active)

    dispatcher._runner.give_up = noted
    active = ActiveTurn(replace(await _held_turn(world, tools), attempt=99))
    active.stop(StopReason.RELEASED)
    await dispatcher._after_fault(active)
    assert turns == []


async def _held_turn(world, tools):
    world.engine.scripts = [tools.Script(["One", " two"], hold=asyncio.Event())]
    said = await world.say("count")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    return await world.turn(said)


async def test_a_crash_between_the_model_and_the_platform_only_delivers(world, tools):
    """Cases A11."""
    world.adapter.errors = [RetryLater("down", after_s=60)] * 50
    said = await world.say("x")
    turn = await world.turn(said)

    async def is_final() -> bool:
        snapshot, _ = await world.store.reply(turn.id)
        return snapshot is not None and snapshot.final

    await tools.eventually(is_final)
    world.kill()
    world.adapter.errors = []
    await world.start()
    assert await world.answer(said) == "Hello there"
    assert len(world.engine.requests) == 1
    assert world.adapter.shown(turn.id).n_finishes == 1


async def test_a_crash_after_the_platform_said_yes_shows_nothing_twice(world, tools):
    finish = world.store.finish_turn

    closing = asyncio.Event()

    async def dies(*args, **kwargs):
        closing.set()
        await asyncio.Event().wait()

    world.store.finish_turn = dies
    said = await world.say("x")
    await closing.wait()
    assert world.adapter.finals == ["Hello there"]
    world.kill()
    world.store.finish_turn = finish
    await world.start()
    turn = await world.settled(said)
    assert turn.state is TurnState.DONE
    assert world.adapter.shown(turn.id).n_finishes == 1
    assert len(world.engine.requests) == 1


async def test_a_sign_of_life_does_not_survive_a_crash(world, tools):
    world.engine.scripts = [tools.Script(words=[], hold=asyncio.Event())]
    said = await world.say("x")
    turn = await world.turn(said)

    async def stored() -> bool:
        return any(part.n < 0 for part in (await world.store.reply(turn.id))[1])

    await tools.eventually(stored)
    world.kill()
    world.engine = tools.ScriptEngine()
    await world.start()
    await world.settled(said)
    await tools.eventually(lambda: world.adapter.alive == {})
    assert world.adapter.n_alive == 1


async def test_closing_releases_what_runs_and_the_next_start_goes_on(world, tools):
    words = ["One", " two", " three"]
    world.engine.scripts = [tools.Script(words, hold=asyncio.Event())]
    said = await world.say("count")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    await world.service.close(5.0)
    turn = await world.turn(said)
    assert turn.state is TurnState.QUEUED
    snapshot, _ = await world.store.reply(turn.id)
    assert snapshot.token_ids == (1000,)
    world.engine.scripts = [tools.Script(words)]
    await world.start()
    assert await world.answer(said) == "One two three"
    assert world.engine.requests[1].generated_tokens == (1000,)


async def test_closing_does_not_wait_for_a_platform_that_is_down(world, tools):
    world.adapter.errors = [RetryLater("down", after_s=3600)] * 50
    said = await world.say("x")
    turn = await world.turn(said)

    async def is_final() -> bool:
        snapshot, _ = await world.store.reply(turn.id)
        return snapshot is not None and snapshot.final

    await tools.eventually(is_final)
    async with asyncio.timeout(30):
        await world.service.close(30.0)
    assert (await world.turn(said)).state is TurnState.QUEUED
    world.adapter.errors = []
    await world.start()
    assert await world.answer(said) == "Hello there"


async def test_a_stop_marked_before_the_crash_ends_the_card(world, tools):
    world.engine.scripts = [tools.Script(["One", " two"], hold=asyncio.Event())]
    said = await world.say("x")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    turn = await world.turn(said)
    world.kill()
    await world.store.request_cancel(turn.id)
    await world.start()
    view = await world.final(said)
    assert (view.text, view.outcome) == ("One", Outcome.STOPPED)
    assert len(world.engine.requests) == 1


async def test_a_lost_lease_ends_the_work_without_showing_more(world, tools):
    world.engine.scripts = [tools.Script(["One", " two"], hold=asyncio.Event())]
    said = await world.say("x")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    turn = await world.turn(said)
    await world.store.release(turn.id, world.service.owner)
    (other,) = await world.store.claim("another process", 60, 10)
    await world.service.dispatcher._renew()
    await tools.eventually(lambda: world.service.dispatcher.n_held == 0)
    assert other.id == turn.id
    assert world.adapter.finals == []
    assert await world.store.finish_turn(turn.id, "another process", TurnState.DONE)


async def test_a_turn_nobody_works_on_is_given_back(world, tools):
    assert await world.answer(await world.say("first"))  # the claim made at start is over
    claim = world.store.claim
    lost = []

    async def loses(owner, lease_s, limit, **more):
        turns = await claim(owner, lease_s, limit, **more)
        lost.extend(turns)
        return [] if len(lost) == len(turns) else turns

    world.store.claim = loses
    said = await world.say("x")
    await tools.eventually(lambda: len(lost) == 1)
    await world.service.dispatcher._renew()
    world.service.dispatcher.wake()
    assert await world.answer(said) == "Hello there"


async def test_a_turn_that_always_fails_ends_with_a_sentence(world, tools, monkeypatch):
    monkeypatch.setattr("bot.service.dispatcher.MAX_ATTEMPTS", 1)
    real = world.store.past_turns

    async def broken(*args, **kwargs):
        raise RuntimeError("bug")

    world.store.past_turns = broken
    said = await world.say("x")
    view = await world.final(said)
    world.store.past_turns = real
    assert view.outcome is Outcome.FAILED
    assert "could not be finished" in view.notice
    assert (await world.turn(said)).state is TurnState.FAILED


async def test_a_database_fault_is_tried_again_unseen(world, tools):
    from bot.errors import StoreError

    real = world.store.past_turns
    world.store.n_faults = 0

    async def flaky(*args, **kwargs):
        if not world.store.n_faults:
            world.store.n_faults += 1
            raise StoreError("locked")
        return await real(*args, **kwargs)

    world.store.past_turns = flaky
    assert await world.answer(await world.say("x")) == "Hello there"


async def test_status_counts(world):
    await world.final(await world.say("x"))
    status = await world.service.status()
    assert (status.held_turns, status.store.turns_queued) == (0, 0)
    assert status.engines["main"].state.value == "ready"
    value = world.registry.get_sample_value(
        "hearth_turns_total", {"kind": "chat", "outcome": "complete"}
    )
    assert value == 1


@pytest.mark.parametrize("n_turns", [40])
async def test_many_conversations_at_once(world, tools, n_turns):
    said = [
        await world.say(f"q{n}", chat_id=f"c{n}", sender=Sender(f"u{n}")) for n in range(n_turns)
    ]
    for one in said:
        assert await world.answer(one) == "Hello there"
    assert len(world.engine.requests) == n_turns


async def test_questions_that_interrupt_each_other_at_once_leave_no_sign_of_life(world, tools):
    """Stored in one commit, the earlier ones end before their signs were even shown; nobody runs them any more."""
    world.service.reload(tools.make_config(chat={"while_busy": "interrupt"}))
    said = [tools.message(f"question {n}") for n in range(5)]
    await asyncio.gather(
        *(world.service.inbox.accept("feishu", world.adapter, (one,)) for one in said)
    )
    assert await world.answer(said[-1]) == "Hello there"
    signs = world.service._context.signs
    await tools.eventually(
        lambda: not (signs._shown or signs._showing or signs._known or signs._tasks)
    )
    assert world.adapter.alive == {}
