"""The store's tests run on SQLite and on PostgreSQL alike: every test that takes `url` or `store` runs on both."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bot.store import Store


class Clock:
    """The time as the store sees it; moves only when told. (PostgreSQL's leases go by the server's clock instead.)"""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the newest schema, to be copied: migrating one for every test would take longer than the tests."""
    path = tmp_path_factory.mktemp("template") / "hearth.db"

    async def build() -> None:
        store = Store(f"sqlite:///{path}")
        await store.open()
        await store.close()

    asyncio.run(build())
    return path


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    path = tmp_path / "hearth.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """The URL of a database that does not exist yet."""
    return f"sqlite:///{tmp_path / 'hearth.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """storage.url of a database of this test's own, with the newest schema."""
    fixture = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(fixture))


OpenStore = Callable[..., Awaitable[Store]]


@pytest.fixture
async def open_store(clock: Clock) -> AsyncIterator[OpenStore]:
    """Opens stores that the test's end closes."""
    opened: list[Store] = []

    async def open_one(url: str, **options: object) -> Store:
        store = Store(url, **{"clock": clock, **options})
        await store.open()
        opened.append(store)
        return store

    yield open_one
    for store in reversed(opened):
        await store.close()


@pytest.fixture
async def store(url: str, open_store: OpenStore) -> Store:
    return await open_store(url)
