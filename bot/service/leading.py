"""Which of several processes on one database holds the long connection of each bot: exactly one, always.

Owns a task per such bot. It asks the store for the bot's lease; who has it connects and renews it, the others wait and ask
again. A process that dies without a word is followed when its lease has run out: after `LEASE_S + ASK_S` at the latest, well
within a minute. A process that cannot renew hangs up `MARGIN_S` before its lease ends, by its own clock, and connects again
only while its lease holds: so two processes never throw each other out (WeCom ends the older of two connections).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from bot.domain.ports import Store
from bot.errors import HearthError
from bot.platforms.base import EventSink, Link, PlatformAdapter

log = structlog.get_logger()


def _boot_s() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds. `lease_s`: how long a lease holds; `renew_s`: how often its holder renews it; `ask_s`: how often the others ask;
    `margin_s`: how long before its end a holder that could not renew hangs up."""

    lease_s: float = 20.0
    renew_s: float = 5.0
    ask_s: float = 3.0
    margin_s: float = 5.0


@dataclass(slots=True, eq=False)
class _Seat:
    """One bot's connection as this process sees it. `until_s`: it is ours so long, on the leader's clock."""

    adapter: PlatformAdapter
    until_s: float = 0.0
    leads: bool = False
    holder: str = ""
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    task: asyncio.Task[None] | None = None

    @property
    def lease(self) -> str:
        """The lease's name: the app's, since a bot may be called otherwise in another process's config."""
        return f"connection:{self.adapter.platform}:{self.adapter.app_id}"


class Leading:
    """Owner: the service. `start` when events can be stored, `close` when no reply needs a connection any more."""

    def __init__(
        self,
        store: Store,
        adapters: Mapping[str, PlatformAdapter],
        owner: str,
        on_change: Callable[[], None],
        *,
        terms: Terms | None = None,
        clock_s: Callable[[], float] = _boot_s,
    ) -> None:
        """`owner` names this process; `on_change` is called when this process begins to lead a bot or leads it no longer."""
        self._store = store
        self._owner = owner
        self._on_change = on_change
        self._terms = terms or Terms()
        self._clock_s = clock_s
        self._seats = {
            name: _Seat(adapter)
            for name, adapter in adapters.items()
            if adapter.link is not Link.NONE
        }

    def start(self, sink_of: Callable[[str, PlatformAdapter], EventSink]) -> None:
        """Lead every bot as soon as nobody else does; `sink_of` tells where a bot's events go."""
        for name, seat in self._seats.items():
            if seat.task is None:
                keep = self._keep(seat, sink_of(name, seat.adapter))
                seat.task = asyncio.create_task(keep, name=f"leader-{name}")

    async def close(self) -> None:
        """Hang up everywhere and give the leases back, so that another process follows at once."""
        seats = [seat for seat in self._seats.values() if seat.task is not None]
        tasks = [seat.task for seat in seats if seat.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for seat in seats:
            seat.leads = False
            await seat.adapter.hang_up()
            with contextlib.suppress(HearthError):
                await self._store.drop_lease(seat.lease, self._owner)

    def elsewhere(self) -> frozenset[str]:
        """The app ids whose answers go over a connection that this process does not hold: their turns are left alone."""
        return frozenset(
            seat.adapter.app_id
            for seat in self._seats.values()
            if seat.adapter.link is Link.SPEAKS and not seat.leads
        )

    def connections(self) -> list[tuple[str, Mapping[str, str]]]:
        """The bots with a long connection, and the facts of each."""
        return [(name, self.health(seat.adapter)) for name, seat in self._seats.items()]

    def health(self, adapter: PlatformAdapter) -> Mapping[str, str]:
        """The adapter's facts, or who holds its connection instead of this process."""
        facts = dict(adapter.health())
        seat = self._seats.get(adapter.name)
        if seat is None or seat.leads:
            return facts
        facts.pop("deaf_since", None)
        facts.pop("reason", None)
        facts["waiting_since"] = seat.since.isoformat(timespec="seconds")
        facts["connected_process"] = seat.holder or "none yet"
        return facts

    # -- one bot -----------------------------------------------------------------------------------------------------
    async def _keep(self, seat: _Seat, sink: EventSink) -> None:
        while True:
            try:
                if await self._ask(seat):
                    await self._lead(seat, sink)
            except HearthError as error:
                log.warning("lease_not_asked", bot=seat.adapter.name, error=str(error))
            except Exception:
                log.exception("leader_fault", bot=seat.adapter.name)
            if seat.leads:
                seat.leads, seat.since = False, datetime.now(UTC)
                self._on_change()
                await seat.adapter.hang_up()
            await asyncio.sleep(self._terms.ask_s)

    async def _ask(self, seat: _Seat) -> bool:
        """Take or renew the lease; whether it is ours. Raises StoreError."""
        asked_s = self._clock_s()
        lease = await self._store.take_lease(seat.lease, self._owner, self._terms.lease_s)
        if lease.holder != seat.holder:
            log.info("connection_led_by", bot=seat.adapter.name, process=lease.holder or "nobody")
        seat.holder = lease.holder
        if lease.holder != self._owner:
            return False
        # From before the question on: the database's own count began later.
        seat.until_s = asked_s + lease.for_s - self._terms.margin_s
        return True

    async def _lead(self, seat: _Seat, sink: EventSink) -> None:
        """Connected from now on, until the lease is lost or could not be renewed in time."""
        seat.leads, seat.since = True, datetime.now(UTC)
        await seat.adapter.listen(sink, lambda: self._clock_s() < seat.until_s)
        self._on_change()
        while (left_s := seat.until_s - self._clock_s()) > 0:
            await asyncio.sleep(min(self._terms.renew_s, left_s))
            try:
                async with asyncio.timeout(max(0.0, seat.until_s - self._clock_s())):
                    if not await self._ask(seat):
                        break
            except (HearthError, TimeoutError) as error:
                why = str(error) or "no answer in time"
                log.warning("lease_not_renewed", bot=seat.adapter.name, error=why)
        log.warning("lease_lost", bot=seat.adapter.name, process=seat.holder)
