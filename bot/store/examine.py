"""Looks at a database without changing it: `hearth doctor`. Takes no lock, writes nothing, migrates nothing."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from bot.errors import StoreError
from bot.store.lockfile import lock_holder
from bot.store.migrate import backups_of, known_revisions, migrations_folder
from bot.store.place import Place, make_engine, parse_place, say

_QUICK_CHECK_S: Final = 20.0
_STEPS: Final = 100_000  # of SQLite's machine between two looks at the clock
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Examined:
    """What was seen. `revision` None: no tables yet. `damage`: SQLite's own words; `is_whole_checked` False when its check
    was stopped for its length. `holder`: the process that has it open. `skew_s`: how far the server's clock is ahead."""

    label: str
    path: Path | None
    exists: bool
    revision: str | None = None
    known: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    is_whole_checked: bool = True
    holder: int | None = None
    backups: tuple[Path, ...] = ()
    n_bytes: int = 0
    wal_bytes: int = 0
    server: str = ""
    skew_s: float = 0.0

    @property
    def is_newer(self) -> bool:
        """Whether a newer Hearth wrote it."""
        return self.revision is not None and self.revision not in self.known

    @property
    def is_at_head(self) -> bool:
        """Whether no migration is missing."""
        return self.revision == self.known[-1]


async def examine(url: str) -> Examined:
    """Takes up to 20 s with a large SQLite file, 10 s with an unreachable server. Raises StoreError or ConfigError."""
    place = parse_place(url)
    known = tuple(known_revisions(migrations_folder()))
    if place.path is not None:
        return _examine_file(place.path, known)
    return await _examine_server(place, known)


def service_pid(url: str) -> int | None:
    """The process that has a SQLite database open; None when nobody has, or with PostgreSQL."""
    place = parse_place(url)
    return lock_holder(place.path.with_name(place.path.name + ".lock")) if place.path else None


def _examine_file(path: Path, known: tuple[str, ...]) -> Examined:
    try:
        if not path.exists() or path.stat().st_size == 0:
            return Examined(str(path), path, exists=False, known=known)
        holder = lock_holder(path.with_name(path.name + ".lock"))
        with closing(_open(path, alone=holder is None)) as connection:
            revision = _revision(connection, path)
            damage, is_whole = _quick_check(connection)
    except (sqlite3.Error, OSError) as error:
        raise say(Place(sa.URL.create("sqlite"), path), error) from error
    wal = path.with_name(path.name + "-wal")
    return Examined(
        str(path),
        path,
        exists=True,
        revision=revision,
        known=known,
        damage=damage,
        is_whole_checked=is_whole,
        holder=holder,
        backups=tuple(backups_of(path)),
        n_bytes=path.stat().st_size,
        wal_bytes=wal.stat().st_size if wal.exists() else 0,
    )


def _open(path: Path, *, alone: bool) -> sqlite3.Connection:
    """Read only. In a folder that may not be written SQLite cannot make its index of the WAL: `immutable` does without,
    and is right only while nobody else has the file open."""
    uri = f"file:{quote(str(path))}?mode=ro"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=5)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        if not alone:
            raise
        connection = sqlite3.connect(f"{uri}&immutable=1", uri=True)
    return connection


def _revision(connection: sqlite3.Connection, path: Path) -> str | None:
    tables = {
        row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    if "alembic_version" in tables:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return None if row is None else str(row[0])
    if tables:
        raise StoreError(
            f"the database {path} holds tables that are not Hearth's; name an empty one in storage.url"
        )
    return None


def _quick_check(connection: sqlite3.Connection) -> tuple[tuple[str, ...], bool]:
    """SQLite's own words about damage, and whether it looked at everything."""
    until = time.monotonic() + _QUICK_CHECK_S
    connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
    try:
        words = [str(row[0]) for row in connection.execute(f"PRAGMA quick_check({_SHOWN})")]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return (), False
        raise
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CORRUPT:
            return (str(error),), True
        raise
    lines = [line for word in words for line in word.splitlines() if line and line != "ok"]
    return tuple(lines[:_SHOWN]), True


async def _examine_server(place: Place, known: tuple[str, ...]) -> Examined:
    engine = make_engine(place, "read")
    try:
        async with engine.connect() as connection:
            began = datetime.now(UTC)
            now, server = (
                await connection.execute(sa.text("SELECT clock_timestamp(), version()"))
            ).one()
            middle = began + (datetime.now(UTC) - began) / 2
            there = await connection.run_sync(lambda c: sa.inspect(c).has_table("alembic_version"))
            query = sa.text("SELECT version_num FROM alembic_version")
            revision = (await connection.execute(query)).scalar() if there else None
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise say(place, error) from error
    finally:
        await engine.dispose()
    return Examined(
        place.label,
        None,
        exists=True,
        revision=revision,
        known=known,
        server=" ".join(str(server).split()[:2]),
        skew_s=(now - middle).total_seconds(),
    )
