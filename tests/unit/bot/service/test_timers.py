"""Reminders, scheduled questions and housekeeping: at their time, once, and late rather than never."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from bot.domain.records import TimerKind
from bot.domain.types import ChatKind, Lane, Sender, SessionPolicy, TurnState
from bot.service.clock import SystemClock

GROUP = {"chat_kind": ChatKind.GROUP, "mentions_bot": True, "chat_id": "group"}
ADMINS = {"admins": ["feishu:ann"]}


class ShiftedClock(SystemClock):
    """The real clock, some time later."""

    def __init__(self) -> None:
        self.shift = timedelta()

    def now(self) -> datetime:
        return super().now() + self.shift


@pytest.fixture
def late(world):
    """Moves the service's time on and has it look at its timers."""
    clock = ShiftedClock()
    object.__setattr__(world.service._context, "clock", clock)

    async def later(**by) -> None:
        clock.shift += timedelta(**by)
        await world.service.timers.run_due()

    return later


async def timers(world, said):
    return await world.store.timers_of((await world.turn(said)).session)


def said_later(world, start):
    return [text for text in world.adapter.finals if text.startswith(start)]


async def test_a_reminder_comes_once_to_the_same_chat(world, late, tools):
    order = await world.say("/remind 10m drink water")
    assert "drink water" in await world.answer(order)
    (timer,) = await timers(world, order)
    created = (await world.turn(order)).created_at
    assert timer.due_at == created + timedelta(minutes=10)
    await late(minutes=9)
    assert said_later(world, "⏰") == []
    await late(minutes=1, seconds=30)
    await tools.eventually(lambda: said_later(world, "⏰") == ["⏰ Reminder: drink water"])
    await late(minutes=5)
    await tools.settle()
    assert len(said_later(world, "⏰")) == 1
    assert await timers(world, order) == []
    assert world.engine.requests == []


async def test_an_overdue_reminder_is_told_late_after_a_restart(world, tools):
    order = await world.say("/提醒 10分钟 喝水")
    await world.final(order)
    await world.service.close(1.0)
    clock = ShiftedClock()
    clock.shift = timedelta(hours=3)
    world.clock = clock
    await world.start()
    await tools.eventually(lambda: len(said_later(world, "⏰ A late reminder")) == 1)
    assert "喝水" in said_later(world, "⏰")[0]


async def test_two_processes_say_it_once(world, late):
    order = await world.say("/remind 10m x")
    await world.final(order)
    (timer,) = await timers(world, order)
    world.service._context.clock.shift = timedelta(minutes=10, seconds=1)
    fire = world.service.timers._fire
    await asyncio.gather(fire(timer), fire(timer), fire(timer))
    ended = said_later(world, "⏰")
    facts = await world.store.facts()
    assert len(ended) + facts.turns_queued + facts.turns_running == 1


async def test_the_scheduler_itself_is_in_time(world, tools, monkeypatch):
    """Real time: a timer that is due in a moment comes without anybody looking."""
    order = await world.say("/remind 10m x")
    await world.final(order)
    (timer,) = await timers(world, order)
    soon = datetime.now(UTC) + timedelta(milliseconds=300)
    await world.store.fire_timer(timer, None, soon)
    world.service.timers.changed()
    await tools.eventually(lambda: len(said_later(world, "⏰")) == 1)


@pytest.mark.parametrize(
    ("order", "answer"),
    [
        ("/remind", "Usage"),
        ("/remind soon x", "Usage"),
        ("/remind 10m", "Usage"),
        ("/remind 2020-01-01 09:00 x", "has passed"),
        ("/remind 999d x", "more than a year"),
        ("/remind 10m " + "x" * 501, "too long"),
        ("/remind list", "No reminder"),
        ("/remind remove 1", "no number 1"),
        ("/remind remove " + "9" * 5000, "no number 999999999."),
    ],
)
async def test_what_cannot_be_a_reminder(world, order, answer):
    said = await world.say(order)
    assert answer in await world.answer(said)
    assert await timers(world, said) == []


async def test_times_are_the_configured_zones(world, tools):
    world.service.reload(tools.make_config(chat={"timezone": "Asia/Tokyo"}))
    order = await world.say("/remind tomorrow 09:00 x")
    assert "09:00" in await world.answer(order)
    (timer,) = await timers(world, order)
    assert (timer.due_at.hour, timer.due_at.minute) == (0, 0)


async def test_reminders_are_listed_and_taken_back(world, tools):
    await world.store.set_chat_policy("app", "group", SessionPolicy.SHARED)
    for who, text in (("ann", "first"), ("bob", "second")):
        await world.final(await world.say(f"/remind 2h {text}", sender=Sender(who), **GROUP))
    text = await world.answer(await world.say("/remind list", **GROUP))
    assert text.splitlines()[0].startswith("1. ")
    assert text.splitlines()[1].endswith("second")
    assert "somebody else's" in await world.answer(await world.say("/remind remove 2", **GROUP))
    assert "taken back" in await world.answer(await world.say("/remind remove 1", **GROUP))
    left = await world.answer(await world.say("/提醒 列表", **GROUP))
    assert "first" not in left
    assert "second" in left


async def test_in_a_group_it_says_for_whom(world, late, tools):
    await world.store.set_chat_policy("app", "group", SessionPolicy.SHARED)
    await world.final(await world.say("/remind 10m x", sender=Sender("bob", "Bob"), **GROUP))
    await late(minutes=11)
    await tools.eventually(lambda: said_later(world, "⏰ Bob") != [])


async def test_there_may_be_only_so_many(world):
    for n in range(20):
        await world.final(await world.say(f"/remind 2h {n}"))
    assert "20 reminders" in await world.answer(await world.say("/remind 2h more"))


async def test_a_command_taken_up_again_makes_no_second_one(world):
    order = await world.say("/remind 10m x")
    await world.final(order)
    await world.service._commands.execute(await world.turn(order), "feishu")
    assert len(await timers(world, order)) == 1


async def test_who_lost_access_is_not_reminded(world, late, tools):
    order = await world.say("/remind 10m x")
    await world.final(order)
    world.service.reload(tools.make_config(access={"deny": ["feishu:ann"]}))
    await late(minutes=11)
    await tools.settle()
    assert await timers(world, order) == []
    assert said_later(world, "⏰") == []


# -- /schedule -------------------------------------------------------------------------------------------------------------
async def test_a_schedule_asks_again_and_again(world, late, tools):
    world.service.reload(tools.make_config(access=ADMINS))
    order = await world.say("/schedule daily 09:00 what is new?")
    assert "daily 09:00" in await world.answer(order)
    (timer,) = await timers(world, order)
    assert timer.kind is TimerKind.SCHEDULE
    for n in range(1, 3):
        await late(days=1)
        await tools.eventually(lambda n=n: len(world.engine.requests) == n)
        assert "what is new?" in tools.text_of(world.engine.requests[-1])
    # Three mornings slept through are made up for once.
    await late(days=3)
    await tools.eventually(lambda: len(world.engine.requests) == 3)
    (timer,) = await timers(world, order)
    assert timer.due_at > world.service._context.clock.now()
    await tools.eventually(lambda: world.adapter.finals.count("Hello there") == 3)


async def test_schedules_are_for_admins(world, late, tools):
    assert "Only an admin" in await world.answer(await world.say("/schedule daily 09:00 x"))
    world.service.reload(tools.make_config(access=ADMINS))
    order = await world.say("/定时 每周一 9:00 开会")
    await world.final(order)
    assert "weekly mon 09:00 · 开会" in await world.answer(await world.say("/schedule list"))
    world.service.reload(tools.make_config())
    await late(days=8)
    await tools.settle()
    assert world.engine.requests == []
    world.service.reload(tools.make_config(access=ADMINS))
    assert "taken back" in await world.answer(await world.say("/schedule remove 1"))
    assert await timers(world, order) == []


@pytest.mark.parametrize("order", ["/schedule", "/schedule hourly 9:00 x", "/schedule daily 09:00"])
async def test_what_cannot_be_a_schedule(world, tools, order):
    world.service.reload(tools.make_config(access=ADMINS))
    assert "Usage" in await world.answer(await world.say(order))


# -- housekeeping ----------------------------------------------------------------------------------------------------------
async def test_the_sweep_finds_what_grew_too_long(world, tools):
    """Nobody writes any more, and the summarizer was off when the last answer came."""
    world.engine.info = tools.ScriptEngine(n_ctx=1600).info
    for n in range(16):
        said = await world.say(f"Stall {n}: Nr{n}. And so on and so on, as we said so often.")
        await world.final(said)
    turn = await world.turn(said)
    await world.service.timers.sweep()
    assert await world.store.summary(turn.session_id) is None
    world.service.reload(tools.make_config(summarizer={"enabled": True, "share": 0.2}))
    await world.service.timers.sweep()

    async def there() -> bool:
        return await world.store.summary(turn.session_id) is not None

    await tools.eventually(there)


async def test_retention_deletes_what_is_old_and_nothing_else(world, tools):
    old = await world.say("old", chat_id="one")
    await world.final(old)
    await world.final(await world.say("/new", chat_id="one"))
    await world.final(await world.say("newer", chat_id="one"))
    turn = await world.turn(old)
    clock = ShiftedClock()
    clock.shift = timedelta(days=31)
    object.__setattr__(world.service._context, "clock", clock)
    await world.service.timers.expire()  # 0 days = for ever
    assert await world.store.turn(turn.id) is not None
    world.service.reload(tools.make_config(storage={"retention_days": 30}))
    clock.shift = timedelta(days=29)
    await world.service.timers.expire()
    assert await world.store.turn(turn.id) is not None
    clock.shift = timedelta(days=31)
    # The clock has jumped: it may be wrong, and is asked once more.
    await world.service.timers.expire()
    assert await world.store.turn(turn.id) is not None
    await world.service.timers.expire()
    assert await world.store.turn(turn.id) is None
    assert await world.store.told(turn.session, 10) == []
    assert turn.session_id in world.engine.forgotten
    # A redelivered event stays known, and the conversation begins anew.
    await world.service.inbox.accept("feishu", world.adapter, (old,))
    again = await world.say("hello", chat_id="one")
    await world.final(again)
    assert (await world.turn(again)).state is TurnState.DONE
    assert len(world.engine.requests) == 3


async def test_what_was_erased_is_told_to_the_engine_once_more(world, tools):
    said = await world.say("a secret")
    await world.final(said)
    await world.final(await world.say("/reset"))
    turn = await world.turn(said)
    world.engine.forgotten.clear()
    await world.service.timers.sweep_kv()
    assert turn.session_id in world.engine.forgotten
    assert f"{turn.session_id}.1" in world.engine.forgotten
    newer = await world.turn(await world.say("hello"))
    assert newer.session_id not in world.engine.forgotten


async def test_a_schedule_may_ask_for_a_summary(world, tools):
    world.service.reload(tools.make_config(access={"admins": ["feishu:ann"]}))
    await world.final(await world.say("Let us talk about lighthouses."))
    await world.final(await world.say("/schedule daily 09:00 /总结"))
    timer = (await world.store.due_timers(datetime.max.replace(tzinfo=UTC), 5))[0]
    draft = world.service.timers._draft(timer, timer.due_at)
    assert (draft.lane, draft.question) == (Lane.BACKGROUND, "/summary")


async def test_a_failing_work_ends_nothing(world, tools, monkeypatch):
    async def fails(*args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.store, "due_timers", fails)
    world.service.timers.changed()
    await tools.settle()
    monkeypatch.undo()
    assert "drink" in await world.answer(await world.say("/remind 10m drink"))
