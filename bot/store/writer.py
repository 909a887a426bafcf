"""The one writer: waiting works are run in one transaction and share one commit; a failing one undoes only itself.

Owns the queue and the task that empties it into the write connection. Knows nothing of tables. A work is a plain function of a
connection: it can wait for nothing but the database, so a transaction is never held open for anything else.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import structlog
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from bot.errors import StoreError
from bot.store.channel import Channel, quietly
from bot.store.place import Place, say, sql_state, sqlite_code

T = TypeVar("T")
Work = Callable[[Connection], T]

# More subtransactions than this in one transaction fall out of PostgreSQL's per-process cache and slow every reader.
GROUP_LIMIT = 60
# Works that are not urgent, in one group: a new urgent one then waits for so many at most.
ORDINARY_LIMIT = 20
# How long a foreign lock on the SQLite file is waited for before the waiting writes are told (F12 asks for 20 s).
BUSY_LIMIT_S = 120.0
_TRIES = 4
_SQLITE_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# Serialization failure, deadlock, lock timeout: another process was in the way, the same work alone will succeed.
_TRY_AGAIN = {"40001", "40P01", "55P03"}

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Job:
    work: Work[Any]
    future: asyncio.Future[Any]
    urgent: bool = False
    tries: int = 0
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class WriterFigures:
    """Counts since the start."""

    writes: int = 0
    commits: int = 0
    largest_group: int = 0
    failed_groups: int = 0


class _GroupFailed(Exception):
    """The transaction is lost with everything in it. `began` is False when it could not even be opened."""

    def __init__(self, began: bool, committing: bool = False) -> None:
        super().__init__("the transaction failed")
        self.began = began
        self.committing = committing


@dataclass(slots=True)
class Writer:
    """Owner of the write connection and of the queue of waiting works. One task, started by `start`, ended by `close`."""

    channel: Channel
    place: Place
    figures: WriterFigures = field(default_factory=WriterFigures)
    _queue: deque[_Job] = field(default_factory=deque)
    _urgent: deque[_Job] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _closing: bool = False

    def start(self) -> None:
        """Begin to take works."""
        self._task = asyncio.create_task(self._loop(), name="store-writer")

    async def run(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run a work in one of the next groups (an urgent one in the very next) and return its result after the commit.

        A caller that is cancelled while it waits leaves the group as it is; its work is dropped only when it had not
        begun. Raises StoreError, or what the work itself raised (its savepoint is then undone).
        """
        if self._closing or self._task is None or self._task.done():
            raise StoreError(f"the database {self.place.label} is closed")
        job = _Job(work, asyncio.get_running_loop().create_future(), urgent)
        (self._urgent if urgent else self._queue).append(job)
        self._wake.set()
        result: T = await job.future
        return result

    async def close(self) -> None:
        """Write what waits, then stop. Later calls of `run` raise."""
        self._closing = True
        self._wake.set()
        task, self._task = self._task, None
        if task is not None:
            try:
                await task
            finally:
                await self.channel.close()

    # -- the task ----------------------------------------------------------------------------------------------------
    async def _loop(self) -> None:
        try:
            while True:
                while self._queue or self._urgent:
                    await self._next_group()
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
        finally:
            self._closing = True
            for job in (*self._urgent, *self._queue):
                _fail(
                    job,
                    StoreError(
                        f"the database {self.place.label} was closed before this was written"
                    ),
                )
            self._urgent.clear()
            self._queue.clear()

    def _take(self, queue: deque[_Job], limit: int, jobs: list[_Job]) -> None:
        while queue and len(jobs) < limit:
            if jobs and (jobs[0].tries or queue[0].tries):
                break  # one that was in another process's way holds nothing while it waits: it runs alone
            job = queue.popleft()
            if not job.future.done():  # else its caller has gone, and nothing of it was begun
                jobs.append(job)

    def _put_back(self, jobs: list[_Job]) -> None:
        for job in reversed(jobs):
            (self._urgent if job.urgent else self._queue).appendleft(job)

    async def _next_group(self) -> None:
        jobs: list[_Job] = []
        self._take(self._urgent, GROUP_LIMIT, jobs)
        self._take(self._queue, min(GROUP_LIMIT, len(jobs) + ORDINARY_LIMIT), jobs)
        if not jobs:
            return
        try:
            await self._commit_when_free(jobs)
        except _GroupFailed as failure:
            await self.channel.drop()
            self._give_up_or_retry(jobs, failure)
        except asyncio.CancelledError:
            self._put_back(jobs)  # the loop's end tells them
            raise
        except Exception as error:  # noqa: BLE001  (the writer outlives a mistake in a driver)
            # No traceback here: its frames hold what people wrote. The callers get it as the cause.
            log.error("store_writer_surprised", error=type(error).__name__)  # noqa: TRY400
            await self.channel.drop()
            for job in jobs:
                _fail(job, say(self.place, error))
        else:
            self._deliver(jobs)

    async def _commit_when_free(self, jobs: list[_Job]) -> None:
        """One transaction for all of them, waiting for a foreign lock as long as BUSY_LIMIT_S."""
        clock = asyncio.get_running_loop().time
        first_try = clock()
        while True:
            try:
                await self._commit(jobs)
            except _GroupFailed as failure:
                locked = sqlite_code(failure.__cause__ or failure) in _SQLITE_BUSY
                if failure.began or not locked or clock() - first_try > BUSY_LIMIT_S:
                    raise
                waited_s = round(clock() - first_try, 1)
                log.warning("store_locked_by_another_program", waited_s=waited_s)
            else:
                return

    async def _commit(self, jobs: list[_Job]) -> None:
        try:
            await self.channel.run(partial(_run_group, jobs))
        except (SQLAlchemyError, OSError) as error:  # the connection could not even be opened
            raise _GroupFailed(began=False) from error

    # -- outcomes ----------------------------------------------------------------------------------------------------
    def _give_up_or_retry(self, jobs: list[_Job], failure: _GroupFailed) -> None:
        cause = failure.__cause__ or failure
        lost = isinstance(cause, DBAPIError) and cause.connection_invalidated
        again: list[_Job] = []
        for job in jobs:
            job.tries += 1
            # A lost connection is worth one fresh one, unless the commit may have gone through.
            if lost and not failure.committing and job.tries < 2:
                again.append(job)
            else:
                error = say(self.place, cause)
                error.__cause__ = cause
                _fail(job, error)
        self._put_back(again)
        self.figures.failed_groups += 1
        log.error(
            "store_group_failed", writes=len(jobs), again=len(again), error=type(cause).__name__
        )

    def _deliver(self, jobs: list[_Job]) -> None:
        self.figures.commits += 1
        self.figures.largest_group = max(self.figures.largest_group, len(jobs))
        again: list[_Job] = []
        for job in jobs:
            error = job.error
            if error is None:
                self.figures.writes += 1
                if not job.future.done():
                    job.future.set_result(job.result)
            elif sql_state(error) in _TRY_AGAIN and job.tries + 1 < _TRIES:
                job.tries += 1
                job.error = None
                again.append(job)
            elif isinstance(error, SQLAlchemyError):
                told = say(self.place, error)
                told.__cause__ = error
                _fail(job, told)
            else:
                _fail(job, error)
        self._put_back(again)


def _fail(job: _Job, error: BaseException) -> None:
    if not job.future.done():
        job.future.set_exception(error)


def _run_group(jobs: list[_Job], connection: Connection) -> None:
    """One transaction for all works. Raises _GroupFailed when it is lost as a whole.

    Nearly every group has no fault in it, so the works first run without savepoints (which cost as much as a work); when
    one of them raises, everything is undone and each runs again in a savepoint of its own.
    """
    try:
        _in_transaction(jobs, connection, _run_plainly)
    except _OneFailed:
        _in_transaction(jobs, connection, _run_job)


class _OneFailed(Exception):
    """A work raised in a group without savepoints."""


def _in_transaction(
    jobs: list[_Job], connection: Connection, run_one: Callable[[Connection, _Job], None]
) -> None:
    try:
        transaction = connection.begin()
    except (SQLAlchemyError, OSError) as error:
        raise _GroupFailed(began=False) from error
    committing = False
    try:
        if jobs[0].tries and connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL lock_timeout = '30s'")
        for job in jobs:
            run_one(connection, job)
        committing = True
        transaction.commit()
    except _OneFailed:
        if transaction.is_active:
            quietly(transaction.rollback)
        raise
    except (SQLAlchemyError, OSError) as error:
        if transaction.is_active:
            quietly(transaction.rollback)
        raise _GroupFailed(began=True, committing=committing) from error


def _run_plainly(connection: Connection, job: _Job) -> None:
    """One work without a savepoint. Raises _OneFailed for its own failure; one of the transaction goes up as it is."""
    job.result, job.error = None, None
    try:
        job.result = job.work(connection)
    except Exception as error:
        if _transaction_is_lost(error):
            raise
        raise _OneFailed from error


def _run_job(connection: Connection, job: _Job) -> None:
    """One work in its savepoint: its own failure is kept for its caller, a failure of the transaction goes up."""
    job.result, job.error = None, None
    savepoint = connection.begin_nested()
    try:
        job.result = job.work(connection)
    except Exception as error:
        if _transaction_is_lost(error):
            raise
        savepoint.rollback()
        job.error = error
    else:
        savepoint.commit()


def _transaction_is_lost(error: Exception) -> bool:
    """Whether the transaction around a failed statement is gone as well (SQLite rolls back by itself when full)."""
    if isinstance(error, OSError):  # includes TimeoutError: the statement may still be running
        return True
    if not isinstance(error, DBAPIError) or isinstance(error, IntegrityError):
        return False
    return error.connection_invalidated or sqlite_code(error) not in {
        0,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
    }
