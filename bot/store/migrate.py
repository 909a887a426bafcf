"""Brings the database to the newest schema when it is opened: checks, backs up, runs `migrations/`, all or nothing.

Runs in a thread with a loop and a connection of its own, so that the service's loop never waits. It changes no rows of
its own accord; what happens stands in `migrations/versions/`.
"""

from __future__ import annotations

import asyncio
import glob
import io
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from bot.errors import HearthError, StoreError
from bot.store.place import Place, make_engine, parse_place, say

# Any fixed number will do: every Hearth that starts on one PostgreSQL database asks for the same one.
_ADVISORY_LOCK = 0x48454152

log = structlog.get_logger()


def migrations_folder() -> Path:
    """Where the migrations are: inside the installed package, else beside it in the checkout."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "_migrations"
    return packed if packed.is_dir() else package.parent / "migrations"


def known_revisions(folder: Path) -> list[str]:
    """The revisions that this code brings, oldest first: the numbers with which the files' names begin."""
    return sorted(path.name.split("_", 1)[0] for path in (folder / "versions").glob("[0-9]*.py"))


def migration_engine(url: str) -> AsyncEngine:
    """The engine migrations run on (foreign keys off on SQLite: rebuilding a table must not cascade)."""
    return make_engine(parse_place(url), "migrate")


async def migrate(
    place: Place, folder: Path | None, *, backups: int, clock: Callable[[], datetime]
) -> None:
    """Upgrade to the newest schema, with a backup before it on SQLite. Raises StoreError with one sentence."""
    await asyncio.to_thread(
        _migrate_in_thread, place, folder or migrations_folder(), backups, clock
    )


def _migrate_in_thread(
    place: Place, folder: Path, backups: int, clock: Callable[[], datetime]
) -> None:
    async def upgrade() -> None:
        engine = make_engine(place, "migrate")
        try:
            async with engine.connect() as connection:
                found = await connection.run_sync(_revision)
            if not _needs_upgrade(place, folder, found):
                return
            if place.path is not None and found is not None and backups > 0:
                _back_up(place.path, found, backups, clock())
            async with engine.begin() as connection:
                await connection.run_sync(_upgrade, place, folder)
        finally:
            await engine.dispose()

    try:
        asyncio.run(upgrade())
    except HearthError:
        raise
    except (SQLAlchemyError, OSError) as error:
        raise say(place, error) from error


def _revision(connection: Connection) -> str | None:
    """The schema's revision, None for an empty database. Raises StoreError for a database that is not ours."""
    tables = set(sa.inspect(connection).get_table_names())
    if "alembic_version" in tables:
        found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        return None if found is None else str(found)
    if tables:
        raise StoreError(
            f"the database {connection.engine.url.database} holds tables that are not Hearth's; name an empty one in storage.url"
        )
    return None


def _needs_upgrade(place: Place, folder: Path, found: str | None) -> bool:
    known = known_revisions(folder)
    if not known:
        raise StoreError(f"the folder {folder} holds no migrations; install Hearth again")
    if found is not None and found not in known:
        raise StoreError(
            f"the database {place.label} was written by a newer Hearth (schema {found}, this one knows {known[-1]}); "
            "update Hearth, or restore a backup from before the update"
        )
    return found != known[-1]


def _upgrade(connection: Connection, place: Place, folder: Path) -> None:
    """Run what is missing, inside the caller's transaction."""
    if not place.is_sqlite:
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    # Another process may have done it, or more than it, while this one waited for the lock.
    before = _revision(connection)
    if not _needs_upgrade(place, folder, before):
        return
    from alembic import command
    from alembic.config import Config

    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if place.is_sqlite:
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            raise StoreError(
                f"the database {place.label} was not migrated: {len(broken)} rows would point to nothing"
            )
    log.info("store_migrated", before=before or "empty", now=known_revisions(folder)[-1])


# -- backups -------------------------------------------------------------------------------------------------------------
def _back_up(path: Path, revision: str, keep: int, now: datetime) -> None:
    """Copy the database beside itself with SQLite's own backup, then drop all but the newest `keep` copies."""
    copy = path.with_name(f"{path.name}.backup-{now:%Y%m%dT%H%M%S%f}-{revision}")
    try:
        os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        _sync(copy)
    except (sqlite3.Error, OSError) as error:
        copy.unlink(missing_ok=True)
        raise StoreError(
            f"the database {path} needs an upgrade but could not be backed up first ({error}); free some space, or set storage.backups = 0"
        ) from error
    for old in backups_of(path)[:-keep]:
        old.unlink(missing_ok=True)
    log.info("store_backed_up", file=copy.name)


def backups_of(path: Path) -> list[Path]:
    """The backup copies of a database, oldest first."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.backup-*"))


def _sync(path: Path) -> None:
    """Force a file and its folder's entry to the disk."""
    targets: list[tuple[Path, int]] = [
        (path, os.O_RDONLY),
        (path.parent, os.O_RDONLY | os.O_DIRECTORY),
    ]
    for target, flags in targets:
        fd: Any = os.open(target, flags)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
