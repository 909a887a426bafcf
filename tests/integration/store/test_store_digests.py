"""Parts of a long text on both databases: kept while the turn runs, gone with it; and the number of a turn that ends late."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from bot.domain.digest import DigestPart
from bot.domain.types import Lane, Outcome, Snapshot, Turn, TurnState, WhileBusy
from bot.store import Store
from tests.store_drafts import chat, event, session_key

PART = DigestPart(1, 7, 0, 5_000_000_000, "第一部分：预算是一万二。", "model")


async def asked(store: Store, text: str = "/summary", lane: Lane = Lane.BACKGROUND) -> Turn:
    draft = replace(chat(text), lane=lane)
    turn = await store.turn((await store.accept(event(draft))).turn_id)
    assert turn is not None
    return turn


async def ended(store: Store, turn: Turn) -> Turn:
    await store.save_reply(turn.id, Snapshot(1, "an answer", (), Outcome.COMPLETE), None)
    assert await store.finish_turn(turn.id, "me", TurnState.DONE)
    found = await store.turn(turn.id)
    assert found is not None
    return found


async def n_rows(store: Store) -> int:
    count = sa.text("SELECT count(*) FROM digest_parts")
    return int(await store._db.read(lambda c: c.execute(count).scalar_one()))


async def test_parts_come_back_in_order_and_go_with_the_turn(store: Store) -> None:
    turn = await asked(store)
    await store.claim("me", 60, 10)
    await store.save_digest_part(turn.id, replace(PART, n=2))
    await store.save_digest_part(turn.id, PART)
    await store.save_digest_part(turn.id, replace(PART, text="again"))
    assert await store.digest_parts(turn.id) == [PART, replace(PART, n=2)]
    await store.release(turn.id, "me")
    assert len(await store.digest_parts(turn.id)) == 2, "a restart finds them"
    await store.claim("me", 60, 10)
    await ended(store, turn)
    assert await n_rows(store) == 0


async def test_nothing_is_kept_of_what_is_over_or_forgotten(store: Store) -> None:
    turn = await asked(store)
    await store.save_digest_part(turn.id, PART)
    assert await n_rows(store) == 0, "it does not run"
    await store.claim("me", 60, 10)
    await store.save_digest_part(turn.id, PART)
    await store.next_epoch(session_key(), erase_from_prompt=True)
    await store.forget_session(turn.session, but_turn="")
    await store.save_digest_part(turn.id, replace(PART, n=2))
    assert await n_rows(store) == 0


async def test_a_cancelled_one_that_waits_again_leaves_nothing(store: Store) -> None:
    turn = await asked(store)
    await store.claim("me", 60, 10)
    await store.save_digest_part(turn.id, PART)
    await store.release(turn.id, "me")
    await store.request_cancel(turn.id)
    assert await n_rows(store) == 0


async def test_it_runs_beside_the_talk_and_ends_as_its_newest_turn(store: Store) -> None:
    long = await asked(store)
    short = await asked(store, "a question", Lane.CHAT)
    held = await store.claim("me", 60, 10)
    assert {turn.id for turn in held} == {long.id, short.id}
    await ended(store, short)
    late = await ended(store, long)
    past = await store.past_turns(long.session_id)
    assert [one.turn_id for one in past] == [short.id, long.id]
    assert late.turn_no == short.turn_no + 1
    assert (await asked(store, "another", Lane.CHAT)).turn_no == late.turn_no + 1


async def test_one_that_ends_first_keeps_its_number(store: Store) -> None:
    long = await asked(store)
    await store.claim("me", 60, 10)
    assert (await ended(store, long)).turn_no == long.turn_no


async def test_the_index_does_not_wait_for_it_and_finds_it_later(store: Store) -> None:
    long = await asked(store, "/summary about lighthouse")
    short = await asked(store, "where are the pelican", Lane.CHAT)
    await store.claim("me", 60, 10)
    await ended(store, short)
    assert await store.index_history(long.session_id, limit=10)
    assert len((await store.search(long.session_id, ["pelican"], 99, 5)).hits) == 1
    await ended(store, long)
    assert await store.index_history(long.session_id, limit=10)
    assert len((await store.search(long.session_id, ["lighthous"], 99, 5)).hits) == 1


async def test_interrupting_leaves_it_alone(store: Store) -> None:
    long = await asked(store)
    await store.claim("me", 60, 10)
    accepted = await store.accept(event(chat("now!", while_busy=WhileBusy.INTERRUPT)))
    assert accepted.interrupted == ()
    found = await store.turn(long.id)
    assert found is not None
    assert not found.cancel_requested
