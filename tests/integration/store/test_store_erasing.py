"""Erasing, retention, timers and settings: the same on both databases."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from bot.domain.records import Canonical, Summary, Timer, TimerKind, TurnDraft
from bot.domain.types import (
    ChatKind,
    Outcome,
    ReplyTarget,
    Sender,
    SessionKey,
    Snapshot,
    Turn,
    TurnState,
    WhileBusy,
)
from bot.store import Store
from bot.store.tables import metadata
from tests.store_drafts import chat, event, notice

SECRET = "Falke4711"


async def answered(store: Store, draft: TurnDraft, answer: str) -> Turn:
    accepted = await store.accept(event(draft))
    await store.claim("me", 15, 10)
    await store.save_reply(accepted.turn_id, Snapshot(1, answer, (1, 2), Outcome.COMPLETE), None)
    await store.save_answer_tokens(accepted.turn_id, "model", (1, 2))
    assert await store.finish_turn(accepted.turn_id, "me", TurnState.DONE)
    turn = await store.turn(accepted.turn_id)
    assert turn is not None
    return turn


async def everything(store: Store) -> str:
    def find(connection: sa.Connection) -> str:
        tables = metadata.tables.values()
        return "\n".join(repr(row) for t in tables for row in connection.execute(sa.select(t)))

    return (await store._db.read(find)).lower()


def a_timer(key: SessionKey, due_at: datetime, **changes: Any) -> Timer:
    target = ReplyTarget(key.app_id, key.chat_id, "om_1", {"k": "值"})
    timer = Timer(
        0, TimerKind.REMIND, key, Sender("ou_1", "Ann"), ChatKind.GROUP, target, "x", due_at
    )
    return replace(timer, **changes)


async def test_a_conversation_is_forgotten_whole(store: Store) -> None:
    one = await answered(store, chat(f"I am {SECRET}", name=SECRET), f"Hello {SECRET}")
    await store.fix_prompt(one.id, f"[x] {SECRET}", noted_date="2026-03-01")
    canonical = Canonical("model", (1, 2, 3), (0, 1), 1, 1)
    await store.save_summary(Summary(one.session_id, 4, 1, SECRET, 3, "model"), canonical)
    await store.set_session_system(one.session, SECRET)
    await store.add_timer(a_timer(one.session, datetime(2027, 1, 1, tzinfo=UTC), text=SECRET))
    while not await store.index_history(one.session_id, limit=10):
        pass
    other = await answered(store, chat("other", user="u2"), "answer")
    assert SECRET.lower() in await everything(store)
    await store.next_epoch(one.session, erase_from_prompt=False)
    erased = await store.forget_session(one.session, but_turn="")
    assert [(e.session_id, e.rev) for e in erased] == [(one.session_id, 4)]
    left = await everything(store)
    assert SECRET.lower() not in left
    assert one.id in left
    assert await store.past_turns(one.session_id) == []
    assert [t.answer for t in await store.past_turns(other.session_id)] == ["answer"]
    # Nothing brings it back.
    await store.save_canonical(one.session_id, canonical)
    assert not await store.save_summary(
        Summary(one.session_id, 9, 1, SECRET, 3, "model"), canonical
    )
    assert await store.index_history(one.session_id, limit=10)
    assert SECRET.lower() not in await everything(store)


async def test_what_is_current_is_not_forgotten(store: Store) -> None:
    one = await answered(store, chat("question"), "answer")
    assert await store.forget_session(one.session, but_turn="") == []
    assert len(await store.past_turns(one.session_id)) == 1


async def test_the_summary_that_is_being_written_is_void(store: Store) -> None:
    turns = [await answered(store, chat(f"question {n}"), f"answer {n}") for n in range(3)]
    session_id = turns[0].session_id
    first = Canonical("model", (1, 2, 3), (0, 1), 2, 3)
    await store.save_summary(Summary(session_id, 1, 1, "of 0", 3, "model"), first)
    gone = await store.forget_turns(session_id, from_turn_no=3, before_turn_no=9, asker_id=None)
    assert gone.rev == 1
    kept = await store.summary(session_id)
    assert kept is not None
    assert (kept.text, kept.covers_turn_no) == ("of 0", 1)
    assert not await store.save_summary(Summary(session_id, 2, 2, "late", 3, "model"), first)
    canonical = await store.canonical(session_id)
    assert canonical is not None
    assert (canonical.token_ids, canonical.window_from_turn_no) == ((), 2)
    await store.forget_turns(session_id, from_turn_no=1, before_turn_no=2, asker_id=None)
    void = await store.summary(session_id)
    assert void is not None
    assert (void.text, void.covers_turn_no) == ("", 0)
    assert [t.answer for t in await store.past_turns(session_id)] == ["answer 1"]


async def test_old_conversations_are_deleted_but_their_dedupe_keys(store: Store, clock) -> None:
    acceptance = event(chat("old"), key="om_old")
    old = await store.accept(acceptance)
    await store.claim("me", 15, 10)
    await store.finish_turn(old.turn_id, "me", TurnState.DONE)
    session = (await store.turn(old.turn_id)).session
    await store.next_epoch(session, erase_from_prompt=False)
    waiting = await store.accept(event(chat("waits for ever", user="u2")))
    clock.pass_s(40 * 86400)
    fresh = await answered(store, chat("fresh", user="u3"), "answer")
    before = clock() - timedelta(days=30)
    n = 0
    while erased := await store.delete_older(before, 1):
        n += len(erased)
    assert n == 2  # an old epoch, and after it the empty one that was current
    assert await store.turn(old.turn_id) is None
    assert await store.turn(waiting.turn_id) is not None
    assert await store.turn(fresh.id) is not None
    assert (await store.accept(acceptance)).duplicate
    assert (await store.session(session)).key.epoch == 0


async def test_a_turn_that_goes_on_is_told_twice_and_shown_once(store: Store) -> None:
    one = await answered(store, chat("count"), "One ")
    two = await answered(store, replace(chat("go on"), continues=one.id), "two ")
    three = await answered(store, replace(chat("go on"), continues=two.id), "three")
    (past,) = await store.past_turns(one.session_id)
    assert (past.prompt_text, past.answer) == ("count", "One two three")
    assert (past.turn_no, past.last_turn_no, past.last_turn_id) == (1, 3, three.id)
    assert past.answer_token_ids == (1, 2) * 3
    assert len(await store.told(one.session, 10)) == 3
    # One that was asked for in words has a prompt, and stands for itself.
    await store.fix_prompt(three.id, "please go on")
    assert [t.answer for t in await store.past_turns(one.session_id)] == ["One two ", "three"]
    await store.mark_replaced(one.id)
    assert await store.past_turns(one.session_id) == []


async def test_a_question_does_not_join_a_turn_that_goes_on(store: Store) -> None:
    one = await answered(store, chat("count"), "One ")
    two = await store.accept(event(replace(chat("go on"), continues=one.id)))
    three = await store.accept(event(chat("and?", while_busy=WhileBusy.MERGE)))
    assert three.turn_id != two.turn_id


async def test_long_conversations_are_found_by_their_lists(store: Store) -> None:
    short = await answered(store, chat("short", user="u1"), "answer")
    long = await answered(store, chat("long", user="u2"), "answer")
    for turn, n in ((short, 99), (long, 100)):
        await store.save_canonical(turn.session_id, Canonical("m", (7,) * n, (0,), 1, 1))
    assert [t.id for t in await store.long_conversations(100, 10)] == [long.id]
    await store.next_epoch(long.session, erase_from_prompt=False)
    assert await store.long_conversations(100, 10) == []


async def test_a_timer_fires_once(store: Store, clock) -> None:
    key = SessionKey("app", "c1", "t1", None)
    now = clock()
    await store.add_timer(a_timer(key, now, made_by_turn="a"))
    await store.add_timer(a_timer(key, now, made_by_turn="a"))  # the same command again
    await store.add_timer(a_timer(key, now + timedelta(hours=1), made_by_turn="b", text="later"))
    assert [t.text for t in await store.timers_of(key)] == ["x", "later"]
    assert await store.next_due() == now
    (timer,) = await store.due_timers(now, 10)
    assert replace(timer, id=0) == a_timer(key, now, made_by_turn="a")
    said = replace(notice("x"), session=key)
    results = await asyncio.gather(
        *(store.fire_timer(timer, event(said, key="timer"), None) for _ in range(5))
    )
    assert sum(result is not None for result in results) == 1
    assert await store.due_timers(now, 10) == []
    (later,) = await store.timers_of(key)
    moved = later.due_at + timedelta(days=1)
    await store.fire_timer(later, None, moved)
    assert await store.next_due() == moved
    assert await store.remove_timer(later.id)
    assert not await store.remove_timer(later.id)
    assert await store.next_due() is None


async def test_what_was_set_for_a_conversation(store: Store) -> None:
    key = SessionKey("app", "c1", None, "u1")
    assert await store.session_system(key) == ""
    await store.set_session_system(key, "one")
    await store.set_session_system(key, "two")
    assert await store.session_system(replace(key, epoch=7)) == "two"
    assert await store.session_system(replace(key, user_id="u2")) == ""
    await store.set_session_system(key, "")
    assert await store.session_system(key) == ""
    session = await store.session(key)
    await store.note_told_from(session.id, 5)
    assert (await store.session(key)).told_from_turn_no == 5


async def test_neither_sweeps_nor_history_read_every_turn(sqlite_url: str, open_store) -> None:
    store = await open_store(sqlite_url)
    asked: list[tuple[str, Any]] = []

    @sa.event.listens_for(store._db._readers.sync_engine, "before_cursor_execute")
    def note(_c: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        asked.append((statement, values))

    await store.erase_leftovers()
    await store.long_conversations(100, 10)
    await store.told(SessionKey("app", "c1", None, "u1"), 5)
    plans = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    for statement, values in (one for one in asked if one[0].startswith("SELECT")):
        steps = [row[3] for row in plans.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        assert not [step for step in steps if step.startswith("SCAN turns")], statement
        if "turns.question" in statement:
            assert not [step for step in steps if "TEMP B-TREE" in step], "sorts years of talk"
    plans.close()
    assert sum(statement.startswith("SELECT") for statement, _ in asked) >= 3
