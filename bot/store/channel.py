"""How the writer reaches its one connection: through a thread of its own on SQLite, on the loop with PostgreSQL.

On SQLite a whole group is one hand-over to the thread. Through aiosqlite each statement would be four, and a group of
fifty messages would spend nine tenths of its time in them (tests/bench/store_accept.py).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import structlog
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from bot.store.place import Place, make_engine, make_writing_engine

Step = Callable[[Connection], None]

log = structlog.get_logger()


class Channel(Protocol):
    """One connection, opened when it is first needed and again after `drop`. Used by one task at a time."""

    async def run(self, step: Step) -> None:
        """Run a step on the connection. Raises what opening it or the step raises."""
        ...

    async def drop(self) -> None:
        """Close the connection: after a failure its state is not worth guessing. Never raises."""
        ...

    async def close(self) -> None:
        """Drop, and stop for good."""
        ...


class ThreadChannel:
    """SQLite. The thread owns the connection: it opens, uses and closes it."""

    def __init__(self, place: Place) -> None:
        self._engine = make_writing_engine(place)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-writer")
        self._connection: Connection | None = None

    async def run(self, step: Step) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._run, step)

    def _run(self, step: Step) -> None:
        if self._connection is None:
            self._connection = self._engine.connect()
        step(self._connection)

    async def drop(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._drop)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            quietly(connection.close)

    async def close(self) -> None:
        await self.drop()
        self._thread.shutdown(wait=False)


class LoopChannel:
    """PostgreSQL, whose driver is asynchronous by itself."""

    def __init__(self, place: Place) -> None:
        self._engine = make_engine(place, "write")
        self._connection: AsyncConnection | None = None

    async def run(self, step: Step) -> None:
        if self._connection is None or self._connection.invalidated:
            await self.drop()
            self._connection = await self._engine.connect()
        await self._connection.run_sync(step)

    async def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close()
            except (SQLAlchemyError, OSError) as error:
                log.warning("store_connection_close_failed", error=type(error).__name__)

    async def close(self) -> None:
        await self.drop()
        await self._engine.dispose()


def make_channel(place: Place) -> Channel:
    """The channel that suits the database."""
    return ThreadChannel(place) if place.is_sqlite else LoopChannel(place)


def quietly(step: Callable[[], object]) -> None:
    """Tidy up after a failure: a second failure there says nothing new."""
    try:
        step()
    except (SQLAlchemyError, OSError, sqlite3.Error) as error:
        log.warning("store_tidy_up_failed", error=type(error).__name__)
