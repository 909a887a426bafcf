"""What a waiting person reads: the place in line, the reading, the loading; and how long and with how many one may wait."""

from __future__ import annotations

import asyncio
import contextlib

from bot.domain.types import Outcome, Sender, TurnState
from engine.types import (
    Delta,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Priority,
    Progress,
    Queued,
    Started,
    Usage,
)


class Played:
    """An engine that says exactly what the test says."""

    def __init__(self, tools):
        self._inner = tools.ScriptEngine()
        self.events = asyncio.Queue()

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def submit(self, request):
        while True:
            event = await self.events.get()
            yield event
            if isinstance(event, Finished):
                return

    def play(self, *events):
        for event in events:
            self.events.put_nowait(event)


async def _world(tmp_path, tools, clock):
    world = tools.World(tmp_path, clock)
    world.engine = Played(tools)
    return await world.open()


def _statuses(world):
    return [v.status for s in world.adapter.replies.values() for v in s.views]


async def _play(world, tools, *events):
    """Let the engine say something and wait until the service has heard it (the clock stands still)."""
    world.engine.play(*events)
    await tools.eventually(world.engine.events.empty)
    await tools.settle()


async def _pass(world, tools, seconds, expected):
    """Let time pass, then wait for what is shown (the database needs real time for it)."""
    await asyncio.sleep(0.05)  # whoever waits for the time has to wait before it passes
    await world.clock.advance(seconds)
    await tools.eventually(lambda: _statuses(world) == expected)
    await tools.settle()


async def test_place_then_reading_then_text(tmp_path, tools, fake_clock):
    world = await _world(tmp_path, tools, fake_clock)
    said = await world.say("x")
    await _play(world, tools, Queued(request_id="r", place=3))
    await _pass(world, tools, 0.9, [])
    expected = ["You are 3rd in line…"]
    await _pass(world, tools, 0.2, expected)
    await _play(world, tools, Queued(request_id="r", place=1))
    expected.append("You are 1st in line…")
    await _pass(world, tools, 0, expected)
    await tools.eventually(lambda: world.adapter.n_confirmed == 2)
    await _play(world, tools, Started(request_id="r", cached_tokens=0))
    expected.append("Thinking…")
    await _pass(world, tools, 0, expected)
    await _play(world, tools, Progress(request_id="r", done_tokens=40, total_tokens=100))
    await _pass(world, tools, 4.9, expected)
    expected.append("Reading 40%…")
    await _pass(world, tools, 0.2, expected)
    world.engine.play(
        Delta(request_id="r", token_ids=(1,), text="Hi"),
        Finished(request_id="r", reason=FinishReason.STOP, usage=Usage(), n_answer=1),
    )
    assert await world.answer(said) == "Hi"
    await world.close()


async def test_a_quick_answer_shows_no_status(tmp_path, tools, fake_clock):
    world = await _world(tmp_path, tools, fake_clock)
    said = await world.say("x")
    world.engine.play(
        Queued(request_id="r", place=1),
        Started(request_id="r", cached_tokens=0),
        Progress(request_id="r", done_tokens=40, total_tokens=100),
        Delta(request_id="r", token_ids=(1,), text="Hi"),
        Finished(request_id="r", reason=FinishReason.STOP, usage=Usage(), n_answer=1),
    )
    assert await world.answer(said) == "Hi"
    assert set(_statuses(world)) <= {""}
    await world.close()


async def test_thoughts_are_shown_as_thinking(tmp_path, tools, fake_clock):
    world = await _world(tmp_path, tools, fake_clock)
    said = await world.say("x")
    await _play(world, tools, Started(request_id="r", cached_tokens=0))
    for n in range(5):
        await _play(world, tools, Delta(request_id="r", token_ids=(n,), thinking="hm"))
        await world.clock.advance(1)
    await tools.eventually(lambda: _statuses(world) == ["Thinking…"])
    turn = await world.turn(said)

    async def on_disk() -> bool:
        snapshot, _ = await world.store.reply(turn.id)
        return snapshot is not None and len(snapshot.token_ids) >= 2

    await tools.eventually(on_disk)
    await world.close()


async def test_a_loading_model_is_said(tmp_path, tools, fake_clock):
    world = tools.World(tmp_path, fake_clock)
    engine = world.engine = tools.ScriptEngine()
    info, engine.info = engine.info, None
    asked, loaded = asyncio.Event(), asyncio.Event()

    async def wait_ready(timeout_s):
        asked.set()
        await loaded.wait()
        engine.info = info
        return info

    engine.wait_ready = wait_ready
    await world.open()
    said = await world.say("x")
    await asked.wait()
    # The claim's look, the lease's, and the status that is to be shown.
    await tools.eventually(lambda: len(world.clock._sleepers) == 3)
    await _pass(world, tools, 0.9, [])
    await _pass(world, tools, 0.2, ["The model is loading, one moment…"])
    loaded.set()
    assert await world.answer(said) == "Hello there"
    await world.close()


async def test_the_place_on_the_screen_counts_both_lines(tmp_path, tools, fake_clock):
    world = await _world(tmp_path, tools, fake_clock)
    slots = world.service._context.slots["main"]
    with contextlib.ExitStack() as others:
        while slots.n_inside < slots._limit:
            held = others.enter_context(slots.enter(f"o{slots.n_inside}", 10, lambda _: None))
        slots.queued(held, 21)  # 21 because of API requests in the engine's line
        said = await world.say("x")
        await tools.eventually(lambda: slots.n_waiting == 1)
        await _pass(world, tools, 1.1, ["You are 22nd in line…"])
    world.engine.play(
        Started(request_id="r", cached_tokens=0),
        Delta(request_id="r", token_ids=(1,), text="Hi"),
        Finished(request_id="r", reason=FinishReason.STOP, usage=Usage(), n_answer=1),
    )
    assert await world.answer(said) == "Hi"
    assert slots.n_inside == 0
    await world.close()


async def test_people_behind_the_limit_are_answered_too(world, tools):
    slots = world.service._context.slots["main"]
    slots._limit = 1
    said = [await world.say(f"q{n}", chat_id=f"c{n}", sender=Sender(f"u{n}")) for n in range(5)]
    for one in said:
        assert await world.answer(one) == "Hello there"
    assert (slots.n_inside, slots.n_waiting) == (0, 0)


# -- limits of waiting -------------------------------------------------------------------------------------------------


def _configure(world, tools, **sections):
    world.service.reload(tools.make_config(**sections))


async def test_who_waited_too_long_before_the_engine_gets_one_sentence(tmp_path, tools, fake_clock):
    world = await _world(tmp_path, tools, fake_clock)
    _configure(world, tools, chat={"max_wait_s": 60})
    slots = world.service._context.slots["main"]
    with contextlib.ExitStack() as others:
        for n in range(slots._limit):
            others.enter_context(slots.enter(f"o{n}", 10, lambda _: None))
        said = await world.say("x")
        await tools.eventually(lambda: slots.n_waiting == 1)
        await world.clock.advance(59)
        assert slots.n_waiting == 1
        await world.clock.advance(2)
        final = await world.final(said)
    assert final.outcome is Outcome.FAILED
    assert "did not come in time" in final.notice
    assert world.engine.requests == []
    await world.close()


async def test_who_waited_too_long_inside_the_engine_gets_the_same_sentence(world, tools):
    _configure(world, tools, chat={"max_wait_s": 60})
    late = Failed(request_id="r", code=FailureCode.DEADLINE, retryable=False)
    world.engine.scripts.append(tools.Script(fail_after=0, failure=late))
    final = await world.final(await world.say("x"))
    assert "did not come in time" in final.notice
    assert 0 < world.engine.requests[0].deadline_s <= 60


async def test_without_a_limit_a_question_waits_for_ever(world, tools):
    _configure(world, tools, chat={"max_wait_s": 0})
    await world.answer(await world.say("x"))
    assert world.engine.requests[0].deadline_s == 0


async def test_an_answer_that_has_begun_goes_on_first_and_has_no_deadline(world, tools):
    world.engine.scripts.append(tools.Script(fail_after=1))
    assert await world.answer(await world.say("x")) == "Hello there"
    first, again = world.engine.requests
    assert (first.priority, again.priority) == (Priority.PERSON, Priority.ADMIN)
    assert first.deadline_s > 0
    assert again.deadline_s == 0


async def test_a_full_line_and_a_persons_full_share_are_said(world, tools):
    slots = world.service._context.slots["main"]
    slots._max_waiting, slots._max_waiting_per_person = 4, 2
    hold = asyncio.Event()
    world.engine.scripts += [tools.Script(words=(), hold=hold) for _ in range(8)]
    people = "aaaabbcccddd"  # four run; the fifth and later ones wait
    said = []
    for n, who in enumerate(people):
        said.append(await world.say(f"q{n}", chat_id=f"c{n}", sender=Sender(who)))
        await tools.eventually(
            lambda done=n + 1: len(world.engine.requests) + _n_ended(world) >= done
        )
        if n == 3:
            for slot in list(slots._inside.values()):
                slots.started(slot)
    notices = [(await world.final(one)).notice for one in said[8:]]
    assert "2 questions of yours are waiting already" in notices[0]
    assert all("too many questions are waiting" in notice for notice in notices[1:])
    hold.set()
    for one in said[:8]:
        await world.settled(one)
    await world.settled(await world.say("later"))


def _n_ended(world):
    return sum(shown.final is not None for shown in world.adapter.replies.values())


async def test_one_person_cannot_queue_without_end_in_one_chat(tmp_path, tools, fake_clock):
    world = await _world(tmp_path, tools, fake_clock)
    models = {"main": {"backend": "fake", "max_waiting_per_person": 2}}
    _configure(world, tools, chat={"while_busy": "queue"}, models=models)
    await world.say("running")
    await tools.eventually(lambda: world.service.dispatcher.n_held == 1)
    waiting = [await world.say("q1"), await world.say("q2")]
    refused = await world.say("q3")
    assert "2 questions of yours" in (await world.final(refused)).text
    assert [(await world.turn(one)).state for one in waiting] == [TurnState.QUEUED] * 2
    other = await world.say("q4", sender=Sender("bob", "Bob"))
    assert (await world.turn(other)).question == "q4"
    await world.close()
