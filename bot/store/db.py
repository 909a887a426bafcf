"""The open database: its lock, its engines, its writer, and the few words in which the two dialects differ.

Owns every connection. Holds no query of a table; those are in inbox, sessions, turns, replies and history.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from bot.errors import StoreError
from bot.store.channel import make_channel
from bot.store.lockfile import LockFile
from bot.store.migrate import migrate
from bot.store.place import make_engine, parse_place, prepare_file, say
from bot.store.tables import to_micros
from bot.store.writer import Work, Writer, WriterFigures

T = TypeVar("T")


class Database:
    """Owner of the lock file, the read engine and the writer. Opened once, closed once."""

    def __init__(
        self, url: str, *, migrations: Path | None, backups: int, clock: Callable[[], datetime]
    ) -> None:
        self.place = parse_place(url)
        self.clock = clock
        self._migrations = migrations
        self._backups = backups
        self._lock: LockFile | None = None
        self._readers: AsyncEngine | None = None
        self._writer: Writer | None = None

    async def open(self) -> None:
        """Lock (SQLite), migrate, start the writer. Raises StoreError with one sentence."""
        if self._writer is not None:
            raise StoreError(
                f"this Store was already opened once; make a new one for {self.place.label}"
            )
        if self.place.path is not None:
            prepare_file(self.place.path)
            lock = LockFile(self.place.path.with_name(self.place.path.name + ".lock"))
            lock.take()
            self._lock = lock
        try:
            await migrate(self.place, self._migrations, backups=self._backups, clock=self.clock)
        except BaseException:
            self._drop_lock()
            raise
        self._readers = make_engine(self.place, "read")
        self._writer = Writer(make_channel(self.place), self.place)
        self._writer.start()

    async def close(self) -> None:
        """Write what waits, close every connection, give the lock back. Later calls raise; closing twice is harmless."""
        readers, self._readers = self._readers, None
        try:
            if self._writer is not None:
                await self._writer.close()
        finally:
            try:
                if readers is not None:
                    await readers.dispose()
            finally:
                self._drop_lock()

    def _drop_lock(self) -> None:
        if self._lock is not None:
            self._lock.drop()
            self._lock = None

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run a work in the next commit; returns after it. An urgent one goes before all others. Raises StoreError."""
        if self._writer is None:
            raise StoreError(f"the database {self.place.label} is not open")
        return await self._writer.run(work, urgent=urgent)

    async def read(self, query: Work[T]) -> T:
        """Run a query on a connection of its own: it never waits for a writer. Raises StoreError."""
        if self._readers is None:
            raise StoreError(f"the database {self.place.label} is closed or not open yet")
        try:
            async with self._readers.connect() as connection:
                return await connection.run_sync(query)
        except (SQLAlchemyError, OSError) as error:
            raise say(self.place, error) from error

    @property
    def figures(self) -> WriterFigures:
        """What the writer has done so far."""
        return self._writer.figures if self._writer else WriterFigures()

    # -- the two dialects --------------------------------------------------------------------------------------------
    def insert(self, table: sa.Table) -> Any:
        """An INSERT that knows ON CONFLICT. Both dialects have the same methods but no common type, hence Any."""
        return sqlite.insert(table) if self.place.is_sqlite else postgresql.insert(table)

    def now(self) -> sa.ColumnElement[int]:
        """The time that leases go by, in microseconds; run it with `now_values`.

        It is the server's, where several processes share the database, else this process's clock.
        """
        if self.place.is_sqlite:
            return sa.bindparam("now_us", type_=sa.BigInteger)
        seconds = sa.func.extract("epoch", sa.func.clock_timestamp())
        return sa.cast(seconds * 1_000_000, sa.BigInteger)

    def now_values(self) -> dict[str, int]:
        """What a statement with `now()` in it must be run with."""
        return {"now_us": to_micros(self.clock())} if self.place.is_sqlite else {}
