"""Claims, leases, recovery and cancelling."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
import sqlalchemy as sa

from bot.domain.types import (
    Lane,
    PartState,
    ReplyPart,
    Snapshot,
    Turn,
    TurnKind,
    TurnState,
    WhileBusy,
)
from bot.store import Store
from tests.store_drafts import chat, command, event, notice, session_key


async def _ask(store: Store, *drafts) -> list[str]:
    return [(await store.accept(event(draft))).turn_id for draft in drafts]


async def _states(store: Store, *ids: str) -> list[TurnState]:
    return [(await store.turn(i)).state for i in ids]


async def test_a_claim_takes_the_oldest_of_each_line(store: Store) -> None:
    a1, _a2, b1, a_stop = await _ask(
        store, chat(user="a"), chat(user="a"), chat(user="b"), command("/stop", user="a")
    )
    turns = await store.claim("me", 60, 10)
    assert [t.id for t in turns] == [a1, b1, a_stop]
    assert {t.state for t in turns} == {TurnState.RUNNING}
    assert {t.attempt for t in turns} == {1}
    assert turns[0].message_ids == ((await store.turn(a1)).message_ids)
    assert await store.claim("me", 60, 10) == []


async def test_a_claim_takes_no_more_than_asked_oldest_first(store: Store) -> None:
    ids = await _ask(store, *(chat(user=f"u{n}") for n in range(5)))
    assert [t.id for t in await store.claim("me", 60, 2)] == ids[:2]
    assert await store.claim("me", 60, 0) == []
    assert [t.id for t in await store.claim("me", 60, 10)] == ids[2:]


async def test_the_next_turn_runs_when_its_predecessor_is_done(store: Store) -> None:
    first, second = await _ask(store, chat(), chat())
    await store.claim("me", 60, 10)
    assert await store.finish_turn(first, "me", TurnState.DONE)
    assert [t.id for t in await store.claim("me", 60, 10)] == [second]
    assert await _states(store, first, second) == [TurnState.DONE, TurnState.RUNNING]


async def test_twelve_claims_at_once_take_each_turn_once(store: Store) -> None:
    heads = [(await _ask(store, chat(user=f"u{n}"), chat(user=f"u{n}")))[0] for n in range(6)]
    claims = await asyncio.gather(*(store.claim(f"worker{n}", 60, 2) for n in range(12)))
    assert sorted(t.id for claim in claims for t in claim) == sorted(heads)
    assert (await store.facts()).turns_running == 6


@pytest.mark.parametrize("round_", range(3))
async def test_several_processes_claim_each_turn_once(
    postgres_url: str, open_store, round_: int
) -> None:
    stores = [await open_store(postgres_url) for _ in range(3)]
    heads = [(await _ask(stores[0], chat(user=f"u{n}"), chat(user=f"u{n}")))[0] for n in range(8)]

    async def work(store: Store, owner: str) -> list[str]:
        return [t.id for _ in range(4) for t in await store.claim(owner, 60, 2)]

    taken = await asyncio.gather(
        *(work(s, f"p{n}.{k}") for n, s in enumerate(stores) for k in range(3))
    )
    assert sorted(i for ids in taken for i in ids) == sorted(heads)


# -- finishing -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", [TurnState.DONE, TurnState.FAILED, TurnState.CANCELLED])
async def test_only_the_holder_finishes_and_only_once(store: Store, state: TurnState) -> None:
    (turn,) = await _ask(store, chat())
    assert not await store.finish_turn(turn, "me", state), "it does not run yet"
    await store.claim("me", 60, 1)
    assert not await store.finish_turn(turn, "somebody", state)
    assert await store.finish_turn(turn, "me", state, error="a reason")
    assert not await store.finish_turn(turn, "me", TurnState.DONE)
    assert await _states(store, turn) == [state]


@pytest.mark.parametrize("state", [TurnState.QUEUED, TurnState.RUNNING])
async def test_a_turn_is_finished_only_for_good(store: Store, state: TurnState) -> None:
    (turn,) = await _ask(store, chat())
    await store.claim("me", 60, 1)
    with pytest.raises(ValueError, match="cannot be finished"):
        await store.finish_turn(turn, "me", state)


# -- leases --------------------------------------------------------------------------------------------------------------
async def test_a_released_turn_waits_again_at_its_old_place(store: Store) -> None:
    first, second = await _ask(store, chat(), chat())
    await store.claim("me", 60, 1)
    await store.release(first, "somebody")
    assert await _states(store, first) == [TurnState.RUNNING]
    await store.release(first, "me")
    assert await _states(store, first, second) == [TurnState.QUEUED, TurnState.QUEUED]
    (again,) = await store.claim("you", 60, 5)
    assert (again.id, again.attempt) == (first, 2)


async def _lapse(clock) -> None:
    """Let leases of 50 ms expire, by either clock."""
    clock.pass_s(0.2)
    await asyncio.sleep(0.2)


async def test_recovery_takes_expired_turns_back(store: Store, clock) -> None:
    lost, held = await _ask(store, chat(user="a"), chat(user="b"))
    await store.claim("me", 0.05, 1)
    await store.claim("me", 600, 1)
    await _lapse(clock)
    assert await store.recover("me") == 1
    assert await _states(store, lost, held) == [TurnState.QUEUED, TurnState.RUNNING]
    assert not await store.finish_turn(lost, "me", TurnState.DONE), "the lease was lost"
    assert await store.recover("me") == 0


async def test_a_heartbeat_keeps_leases_alive(store: Store, clock) -> None:
    a, b, c = await _ask(store, *(chat(user=u) for u in "abc"))
    await store.claim("me", 0.05, 2)
    await store.claim("you", 600, 1)
    assert await store.heartbeat("me", 600) == {a, b}
    await _lapse(clock)
    assert await store.heartbeat("you", 600) == {c}
    assert await store.recover("me") == (1 if store_is_sqlite(store) else 0)
    assert await _states(store, a, b) == [TurnState.RUNNING, TurnState.RUNNING]
    await store.finish_turn(a, "me", TurnState.DONE)
    assert await store.heartbeat("me", 600) == {b}
    assert await store.heartbeat("nobody", 600) == frozenset()


def store_is_sqlite(store: Store) -> bool:
    return store._db.place.is_sqlite


async def test_on_sqlite_the_dead_process_s_turns_come_back_at_once(
    sqlite_url: str, open_store
) -> None:
    first = await open_store(sqlite_url)
    (turn,) = await _ask(first, chat())
    await first.claim("dead", 3600, 1)
    await first.close()
    second = await open_store(sqlite_url)
    assert await second.recover("alive") == 1
    (again,) = await second.claim("alive", 60, 1)
    assert (again.id, again.attempt) == (turn, 2)
    assert await second.recover("alive") == 0, "its own are left alone"


async def test_on_postgresql_a_living_process_keeps_its_turns(
    postgres_url: str, open_store
) -> None:
    here, there = await open_store(postgres_url), await open_store(postgres_url)
    await _ask(here, chat())
    await here.claim("here", 3600, 1)
    assert await there.recover("there") == 0
    assert await there.claim("there", 60, 5) == []


# -- cancelling ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("silent", [False, True])
async def test_cancel_a_waiting_turn(store: Store, silent: bool) -> None:
    (turn,) = await _ask(store, chat())
    assert await store.request_cancel(turn, silent=silent) is TurnState.QUEUED
    found = await store.turn(turn)
    assert (found.state, found.silent) == (TurnState.CANCELLED, silent)
    assert await store.claim("me", 60, 5) == []
    assert await store.request_cancel(turn) is TurnState.CANCELLED


async def test_cancel_a_running_turn_marks_it(store: Store) -> None:
    (turn,) = await _ask(store, chat())
    await store.claim("me", 60, 5)
    assert await store.request_cancel(turn) is TurnState.RUNNING
    found = await store.turn(turn)
    assert (found.state, found.cancel_requested, found.silent) == (TurnState.RUNNING, True, False)
    assert await store.request_cancel(turn, silent=True) is TurnState.RUNNING
    assert (await store.turn(turn)).silent
    await store.request_cancel(turn)
    assert (await store.turn(turn)).silent, "silence is not taken back"
    await store.release(turn, "me")
    (again,) = await store.claim("me", 60, 5)
    assert again.cancel_requested
    assert again.silent


async def test_cancel_a_waiting_turn_that_shows_something_lets_it_end(store: Store) -> None:
    """After a crash a card says "generating"; somebody must run to close it."""
    (turn,) = await _ask(store, chat())
    await store.claim("me", 60, 5)
    await store.save_reply(
        turn, Snapshot(1, "half"), ReplyPart(turn, 0, "card", "k", PartState.ATTEMPTED)
    )
    await store.release(turn, "me")
    assert await store.request_cancel(turn) is TurnState.QUEUED
    (again,) = await store.claim("me", 60, 5)
    assert (again.id, again.cancel_requested) == (turn, True)


async def test_cancel_what_is_over_or_unknown_changes_nothing(store: Store) -> None:
    (turn,) = await _ask(store, chat())
    await store.claim("me", 60, 5)
    await store.finish_turn(turn, "me", TurnState.DONE)
    assert await store.request_cancel(turn, silent=True) is TurnState.DONE
    found = await store.turn(turn)
    assert (found.state, found.cancel_requested, found.silent) == (TurnState.DONE, False, False)
    assert await store.request_cancel("nothing") is None


# -- looking -------------------------------------------------------------------------------------------------------------
async def test_unfinished_turns_are_the_chat_s_own_in_order(store: Store) -> None:
    first, second, _ = await _ask(
        store, chat(shared=True), chat(user="u2", shared=True), command("/x", shared=True)
    )
    await store.claim("me", 60, 1)
    session = await store.session(session_key(shared=True))
    waiting = await store.unfinished_turns(session.id)
    assert [(t.id, t.state) for t in waiting] == [
        (first, TurnState.RUNNING),
        (second, TurnState.QUEUED),
    ]
    assert all(t.kind is TurnKind.CHAT for t in waiting)
    assert await store.unfinished_turns("nothing") == []


async def test_the_last_chat_turn_is_the_one_to_retry(store: Store) -> None:
    session = await store.session(session_key())
    assert await store.last_chat_turn(session.id) is None
    first, second, recalled, waiting = await _ask(store, chat("1"), chat("2"), chat("3"), chat("4"))
    await store.claim("me", 60, 5)
    await store.finish_turn(first, "me", TurnState.DONE)
    await store.claim("me", 60, 5)
    await store.finish_turn(second, "me", TurnState.FAILED)
    await store.request_cancel(recalled, silent=True)
    await _ask(store, command("/retry"), notice("hello", lane=Lane.CHAT))
    assert (await store.last_chat_turn(session.id)).id == second
    await store.mark_replaced(second)
    assert (await store.last_chat_turn(session.id)).id == first
    await store.request_cancel(waiting)
    assert (await store.last_chat_turn(session.id)).id == waiting


async def test_a_message_asked_again_leads_to_its_newest_turn(store: Store) -> None:
    draft = chat(message_id="om_same")
    _, again = await _ask(store, draft, replace(draft, question="again"))
    assert (await store.turn_of_message("app", "om_same")).id == again


async def test_fix_prompt(store: Store) -> None:
    (turn,) = await _ask(store, chat())
    await store.fix_prompt(turn, "as shown", noted_date="2026-03-01")
    assert (await store.turn(turn)).prompt_text == "as shown"
    assert (await store.session(session_key())).noted_date == "2026-03-01"
    await store.fix_prompt(turn, "as shown 2")
    assert (await store.session(session_key())).noted_date == "2026-03-01"
    await store.fix_prompt("nothing", "x", noted_date="2026-03-02")


# -- the rule, and the cost ----------------------------------------------------------------------------------------------
async def test_the_database_itself_forbids_two_running_turns(store: Store) -> None:
    await _ask(store, chat(), chat())
    forced = sa.text("UPDATE turns SET state = 'running'")
    with pytest.raises(Exception, match=r"(?i)unique"):
        await store._db.write(lambda c: c.execute(forced))
    assert (await store.facts()).turns_queued == 2


async def test_work_at_hand_does_not_read_the_history(sqlite_url: str, open_store) -> None:
    """Counted in steps of SQLite's virtual machine, not by the clock; the history is this very session's."""
    store = await open_store(sqlite_url)
    session = await store.session(session_key("old"))
    old = await _fill(store, 20_000)
    first, *_ = await _ask(store, chat(user="old"), chat(user="old"), chat(user="u2"))
    costs = {
        "claim": await _steps(store, True, lambda: store.claim("me", 60, 10)),
        "heartbeat": await _steps(store, True, lambda: store.heartbeat("me", 60)),
        "accept": await _steps(
            store, True, lambda: store.accept(event(chat(user="old", while_busy=WhileBusy.MERGE)))
        ),
        "interrupt": await _steps(
            store,
            True,
            lambda: store.accept(event(chat(user="old", while_busy=WhileBusy.INTERRUPT))),
        ),
        "finish": await _steps(store, True, lambda: store.finish_turn(first, "me", TurnState.DONE)),
        "recover": await _steps(store, True, lambda: store.recover("other")),
        "unfinished": await _steps(store, False, lambda: store.unfinished_turns(session.id)),
        "last": await _steps(store, False, lambda: store.last_chat_turn(session.id)),
        "of_message": await _steps(
            store, False, lambda: store.turn_of_message("app", old.message_ids[0])
        ),
        "past": await _steps(store, False, lambda: store.past_turns(session.id, limit=3)),
        "facts": await _steps(store, False, store.facts),
    }
    dear = {name: steps for name, steps in costs.items() if steps > 3000}
    assert not dear, f"these read the history of 20,000 turns: {costs}"


async def _steps(store: Store, writes: bool, call) -> int:
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 10
        return 0

    if writes:
        await store._db.write(
            lambda c: c.connection.dbapi_connection.set_progress_handler(count, 10)
        )
        assert await call()
        await store._db.write(
            lambda c: c.connection.dbapi_connection.set_progress_handler(None, 10)
        )
        return counted

    def watch(connection, *_: object) -> None:
        raw = connection.connection.driver_connection._conn
        raw.set_progress_handler(count, 10)

    engine = store._db._readers.sync_engine
    sa.event.listen(engine, "begin", watch)
    try:
        assert await call() is not None
    finally:
        sa.event.remove(engine, "begin", watch)
    assert counted > 0
    return counted


async def _fill(store: Store, number: int) -> Turn:
    """Many finished turns with answers in the session of "old", by two statements. Returns the first of them."""
    (old,) = await _ask(store, chat(user="old"))
    await store.claim("me", 60, 1)
    await store.finish_turn(old, "me", TurnState.DONE)
    names = [c["name"] for c in await store._db.read(lambda c: sa.inspect(c).get_columns("turns"))]
    other = [n for n in names if n not in {"seq", "id", "turn_no"}]
    copy = sa.text(
        f"INSERT INTO turns (id, turn_no, {', '.join(other)}) "
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :number) "
        f"SELECT 'old' || i, i + 1, {', '.join(other)} FROM turns, n"
    )
    answer = sa.text(
        "INSERT INTO replies (turn_id, rev, text, token_ids, outcome, notice, updated_at) "
        "SELECT id, 1, 'answer', :none, 'complete', '', 0 FROM turns"
    )
    count_on = sa.text("UPDATE sessions SET last_turn_no = :number + 1")

    def work(connection: sa.Connection) -> None:
        connection.execute(copy, {"number": number})
        connection.execute(answer, {"none": b""})
        connection.execute(count_on, {"number": number})

    await store._db.write(work)
    return await store.turn(old)


async def test_postgresql_claims_by_the_partial_indexes(postgres_url: str, open_store) -> None:
    store = await open_store(postgres_url)
    await _fill(store, 20_000)
    await _ask(store, chat())

    def plan(connection) -> str:
        from sqlalchemy.dialects import postgresql

        connection.exec_driver_sql("ANALYZE turns")
        take = str(
            store._turns._take.compile(
                dialect=postgresql.dialect(), compile_kwargs={"literal_binds": False}
            )
        )
        for name, value in {"at_most": "5", "owner": "'me'", "lease_us": "1000"}.items():
            take = take.replace(f"%({name})s", value)
        take = take.replace("%(state)s", "'running'").replace("%(attempt_1)s", "1")
        take = re.sub(r"%\(param_\d+\)s", "1000000", take)
        take = take.replace("%(clock_timestamp_1)s", "1000000").replace("%(extract_1)s", "1000000")
        return "\n".join(connection.execute(sa.text(f"EXPLAIN {take}")).scalars())

    explained = await store._db.write(plan)
    assert "ix_turns_waiting" in explained
    assert "Seq Scan on turns" not in explained
