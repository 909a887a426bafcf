"""The writer: one commit for many, faults that hit one or all, locks from outside, the end."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import bot.store.writer
from bot.domain.types import Outcome, Snapshot, TurnState
from bot.errors import StoreError
from bot.store import Store
from tests.store_drafts import chat, event, session_key


def _path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


async def test_writers_that_wait_together_share_a_commit(store: Store) -> None:
    before = store._db.figures.commits
    await asyncio.gather(*(store.accept(event(chat(user=f"u{n}"))) for n in range(40)))
    figures = store._db.figures
    assert figures.writes >= 40
    assert figures.commits - before <= 4, "the first may go alone, the others go together"
    assert figures.largest_group >= 30


async def test_one_failure_leaves_its_neighbours_alone(store: Store) -> None:
    def broken(connection: sa.Connection) -> None:
        connection.execute(sa.text("INSERT INTO chat_settings VALUES ('app', 'c', 'shared', 1)"))
        connection.execute(sa.text("INSERT INTO chat_settings VALUES ('app', 'c', 'shared', 1)"))

    def mistaken(connection: sa.Connection) -> None:
        connection.execute(sa.text("SELECT nothing FROM nowhere"))

    def wrong(connection: sa.Connection) -> None:
        connection.execute(sa.text("INSERT INTO chat_settings VALUES ('app', 'd', 'shared', 1)"))
        raise KeyError("of the work's own")

    first = asyncio.create_task(store._db.write(lambda c: None))
    await asyncio.sleep(0)
    results = await asyncio.gather(
        store.accept(event(chat("a", user="a"))),
        store._db.write(broken),
        store.accept(event(chat("b", user="b"))),
        store._db.write(mistaken),
        store._db.write(wrong),
        store.accept(event(chat("c", user="c"))),
        return_exceptions=True,
    )
    await first
    assert store._db.figures.largest_group >= 6, "they were in one transaction"
    assert [type(r).__name__ for r in results] == [
        "Accepted", "StoreError", "Accepted", "StoreError", "KeyError", "Accepted",
    ]  # fmt: skip
    assert (await store.facts()).turns_queued == 3
    assert await store.chat_policy("app", "c") is None
    assert await store.chat_policy("app", "d") is None


async def test_errors_do_not_repeat_what_people_wrote(store: Store) -> None:
    statement = sa.text("INSERT INTO chat_settings VALUES (:secret, 'c', NULL, 1)")
    with pytest.raises(StoreError) as caught:
        await store._db.write(lambda c: c.execute(statement, {"secret": "my diary"}).close())
    assert isinstance(caught.value.__cause__, sa.exc.IntegrityError)
    for error in (caught.value, caught.value.__cause__):
        assert "NULL" in str(error).upper()
        assert "diary" not in str(error)


async def test_a_caller_that_leaves_does_not_harm_the_group(store: Store) -> None:
    tasks = [
        asyncio.create_task(store.accept(event(chat(str(n), user=f"u{n}")))) for n in range(20)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    stayed = [r for r in results if not isinstance(r, asyncio.CancelledError)]
    assert len(stayed) == 10
    for accepted in stayed:
        assert (await store.turn(accepted.turn_id)).state is TurnState.QUEUED
    more = await store.accept(event(chat(user="later")))
    assert not more.duplicate


# -- reads ---------------------------------------------------------------------------------------------------------------
async def test_reads_do_not_wait_for_an_open_write(sqlite_url: str, open_store) -> None:
    store = await open_store(sqlite_url)
    accepted = await store.accept(event(chat()))
    with _held(sqlite_url):
        writing = asyncio.create_task(store.accept(event(chat(user="u2"))))
        await asyncio.sleep(0.05)
        assert (await store.turn(accepted.turn_id)).id == accepted.turn_id
        assert (await store.facts()).turns_queued == 1
        assert await store.session(session_key()) is not None
        assert not writing.done()
    assert not (await writing).duplicate


async def test_many_reads_at_once(store: Store) -> None:
    accepted = await store.accept(event(chat()))
    turns = await asyncio.gather(*(store.turn(accepted.turn_id) for _ in range(60)))
    assert {t.id for t in turns} == {accepted.turn_id}


async def test_a_read_that_is_cancelled_gives_its_connection_back(store: Store) -> None:
    for _ in range(20):
        tasks = [asyncio.create_task(store.facts()) for _ in range(10)]
        await asyncio.sleep(0.002)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert (await store.facts()).turns_queued == 0


# -- locks, full disks ---------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def _held(url: str) -> Iterator[None]:
    """Another program's open write transaction."""
    other = sqlite3.connect(_path(url), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def test_a_foreign_lock_is_waited_for(
    sqlite_url: str, open_store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F12: the lock outlasts SQLite's own patience several times; nobody gets an error and every row is there."""
    monkeypatch.setattr("bot.store.place.BUSY_S", 0.2)
    store = await open_store(sqlite_url)
    with _held(sqlite_url):
        waiting = [asyncio.create_task(store.accept(event(chat(user=f"u{n}")))) for n in range(50)]
        await asyncio.sleep(1.5)
        assert not any(task.done() for task in waiting)
    accepted = await asyncio.gather(*waiting)
    assert len({a.turn_id for a in accepted}) == 50
    assert (await store.facts()).turns_queued == 50


@pytest.mark.long
async def test_f12_a_lock_of_twenty_seconds(sqlite_url: str, open_store) -> None:
    store = await open_store(sqlite_url)
    with _held(sqlite_url):
        waiting = [asyncio.create_task(store.accept(event(chat(user=f"u{n}")))) for n in range(50)]
        await asyncio.sleep(20)
    assert len({a.turn_id for a in await asyncio.gather(*waiting)}) == 50
    assert (await store.facts()).turns_queued == 50


async def test_a_lock_that_never_ends_is_told_in_one_sentence(
    sqlite_url: str, open_store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.store.place.BUSY_S", 0.05)
    monkeypatch.setattr(bot.store.writer, "BUSY_LIMIT_S", 0.3)
    store = await open_store(sqlite_url)
    with _held(sqlite_url), pytest.raises(StoreError, match="locked"):
        await store.accept(event(chat()))
    assert not (await store.accept(event(chat()))).duplicate


async def test_a_full_database_fails_the_waiting_and_recovers(sqlite_url: str, open_store) -> None:
    store = await open_store(sqlite_url)
    kept = await store.accept(event(chat("kept")))
    await store._db.write(lambda c: c.exec_driver_sql("PRAGMA max_page_count = 1").close())
    big = "x" * 300_000
    full = await asyncio.gather(
        *(store.accept(event(chat(big, user=f"u{n}"))) for n in range(8)), return_exceptions=True
    )
    assert {type(r) for r in full} == {StoreError}
    assert "full" in str(full[0])
    assert "free some space" in str(full[0])
    assert str(_path(sqlite_url)) in str(full[0])
    # The next group has a fresh connection, which knows nothing of the limit: space was freed.
    again = await asyncio.gather(*(store.accept(event(chat(big, user=f"u{n}"))) for n in range(8)))
    assert not any(a.duplicate for a in again), "nothing of the failed ones is left"
    assert (await store.turn(kept.turn_id)).question == "kept"
    assert (await store.facts()).turns_queued == 9


async def test_an_io_error_fails_the_waiting_and_recovers(sqlite_url: str, open_store) -> None:
    """The disk refuses every byte beyond a size (RLIMIT_FSIZE: write() fails with EFBIG)."""
    store = await open_store(sqlite_url)
    await store.accept(event(chat("kept")))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (_path(sqlite_url + "-wal").stat().st_size + 8192, old[1])
    )
    try:
        failed = await asyncio.gather(
            *(store.accept(event(chat("x" * 200_000, user=f"u{n}"))) for n in range(5)),
            return_exceptions=True,
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert {type(r) for r in failed} == {StoreError}
    assert not (await store.accept(event(chat("later", user="z")))).duplicate
    assert (await store.facts()).turns_queued == 2


async def test_postgresql_a_lost_connection_is_replaced(postgres_url: str, open_store) -> None:
    store = await open_store(postgres_url)
    other = await open_store(postgres_url)
    await store.accept(event(chat(user="a")))
    kill = sa.text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    assert await other._db.write(lambda c: c.execute(kill).scalar()) >= 1
    accepted = await asyncio.gather(*(store.accept(event(chat(user=f"u{n}"))) for n in range(5)))
    assert len({a.turn_id for a in accepted}) == 5
    assert (await store.facts()).turns_queued == 6


async def test_postgresql_rows_held_elsewhere_hold_up_nobody_else(
    postgres_url: str, open_store
) -> None:
    store, other = await open_store(postgres_url), await open_store(postgres_url)
    await store.accept(event(chat(user="busy")))
    held, let_go = threading.Event(), asyncio.Event()

    async def hold() -> None:
        async with other._db._readers.connect() as connection:
            await connection.execute(sa.text("UPDATE sessions SET noted_date = 'x'"))
            held.set()
            await let_go.wait()
            await connection.commit()

    holding = asyncio.create_task(hold())
    while not held.is_set():
        await asyncio.sleep(0.01)
    blocked = asyncio.create_task(store.accept(event(chat(user="busy"))))
    free = await asyncio.gather(*(store.accept(event(chat(user=f"free{n}"))) for n in range(5)))
    assert len({a.turn_id for a in free}) == 5
    assert not blocked.done()
    let_go.set()
    assert not (await blocked).duplicate
    await holding


# -- the end -------------------------------------------------------------------------------------------------------------
async def test_close_writes_what_waits_and_then_refuses(url: str, open_store) -> None:
    store = await open_store(url)
    waiting = [asyncio.create_task(store.accept(event(chat(user=f"u{n}")))) for n in range(100)]
    await asyncio.sleep(0)
    await store.close()
    assert len({a.turn_id for a in await asyncio.gather(*waiting)}) == 100
    for call in (
        store.accept(event(chat())),
        store.turn("x"),
        store.facts(),
        store.claim("me", 1, 1),
    ):
        with pytest.raises(StoreError, match=r"closed|not open"):
            await call
    await store.close()
    with pytest.raises(StoreError, match="make a new one"):
        await store.open()
    again = await open_store(url)
    assert (await again.facts()).turns_queued == 100


async def test_close_that_is_cancelled_tells_who_waits(
    sqlite_url: str, open_store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.store.place.BUSY_S", 0.3)
    store = await open_store(sqlite_url)
    with _held(sqlite_url):
        waiting = asyncio.create_task(store.accept(event(chat())))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(StoreError, match="closed before"):
            await waiting


async def test_a_store_that_was_never_opened_says_so(sqlite_url: str) -> None:
    store = Store(sqlite_url)
    with pytest.raises(StoreError, match="not open"):
        await store.accept(event(chat()))
    with pytest.raises(StoreError, match="not open"):
        await store.turn("x")
    await store.close()


async def test_the_files_are_private(tmp_path: Path, open_store) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/new/deep %25/hearth.db")
    await store.save_reply(
        (await store.accept(event(chat()))).turn_id, Snapshot(1, "x", (), Outcome.COMPLETE), None
    )
    folder = tmp_path / "new" / "deep %25"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert files == dict.fromkeys(
        ("hearth.db", "hearth.db-wal", "hearth.db-shm", "hearth.db.lock"), 0o600
    )


async def test_commits_are_durable(sqlite_url: str, open_store) -> None:
    store = await open_store(sqlite_url)

    def pragmas(connection: sa.Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

    assert await store._db.write(pragmas) == ["wal", 2, 1]
