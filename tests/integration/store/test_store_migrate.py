"""Opening a database: new, current, old, newer, foreign, broken, in use."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from bot.errors import ConfigError, StoreError
from bot.store import Store
from bot.store.migrate import backups_of, known_revisions, migrations_folder
from bot.store.tables import metadata
from tests.store_drafts import chat, event

_NEXT = '''"""A later change."""
import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("chat_settings", sa.Column("later_{revision}", sa.Text()))
    {more}


def downgrade() -> None:
    pass
'''


@pytest.fixture
def later(tmp_path: Path):
    """A copy of the migrations to which newer ones can be added, as a newer Hearth would."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))

    def add(*, more: str = "pass") -> Path:
        known = known_revisions(folder)
        revision = f"{int(known[-1]) + 1:04d}"
        text = _NEXT.format(revision=revision, before=known[-1], more=more)
        (folder / "versions" / f"{revision}_later.py").write_text(text)
        return folder

    return add


def _path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest) -> str:
    fixture = "empty_sqlite_url" if request.param == "sqlite" else "postgres_empty_url"
    return str(request.getfixturevalue(fixture))


async def test_the_migrations_build_exactly_the_tables(empty_url: str, open_store) -> None:
    store = await open_store(empty_url)

    # SQLAlchemy has no words for SQLite's virtual table and its shadows; its own tests look at it.
    def is_known(name: str | None, _kind: str, _parents: object) -> bool:
        return not (name or "").startswith(("recall_fts", "ix_recall_messages_terms"))

    def differences(connection: sa.Connection) -> list[object]:
        opts = {"compare_type": True, "include_name": is_known}
        context = MigrationContext.configure(connection, opts=opts)
        return list(compare_metadata(context, metadata))

    assert await store._db.read(differences) == []

    def indexes(connection: sa.Connection) -> set[str]:
        inspector = sa.inspect(connection)
        return {str(index["name"]) for t in metadata.tables for index in inspector.get_indexes(t)}

    made = await store._db.read(indexes)
    assert {
        str(index.name) for table in metadata.tables.values() for index in table.indexes
    } <= made


async def test_partial_indexes_are_partial_on_both(empty_url: str, open_store) -> None:
    store = await open_store(empty_url)
    listing = "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    if not store._db.place.is_sqlite:
        listing = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"
    made = await store._db.read(lambda c: list(c.execute(sa.text(listing)).scalars()))
    partial = {line.split(" ON ")[0].split()[-1].strip('"') for line in made if " WHERE " in line}
    assert partial == {
        "ux_sessions_current",
        "ux_turns_running",
        "ix_turns_waiting",
        "ix_turns_waiting_session",
    }


async def test_an_old_database_is_upgraded_with_a_backup_before(
    sqlite_url: str, open_store, later, clock
) -> None:
    store = await open_store(sqlite_url)
    turn = (await store.accept(event(chat("kept")))).turn_id
    await store.close()

    path = _path(sqlite_url)
    for round_ in range(5):
        folder = later()
        clock.pass_s(1)
        store = await open_store(sqlite_url, migrations=folder, backups=3)
        assert (await store.turn(turn)).question == "kept"
        columns = await store._db.read(lambda c: sa.inspect(c).get_columns("chat_settings"))
        assert len(columns) == 5 + round_
        await store.close()
        store = await open_store(sqlite_url, migrations=folder)
        await store.close()
    copies = backups_of(path)
    n_own = len(list((migrations_folder() / "versions").glob("*.py")))
    newest = [f"{n_own + n:04d}" for n in (2, 3, 4)]
    assert [c.name.rsplit("-", 1)[1] for c in copies] == newest, "the newest three, by schema"
    assert {stat.S_IMODE(c.stat().st_mode) for c in copies} == {0o600}
    with closing(sqlite3.connect(copies[0])) as raw:
        assert raw.execute("SELECT question FROM turns").fetchall() == [("kept",)]
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [(newest[0],)]


async def test_no_backup_of_a_new_database_or_when_none_is_wanted(
    empty_sqlite_url: str, open_store, later
) -> None:
    await (await open_store(empty_sqlite_url)).close()
    await (await open_store(empty_sqlite_url, migrations=later(), backups=0)).close()
    assert backups_of(_path(empty_sqlite_url)) == []


async def test_a_backup_restores(sqlite_url: str, open_store, later) -> None:
    store = await open_store(sqlite_url)
    turn = (await store.accept(event(chat("kept")))).turn_id
    await store.close()
    await (await open_store(sqlite_url, migrations=later())).close()
    path = _path(sqlite_url)
    with pytest.raises(StoreError, match="newer Hearth"):
        await open_store(sqlite_url)
    shutil.copy(backups_of(path)[0], path)
    store = await open_store(sqlite_url)
    assert (await store.turn(turn)).question == "kept"


async def test_a_newer_database_is_refused_in_one_sentence(
    empty_url: str, open_store, later
) -> None:
    await (await open_store(empty_url, migrations=later())).close()
    with pytest.raises(StoreError) as refused:
        await open_store(empty_url)
    text = str(refused.value)
    n_own = len(list((migrations_folder() / "versions").glob("*.py")))
    assert f"newer Hearth (schema {n_own + 1:04d}, this one knows {n_own:04d})" in text
    assert "update Hearth" in text
    assert "\n" not in text
    # The refusal let go of everything.
    await (await open_store(empty_url, migrations=later())).close()


async def test_a_failed_migration_changes_nothing(empty_url: str, open_store, later) -> None:
    store = await open_store(empty_url)
    await store.accept(event(chat("kept")))
    await store.close()
    folder = later(more='op.execute("SELECT 1 FROM nowhere")')
    with pytest.raises(StoreError, match="nowhere"):
        await open_store(empty_url, migrations=folder)
    store = await open_store(empty_url)
    columns = await store._db.read(lambda c: sa.inspect(c).get_columns("chat_settings"))
    assert [c["name"] for c in columns if "later" in c["name"]] == []
    assert (await store.facts()).turns_queued == 1


async def test_rebuilding_a_table_keeps_what_points_to_it(
    sqlite_url: str, open_store, later
) -> None:
    store = await open_store(sqlite_url)
    turn = (await store.accept(event(chat("kept", message_id="om_1")))).turn_id
    await store.close()
    rebuild = 'with op.batch_alter_table("turns", recreate="always") as batch: batch.add_column(sa.Column("z", sa.Text()))'
    store = await open_store(sqlite_url, migrations=later(more=rebuild))
    assert (await store.turn(turn)).message_ids == ("om_1",)
    assert (await store.turn_of_message("app", "om_1")).id == turn


async def test_several_processes_start_on_an_empty_postgresql_at_once(
    postgres_empty_url: str, open_store
) -> None:
    stores = await asyncio.gather(*(open_store(postgres_empty_url) for _ in range(5)))
    accepted = await asyncio.gather(
        *(store.accept(event(chat(user=f"u{n}"))) for n, store in enumerate(stores))
    )
    assert len({a.turn_id for a in accepted}) == 5


async def test_migrating_is_quiet(
    empty_sqlite_url: str, open_store, capfd: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    await open_store(empty_sqlite_url)
    assert (list(root.handlers), root.level) == before, "alembic configures no logging"
    out, err = capfd.readouterr()
    assert "Running upgrade" not in out + err
    assert "alembic" not in out + err


async def test_migrations_run_beside_the_loop(empty_url: str, open_store, later) -> None:
    where = "threading.current_thread() is threading.main_thread()"
    record = f"""import threading; op.execute(f"INSERT INTO chat_settings (app_id, chat_id, policy, updated_at) VALUES ('t', 'c', '{{{where}}}', 0)")"""
    store = await open_store(empty_url, migrations=later(more=record))
    found = sa.text("SELECT policy FROM chat_settings")
    assert await store._db.read(lambda c: c.execute(found).scalar()) == "False"


async def test_an_up_to_date_database_opens_without_alembic(
    sqlite_url: str, open_store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await open_store(sqlite_url)).close()
    monkeypatch.setitem(sys.modules, "alembic", None)  # importing it would fail
    assert (await (await open_store(sqlite_url)).facts()).turns_queued == 0


# -- what cannot be opened -----------------------------------------------------------------------------------------------
async def test_a_second_process_is_told_who_has_the_file(sqlite_url: str) -> None:
    code = (
        "import asyncio, sys\n"
        "from bot.store import Store\n"
        "async def main():\n"
        f"    store = Store({sqlite_url!r})\n"
        "    await store.open(); print('open', flush=True); sys.stdin.read()\n"
        "asyncio.run(main())\n"
    )
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert await holder.stdout.readline() == b"open\n"
        store = Store(sqlite_url)
        with pytest.raises(
            StoreError,
            match=rf"^the database {_path(sqlite_url)} is in use by process {holder.pid};",
        ):
            await store.open()
    finally:
        holder.kill()
        await holder.wait()
        holder._transport.close()
    store = Store(sqlite_url)
    await store.open()
    await store.close()


async def test_two_stores_in_one_process_share_no_file(sqlite_url: str, open_store) -> None:
    await open_store(sqlite_url)
    with pytest.raises(StoreError, match="in use by process"):
        await open_store(sqlite_url)


async def test_a_file_that_is_no_database(empty_sqlite_url: str, open_store) -> None:
    _path(empty_sqlite_url).write_text("this is a letter, not a database " * 100)
    with pytest.raises(StoreError, match="not a database"):
        await open_store(empty_sqlite_url)
    assert _path(empty_sqlite_url).read_text().startswith("this is a letter")


async def test_somebody_else_s_database_is_left_alone(empty_sqlite_url: str, open_store) -> None:
    with closing(sqlite3.connect(_path(empty_sqlite_url))) as raw:
        raw.execute("CREATE TABLE recipes (id)")
    with pytest.raises(StoreError, match="not Hearth's"):
        await open_store(empty_sqlite_url)


async def test_a_folder_that_cannot_be_made(tmp_path: Path, open_store) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be opened: .*check storage.url"):
        await open_store(f"sqlite:///{tmp_path}/file/x/hearth.db")
    with pytest.raises(StoreError, match="cannot be opened"):
        await open_store(f"sqlite:///{tmp_path}")


async def test_a_postgresql_that_is_not_there(tmp_path: Path, open_store) -> None:
    with pytest.raises(StoreError) as failed:
        await open_store(f"postgresql://hearth:geheim@/hearth?host={tmp_path}")
    assert "geheim" not in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "plain SQLite file"),
        ("sqlite:///:memory:", "plain SQLite file"),
        ("sqlite:///x.db?mode=ro", "plain SQLite file"),
        ("mysql://root:geheim@host/db", "mysql://"),
        ("geheim", "cannot be read"),
        ("postgresql://u:geheim@h:port/d", "cannot be read"),
    ],
)
def test_a_wrong_url_is_a_config_error_without_secrets(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        Store(url)
    assert words in str(wrong.value)
    assert "geheim" not in str(wrong.value)
    assert str(wrong.value).startswith("storage.url")
