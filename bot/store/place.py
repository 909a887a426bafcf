"""Where the database is: storage.url read once, engines made from it, errors named without secrets.

Owns everything that differs between opening SQLite and opening PostgreSQL; holds no connection.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from bot.errors import ConfigError, StoreError

Role = Literal["write", "read", "migrate"]

# How long SQLite itself waits for a lock before the writer hears of it (the writer then tries again).
BUSY_S = 5.0
_OLDEST_SQLITE = (3, 35)  # RETURNING and AS MATERIALIZED
_READERS = 4
# PostgreSQL: a group holds the rows of all its works, so it must not wait long for anybody's (the works it could not do
# are tried again alone); and a process that is frozen in mid-transaction must not hold up the others.
_WRITER_SETTINGS = {"lock_timeout": "100ms", "idle_in_transaction_session_timeout": "30s"}


@dataclass(frozen=True, slots=True)
class Place:
    """A parsed storage.url. `path` is the SQLite file, None for PostgreSQL."""

    url: URL
    path: Path | None

    @property
    def is_sqlite(self) -> bool:
        """Whether this process owns the file alone."""
        return self.path is not None

    @property
    def label(self) -> str:
        """How messages name it: never with a password."""
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)


def parse_place(url: str) -> Place:
    """A Place from storage.url. Raises ConfigError with one sentence that does not repeat the URL (it may hold a password)."""
    scheme, _, rest = url.partition("://")
    if scheme in {"sqlite", "sqlite+aiosqlite"}:
        return _sqlite_place(rest)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "storage.url cannot be read; write sqlite:///path/to/hearth.db or postgresql://user:password@host/name"
        ) from None
    if parsed.drivername in {"postgresql", "postgres", "postgresql+asyncpg"}:
        query: dict[str, Any] = dict(parsed.query)
        if "sslmode" in query:  # libpq's name; asyncpg calls it ssl and takes the same words
            query["ssl"] = query.pop("sslmode")
        return Place(parsed.set(drivername="postgresql+asyncpg", query=query), None)
    raise ConfigError(
        f"storage.url begins with {parsed.drivername}://, but only sqlite:/// and postgresql:// are supported"
    )


def _sqlite_place(rest: str) -> Place:
    """What follows sqlite:// is a slash and then a path, taken as it stands: nothing in it is decoded."""
    name = rest.removeprefix("/")
    if name == rest or not name or name.startswith((":memory:", "file:")) or "?" in name:
        raise ConfigError(
            "storage.url must name a plain SQLite file, for example sqlite:///data/hearth.db"
        )
    path = Path(name).absolute()
    return Place(URL.create("sqlite+aiosqlite", database=str(path)), path)


def prepare_file(path: Path) -> None:
    """Make the folder (0700) and an empty database file (0600) where there is none. Raises StoreError."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(
            f"this Python was built with SQLite {sqlite3.sqlite_version}; Hearth needs 3.35 or newer"
        )
    try:
        for folder in reversed(path.parents):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(
            f"the database {path} cannot be opened: {error.strerror}; check storage.url and the folder's rights"
        ) from None


def make_engine(place: Place, role: Role) -> AsyncEngine:
    """An engine for one role. Parameters never appear in its errors: they are people's words."""
    options: dict[str, Any] = {"hide_parameters": True}
    if role == "read":
        options |= {"pool_size": _READERS, "max_overflow": _READERS, "pool_timeout": 60}
    else:
        options["poolclass"] = NullPool
    if not place.is_sqlite:
        options["connect_args"] = {
            "timeout": 10,
            "command_timeout": None if role == "migrate" else 60,
            "server_settings": {"application_name": "hearth"}
            | (_WRITER_SETTINGS if role == "write" else {}),
        }
        if role == "read":
            options["pool_pre_ping"] = True
        return create_async_engine(place.url, **options)
    engine = create_async_engine(place.url, connect_args={"timeout": BUSY_S}, **options)
    _set_up_sqlite(engine.sync_engine, role)
    return engine


def make_writing_engine(place: Place) -> Engine:
    """A plain engine on the SQLite file, for the thread that writes."""
    url = place.url.set(drivername="sqlite+pysqlite")
    engine = create_engine(
        url, hide_parameters=True, poolclass=NullPool, connect_args={"timeout": BUSY_S}
    )
    _set_up_sqlite(engine, "write")
    return engine


def _set_up_sqlite(engine: Engine, role: Role) -> None:
    """Durable writes and explicit transactions (DESIGN §7): sqlite3's own implicit BEGIN would make writers deadlock."""
    # A migration that rebuilds a table must not cascade; it checks the keys itself when it is done.
    pragmas = [
        f"PRAGMA foreign_keys = {'OFF' if role == 'migrate' else 'ON'}",
        "PRAGMA synchronous = FULL",
    ]
    if role == "migrate":
        pragmas.append("PRAGMA journal_mode = WAL")
    if role == "read":
        pragmas.append("PRAGMA query_only = ON")
    pragmas.append("PRAGMA journal_size_limit = 67108864")
    begin = "BEGIN" if role == "read" else "BEGIN IMMEDIATE"

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(pragma)
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


def sqlite_code(error: BaseException) -> int:
    """SQLite's primary result code of an error, 0 when it is not SQLite's."""
    original = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(original, "sqlite_errorcode", 0)
    return code & 0xFF if isinstance(code, int) else 0


def sql_state(error: BaseException) -> str:
    """PostgreSQL's five-letter code of an error, "" when there is none."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return str(getattr(original, "sqlstate", None) or "")


def say(place: Place, error: BaseException) -> StoreError:
    """Any database error as one sentence: the first line only, since later lines may quote what people wrote."""
    original = error.orig if isinstance(error, DBAPIError) else error
    lines = str(original).splitlines() or [type(original).__name__]
    reason = lines[0].removeprefix(f"{type(original)}: ").strip() or type(original).__name__
    code, state = sqlite_code(error), sql_state(error)
    if code == sqlite3.SQLITE_FULL or state == "53100":
        advice = "; free some space on its disk"
    elif code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        advice = "; another program holds it locked"
    elif code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        advice = "; restore a backup from beside it"
    else:
        advice = ""
    return StoreError(f"the database {place.label} failed: {reason}{advice}")
