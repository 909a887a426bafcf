"""The leader of a bot's long connection: who connects, when it hangs up, and that two never hold one connection."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from bot.domain.records import Lease
from bot.errors import StoreError
from bot.platforms.base import Link
from bot.service.leading import Leading, Terms

QUICK = Terms(lease_s=0.4, renew_s=0.05, ask_s=0.03, margin_s=0.1)


class Table:
    """The leases of one database, on the loop's clock. `down` fails every call, `hangs` answers none."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, float]] = {}
        self.down = False
        self.hangs = False
        self.for_ever = False

    async def take_lease(self, name: str, owner: str, lease_s: float) -> Lease:
        if self.hangs:
            await asyncio.sleep(3600)
        if self.down:
            raise StoreError("the database is down")
        if self.for_ever:
            return Lease(owner, math.inf)
        now = asyncio.get_running_loop().time()
        holder, until = self.rows.get(name, ("", 0.0))
        if holder == owner or until < now:
            self.rows[name] = (owner, now + lease_s)
            return Lease(owner, lease_s)
        return Lease(holder, until - now)

    async def drop_lease(self, name: str, owner: str) -> None:
        if self.rows.get(name, ("", 0.0))[0] == owner:
            del self.rows[name]


class Bot:
    """As much of an adapter as leading needs. It notes when it holds its connection, and that nobody else does."""

    name = "feishu"
    platform = "recording"
    app_id = "app"
    link = Link.SPEAKS

    def __init__(self, owner: str, world: list[str]) -> None:
        self.owner = owner
        self.world = world
        self.listening: Callable[[], bool] | None = None

    async def listen(self, sink: Any, may_connect: Callable[[], bool]) -> None:
        self.world.append(self.owner)
        assert self.world == [self.owner], "two processes hold one connection"
        self.listening = may_connect

    async def hang_up(self) -> None:
        if self.owner in self.world:
            self.world.remove(self.owner)
        self.listening = None

    def health(self) -> dict[str, str]:
        return {"deaf_since": "…", "reason": "not connected yet"}


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not holds():
            await asyncio.sleep(0.005)


class Stand:
    """Several processes over one table."""

    def __init__(self) -> None:
        self.table = Table()
        self.live: list[str] = []
        self.leaders: dict[str, Leading] = {}
        self.bots: dict[str, Bot] = {}
        self.woken: list[str] = []

    def start(self, owner: str) -> Leading:
        loop = asyncio.get_running_loop()
        bot = self.bots[owner] = Bot(owner, self.live)
        leading = Leading(
            self.table, {"feishu": bot}, owner, lambda: self.woken.append(owner),  # type: ignore[arg-type]
            terms=QUICK, clock_s=loop.time,
        )  # fmt: skip
        leading.start(lambda _name, _bot: None)  # type: ignore[arg-type, return-value]
        self.leaders[owner] = leading
        return leading

    def kill(self, owner: str) -> None:
        """kill -9: no task does anything more, and the kernel closes the socket."""
        for seat in self.leaders.pop(owner)._seats.values():
            assert seat.task
            seat.task.cancel()
        self.live.remove(owner)

    async def until_led_by(self, owner: str) -> None:
        await eventually(lambda: self.live == [owner])


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    made = Stand()
    yield made
    made.table.hangs = made.table.down = False
    for leading in made.leaders.values():
        await leading.close()
    assert made.live == []


async def _for(seconds: float, holds: Callable[[], bool]) -> None:
    """It holds all the time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        assert holds()
        await asyncio.sleep(0.01)


async def test_one_connects_and_the_other_waits(stand: Stand) -> None:
    first = stand.start("a")
    await stand.until_led_by("a")
    second = stand.start("b")
    await _for(1.0, lambda: stand.live == ["a"])  # longer than two leases
    assert stand.woken == ["a"]
    assert first.elsewhere() == frozenset()
    assert second.elsewhere() == {"app"}
    assert "deaf_since" in first.health(stand.bots["a"])
    waits = second.health(stand.bots["b"])
    assert waits["connected_process"] == "a"
    assert "waiting_since" in waits
    assert "deaf_since" not in waits


async def test_a_process_that_dies_is_followed_when_its_lease_has_run_out(stand: Stand) -> None:
    stand.start("a")
    await stand.until_led_by("a")
    stand.start("b")
    await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    stand.kill("a")
    died = loop.time()
    await stand.until_led_by("b")
    assert loop.time() - died <= QUICK.lease_s + QUICK.ask_s + 0.2
    assert stand.woken[-1] == "b"


async def test_a_process_that_ends_is_followed_at_once(stand: Stand) -> None:
    first = stand.start("a")
    await stand.until_led_by("a")
    stand.start("b")
    await asyncio.sleep(0.1)
    await first.close()
    async with asyncio.timeout(QUICK.ask_s + 0.15):
        await stand.until_led_by("b")


@pytest.mark.parametrize("how", ["down", "hangs"])
async def test_one_that_cannot_renew_hangs_up_before_another_may_connect(
    stand: Stand, how: str
) -> None:
    stand.start("a")
    await stand.until_led_by("a")
    setattr(stand.table, how, True)
    await eventually(lambda: stand.live == [])
    (_, until), now = (
        stand.table.rows["connection:recording:app"],
        asyncio.get_running_loop().time(),
    )
    assert now < until, "it hung up while its lease still held"
    setattr(stand.table, how, False)
    if how == "down":  # a hung call is answered by nobody any more
        await stand.until_led_by("a")


async def test_a_short_fault_of_the_database_changes_nothing(stand: Stand) -> None:
    stand.start("a")
    await stand.until_led_by("a")
    stand.table.down = True
    await _for(0.15, lambda: stand.live == ["a"])
    stand.table.down = False
    await _for(0.6, lambda: stand.live == ["a"])


async def test_a_lost_lease_ends_the_connection(stand: Stand) -> None:
    stand.start("a")
    await stand.until_led_by("a")
    now = asyncio.get_running_loop().time()
    stand.table.rows["connection:recording:app"] = ("another", now + 0.3)
    await eventually(lambda: stand.live == [])
    assert stand.leaders["a"].elsewhere() == {"app"}
    assert stand.woken == ["a", "a"], "its turns go back at once"
    await stand.until_led_by("a")


async def test_after_a_sleep_nothing_connects_before_the_lease_was_asked_for(stand: Stand) -> None:
    """A machine that slept, or a stopped process: the socket is dead, and so is the lease. Reconnecting at once would throw
    out the process that has followed."""
    now = [100.0]
    bot = stand.bots["a"] = Bot("a", stand.live)
    terms = Terms(lease_s=20, renew_s=3600, ask_s=3600, margin_s=5)
    leading = Leading(
        stand.table, {"feishu": bot}, "a", lambda: None, terms=terms, clock_s=lambda: now[0]  # type: ignore[arg-type]
    )  # fmt: skip
    leading.start(lambda _name, _bot: None)  # type: ignore[arg-type, return-value]
    await eventually(lambda: bot.listening is not None)
    may_connect = bot.listening
    assert may_connect is not None
    assert may_connect()
    now[0] = 114.9
    assert may_connect()
    now[0] = 115.1
    assert not may_connect()
    await leading.close()


async def test_on_sqlite_a_lease_never_ends(stand: Stand) -> None:
    stand.table.for_ever = True
    stand.start("a")
    await stand.until_led_by("a")
    stand.table.down = True
    await _for(0.6, lambda: stand.live == ["a"])


async def test_bots_without_a_connection_need_no_leader() -> None:
    adapter = Bot("a", [])
    adapter.link = Link.NONE
    leading = Leading(Table(), {"feishu": adapter}, "a", lambda: None)  # type: ignore[arg-type]
    leading.start(lambda _name, _bot: None)  # type: ignore[arg-type, return-value]
    await asyncio.sleep(0)
    assert leading.elsewhere() == frozenset()
    assert leading.health(adapter) == adapter.health()  # type: ignore[arg-type]
    assert adapter.world == []
    await leading.close()


def test_a_dead_process_is_followed_within_a_minute() -> None:
    terms = Terms()
    longest_connect_s = 25.0  # lark-oapi: address 10 s, socket 15 s
    assert terms.lease_s + terms.ask_s + longest_connect_s < 60
    assert terms.margin_s + 2 * terms.renew_s < terms.lease_s, (
        "one failed renewal is no reason to hang up"
    )
