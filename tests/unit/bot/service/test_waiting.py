"""What a waiting person reads: the place in line, the reading, the loading; and the slots behind it."""

from __future__ import annotations

import asyncio

from bot.domain.types import Sender
from bot.service.slots import Slots
from engine.types import Delta, Finished, FinishReason, Progress, Queued, Started, Usage


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
    await _pass(world, tools, 0.9, [])
    await _pass(world, tools, 0.2, ["The model is loading, one moment…"])
    loaded.set()
    assert await world.answer(said) == "Hello there"
    await world.close()


async def test_slots_are_taken_in_order_and_tell_places():
    slots = Slots(1)
    slots.engine_waiting = 4
    places = {"b": [], "c": []}
    order = []

    async def use(name):
        async with slots.take(places.get(name, []).append):
            order.append(name)
            await asyncio.sleep(0)

    async with slots.take(lambda _: None):
        tasks = [asyncio.create_task(use(name)) for name in "bc"]
        await asyncio.sleep(0)
        assert places == {"b": [5], "c": [6]}
        assert slots.n_waiting == 2
    await asyncio.gather(*tasks)
    assert order == ["b", "c"]
    assert places["c"] == [6, 5]


async def test_a_waiter_that_leaves_moves_the_others_up():
    slots = Slots(1)
    places = []
    async with slots.take(lambda _: None):
        one = asyncio.create_task(slots._acquire(lambda _: None))
        two = asyncio.create_task(slots._acquire(places.append))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        assert places == [2, 1]
    await two
    slots._release()
    async with asyncio.timeout(1), slots.take(lambda _: None):
        pass


async def test_a_slot_given_to_a_cancelled_waiter_is_not_lost():
    slots = Slots(1)
    await slots._acquire(lambda _: None)
    waiter = asyncio.create_task(slots._acquire(lambda _: None))
    await asyncio.sleep(0)
    slots._release()
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    async with asyncio.timeout(1), slots.take(lambda _: None):
        pass


async def test_people_behind_the_limit_are_answered_too(world, tools, monkeypatch):
    slots = world.service._context.slots["main"]
    slots._free = 1
    said = [await world.say(f"q{n}", chat_id=f"c{n}", sender=Sender(f"u{n}")) for n in range(5)]
    for one in said:
        assert await world.answer(one) == "Hello there"
    assert slots._free == 1
