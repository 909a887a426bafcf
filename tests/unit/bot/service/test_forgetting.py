"""/forget: nothing of what was said is left anywhere, and nothing else goes with it."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace

import pytest

from bot.domain.records import Canonical, Summary
from bot.domain.types import ChatKind, Outcome, Sender, SessionPolicy
from bot.errors import StoreError
from bot.store.erasing import Erasing

GROUP = {"chat_kind": ChatKind.GROUP, "mentions_bot": True, "chat_id": "group"}
SECRET = "Falke4711"
LONG = " And so on and so on, as we said so often, in so many words that nobody could count them any more."


def everything(world) -> str:
    """Every value of every table, read past the store."""
    connection = sqlite3.connect(world.folder / "hearth.db")
    try:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
            if not name.startswith("recall_fts")
        ]
        return "\n".join(
            repr(row) for name in names for row in connection.execute(f"SELECT * FROM {name}")
        )
    finally:
        connection.close()


async def indexed(world, session_id):
    while not await world.store.index_history(session_id, limit=100):
        pass


async def test_it_asks_first(world):
    await world.final(await world.say(f"my number is {SECRET}"))
    assert "/forget yes" in await world.answer(await world.say("/forget"))
    assert SECRET in everything(world)


@pytest.mark.parametrize("order", ["/forget yes", "/忘记 确认", "／forget YES"])
async def test_all_epochs_are_erased_everywhere(world, tools, order):
    world.engine.scripts = [tools.Script([f"I will remember {SECRET}"])]
    first = await world.say(f"my number is {SECRET}")
    await world.final(first)
    old = await world.turn(first)
    await world.final(await world.say("/new"))
    second = await world.say(f"again {SECRET}")
    await world.final(second)
    turn = await world.turn(second)
    await indexed(world, turn.session_id)
    await world.final(await world.say(f"/system speak of {SECRET}"))
    await world.final(await world.say(f"/remind 10m {SECRET}"))
    await world.final(await world.say("/history"))
    assert "falke4711" in everything(world).lower()
    n_rows = everything(world).count("\n")
    assert "erased" in await world.answer(await world.say(order))
    left = everything(world)
    assert "falke4711" not in left.lower()
    assert await world.store.canonical(turn.session_id) is None
    assert turn.id in left  # rows keep their ids
    assert left.count("\n") > n_rows / 2
    for session_id in (old.session_id, turn.session_id):
        assert session_id in world.engine.forgotten
        assert f"{session_id}.1" in world.engine.forgotten
    await world.final(await world.say("which number?"))
    assert SECRET not in tools.text_of(world.engine.requests[-1])
    told = await world.store.told(turn.session, 10)
    assert [one.question for one in told] == ["which number?"]


async def test_the_engines_copies_of_every_summary_go(world):
    said = await world.say("hi")
    await world.final(said)
    session_id = (await world.turn(said)).session_id
    tokens = Canonical("f", (1,), (0,), 2, 1)
    await world.store.save_summary(Summary(session_id, 7, 1, SECRET, 1, "model"), tokens)
    await world.final(await world.say("/forget yes"))
    keys = {session_id, *(f"{session_id}.{rev}" for rev in range(1, 9))}
    assert keys <= set(world.engine.forgotten)
    # After a crash between the database and the engine nothing else knows how many there were.
    world.engine.forgotten.clear()
    await world.service.timers.sweep_kv()
    assert keys <= set(world.engine.forgotten)
    assert SECRET not in everything(world)


@pytest.mark.parametrize("order", ["/forget yes", "/forget last"])
async def test_the_databases_log_keeps_none_of_it(world, order):
    await world.final(await world.say(f"my number is {SECRET}"))
    await world.final(await world.say(order))
    for path in world.folder.iterdir():
        assert SECRET.encode() not in path.read_bytes(), path.name


async def test_a_log_in_use_is_emptied_by_the_sweep(world, monkeypatch):
    await world.final(await world.say(f"my number is {SECRET}"))
    monkeypatch.setattr("bot.store.erasing._LOG_WAIT_S", 0.0)
    reader = sqlite3.connect(world.folder / "hearth.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM turns").fetchone()
    assert "erased" in await world.answer(await world.say("/forget yes"))
    log = world.folder / "hearth.db-wal"
    assert SECRET.encode() in log.read_bytes()
    reader.close()
    await world.service.timers.prune()
    assert SECRET.encode() not in log.read_bytes()


async def test_a_fault_among_its_transactions_is_made_up_for(world, monkeypatch):
    monkeypatch.setattr("bot.store.erasing._AT_ONCE", 2)
    for n in range(5):
        await world.final(await world.say(f"{n}: {SECRET}"))
    erase, calls = Erasing._erase_ids, []

    def fails(self, ids, connection):
        calls.append(len(ids))
        if len(calls) in {2, 3}:  # the writer tries once more by itself
            raise StoreError("the disk is full")
        erase(self, ids, connection)

    monkeypatch.setattr(Erasing, "_erase_ids", fails)
    assert "erased" in await world.answer(await world.say("/forget yes"))
    assert len(calls) > 4
    assert max(calls) == 2
    assert SECRET not in everything(world)


async def test_a_redelivered_message_is_not_answered_again(world):
    said = await world.say("hello")
    await world.final(said)
    await world.final(await world.say("/forget yes"))
    n = len(world.engine.requests)
    await world.service.inbox.accept("feishu", world.adapter, (said,))
    await world.final(await world.say("/status"))
    assert len(world.engine.requests) == n


async def test_other_conversations_are_left_alone(world):
    other = await world.say("keep me", sender=Sender("bob", "Bob"), chat_id="other")
    await world.final(other)
    await world.final(await world.say("/forget yes"))
    turn = await world.turn(other)
    assert [one.answer for one in await world.store.past_turns(turn.session_id)] == ["Hello there"]


async def test_a_question_right_behind_is_kept_and_answered(world):
    await world.final(await world.say(f"my number is {SECRET}"))
    await world.say("/forget yes")
    second = await world.say("who are you?")
    assert await world.answer(second) == "Hello there"
    assert (await world.turn(second)).question == "who are you?"


async def test_what_runs_is_ended_and_its_words_go_too(world, tools):
    world.engine.scripts = [tools.Script([SECRET, " two"], hold=asyncio.Event())]
    said = await world.say("x")
    await tools.eventually(lambda: any(s.views for s in world.adapter.replies.values()))
    assert "erased" in await world.answer(await world.say("/forget yes"))
    assert (await world.final(said)).outcome is Outcome.STOPPED
    assert SECRET not in everything(world)


async def test_what_a_turn_wrote_after_all_goes_with_the_sweep(world):
    said = await world.say("x")
    await world.final(said)
    await world.final(await world.say("/forget yes"))
    turn = await world.turn(said)
    snapshot, _ = await world.store.reply(turn.id)
    late = type(snapshot)(snapshot.rev + 1, SECRET, (1,), snapshot.outcome)
    await world.store.save_reply(turn.id, late, None)
    assert SECRET in everything(world)
    await world.service.timers.prune()
    assert SECRET not in everything(world)


async def test_repeated_after_a_crash_it_leaves_the_newer_talk_alone(world):
    await world.final(await world.say("old"))
    order = await world.say("/forget yes")
    old = await world.settled(order)
    newer = await world.say("my number is 4711")
    await world.final(newer)
    await world.service._commands.execute(old, "feishu")
    turn = await world.turn(newer)
    assert turn.question == "my number is 4711"
    assert turn.session_id not in world.engine.forgotten


async def test_several_peoples_words_are_an_admins_to_erase(world, tools):
    await world.store.set_chat_policy("app", "group", SessionPolicy.SHARED)
    said = await world.say(f"my number is {SECRET}", **GROUP)
    await world.final(said)
    for order in ("/forget", "/forget yes"):
        answer = await world.answer(await world.say(order, sender=Sender("bob"), **GROUP))
        assert "Only an admin" in answer
    assert SECRET in everything(world)
    assert (await world.store.session((await world.turn(said)).session)).key.epoch == 0
    world.service.reload(tools.make_config(access={"admins": ["feishu:root"]}))
    await world.final(await world.say("/forget yes", sender=Sender("root"), **GROUP))
    assert SECRET not in everything(world)


# -- the last turns ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("order", "left"), [("/forget last", 2), ("/忘记 最近 2", 1)])
async def test_the_last_turns_only(world, tools, order, left):
    for n in range(3):
        said = await world.say(f"Stall {n}: Nr{n}.{LONG}")
        await world.final(said)
    turn = await world.turn(said)
    await indexed(world, turn.session_id)
    await world.final(await world.say("/history"))
    assert f"last {3 - left} turns were erased" in await world.answer(await world.say(order))
    gone = [f"Nr{n}" for n in range(left, 3)]
    text = everything(world).lower()
    assert all(one.lower() not in text for one in gone)
    assert "nr0" in text
    # The rest need not be put into the index again.
    found = await world.store.search(turn.session_id, ("stall",), 100, 10)
    assert found.indexed_to == left
    assert {hit.turn_no for hit in found.hits} == set(range(1, left + 1))
    assert found.n_messages == 2 * left
    assert turn.session_id in world.engine.forgotten
    await world.final(await world.say("and?"))
    shown = tools.text_of(world.engine.requests[-1])
    assert [f"Nr{n}" in shown for n in range(3)] == [n < left for n in range(3)]


async def test_a_summary_that_may_tell_of_them_goes_too(world, tools):
    for n in range(5):
        said = await world.say(f"Stall {n}: Nr{n}.{LONG}")
        await world.final(said)
    turn = await world.turn(said)
    await world.final(await world.say("/compact"))
    assert "Nr2" in (await world.store.summary(turn.session_id)).text
    await world.final(await world.say("/forget last 3"))
    assert "Nr2" not in everything(world)
    view = await world.final(await world.say("and?"))
    shown = tools.text_of(world.engine.requests[-1])
    assert [f"Nr{n}" in shown for n in range(5)] == [True, True, False, False, False]
    assert view.notice == ""


async def test_a_summary_being_written_does_not_bring_them_back(world, tools):
    hold = asyncio.Event()
    world.engine.background = tools.Script(words=["Part", " two"], hold=hold)
    for n in range(5):
        said = await world.say(f"Stall {n}: Nr{n}.{LONG}")
        await world.final(said)
    turn = await world.turn(said)
    compact = await world.say("/compact")
    await tools.eventually(lambda: len(world.engine.requests) > 5)
    await world.service._commands._words.forget(_order(turn, "/forget last 5"), "feishu")
    hold.set()
    assert "nothing to compact" in await world.answer(compact)
    assert (await world.store.summary(turn.session_id)).text == ""
    assert "Nr0" not in everything(world)


def _order(turn, text):
    """A command turn as the dispatcher would hand it over, without waiting behind the one that runs."""
    return replace(turn, id="order", question=text, turn_no=turn.turn_no + 2)


async def test_in_a_group_one_forgets_ones_own(world, tools):
    await world.store.set_chat_policy("app", "group", SessionPolicy.SHARED)
    for name, text in (("bob", "Bobs Nr1"), ("eve", "Eves Nr2"), ("bob", "Bobs Nr3")):
        await world.final(await world.say(text, sender=Sender(name, name.title()), **GROUP))
    await world.final(await world.say("/forget last 9", sender=Sender("bob"), **GROUP))
    text = everything(world)
    assert "Eves Nr2" in text
    assert "Nr1" not in text
    assert "Nr3" not in text


@pytest.mark.parametrize(
    "order",
    [
        "/forget last 0",
        "/forget me",
        "/forget last x",
        "/forget last 51",
        "/forget last " + "9" * 5000,
    ],
)
async def test_what_it_does_not_understand_erases_nothing(world, order):
    await world.final(await world.say(f"my number is {SECRET}"))
    assert "Usage" in await world.answer(await world.say(order))
    assert SECRET in everything(world)


async def test_the_last_of_nothing(world):
    assert "nothing to erase" in await world.answer(await world.say("/forget last"))
