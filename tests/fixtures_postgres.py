"""A real PostgreSQL server for the tests: one per pytest process, started when first asked for, fresh databases from it.

Debian's binaries; the server listens on a Unix socket in a temporary folder and on no port at all. It refuses to run as
root, so that a root session starts it as `postgres` or `nobody`. Without the binaries such tests are skipped with a printed
reason, but fail where CI=true.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_PLACES = [
    *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
    Path("/usr/local/bin"),
    Path("/usr/bin"),
]
# A test server has nothing to lose: no fsync, and few connections.
_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "''",
    "max_connections": "60",
    "shared_buffers": "'16MB'",
    "logging_collector": "off",
}


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server: its socket folder, its superuser, and how to run its tools."""

    folder: Path
    user: str
    bin: Path
    as_user: tuple[str, ...]

    def url(self, database: str) -> str:
        return f"postgresql://{self.user}@/{database}?host={self.folder}"

    def run(self, tool: str, *args: str) -> str:
        done = subprocess.run(
            [*self.as_user, str(self.bin / tool), *args],
            capture_output=True, text=True, timeout=50, check=False, cwd=self.folder,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{tool} {' '.join(args)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self) -> None:
        # With a log file the server inherits no pipe of ours; else waiting for pg_ctl would mean waiting for the server.
        log = str(self.folder / "log")
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-l", log, "-w", "-t", "40", "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-m", "immediate", "stop")


def _find_tools() -> Path | None:
    return next(
        (place for place in _PLACES if (place / "initdb").exists() and (place / "pg_ctl").exists()),
        None,
    )


def _account() -> tuple[str, ...]:
    """The prefix that drops root's rights; empty when there is nothing to drop."""
    if os.geteuid() != 0:
        return ()
    names = {entry.pw_name for entry in pwd.getpwall()}
    name = next((n for n in ("postgres", "nobody") if n in names), "nobody")
    entry = pwd.getpwnam(name)
    return ("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for this pytest process (each xdist worker has its own)."""
    tools = _find_tools()
    if tools is None:
        reason = (
            "no PostgreSQL server binaries (Debian: apt install postgresql); its tests did not run"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    # A socket's path may have 107 characters, so not pytest's own long folders.
    folder = Path(tempfile.mkdtemp(prefix="hearth-pg-", dir="/tmp"))
    as_user = _account()
    if as_user:
        uid, gid = (int(option.split("=")[1]) for option in as_user[1:3])
        os.chown(folder, uid, gid)
    server = PostgresServer(folder, "hearth", tools, as_user)
    try:
        server.run("initdb", "-D", str(folder / "data"), "-U", server.user, "-A", "trust", "-E", "UTF8",
                   "--locale=C", "--no-sync")  # fmt: skip
        lines = [
            f"{name} = {value}"
            for name, value in {**_SETTINGS, "unix_socket_directories": f"'{folder}'"}.items()
        ]
        with (folder / "data" / "postgresql.conf").open("a") as conf:
            conf.write("\n".join(["", *lines, ""]))
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _execute(server: PostgresServer, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(
        user=server.user, database="postgres", host=str(server.folder)
    )
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of a database with Hearth's newest schema, to be copied."""

    async def build() -> None:
        from bot.store import Store

        await _execute(postgres_server, "CREATE DATABASE hearth_template")
        store = Store(postgres_server.url("hearth_template"))
        await store.open()
        await store.close()

    asyncio.run(build())
    return "hearth_template"


@pytest.fixture
async def postgres_empty_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """The URL of a new database without tables."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    await _execute(postgres_server, f"CREATE DATABASE {name}")
    yield postgres_server.url(name)
    await _execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def postgres_url(
    postgres_server: PostgresServer, postgres_template: str
) -> AsyncIterator[str]:
    """The URL of a new database with Hearth's newest schema."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    await _execute(postgres_server, f"CREATE DATABASE {name} TEMPLATE {postgres_template}")
    yield postgres_server.url(name)
    await _execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")
