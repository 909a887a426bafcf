"""What others do to an engine, and what it does about it: programs that take memory, workers that lend devices and go away.

Decides which restart is wanted of a child that is well; the supervisor carries it out. Knows no requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from engine.link import wire
from engine.link.lostworkers import LostWorkers
from engine.link.obituary import Shortage
from engine.link.pressure import Pressure, Step, What
from engine.link.stepback import Depth, Ladder
from engine.link.watch import Supervision
from engine.machine.margins import Surroundings
from engine.rpc.client import worker_named
from engine.rpc.hello import is_free

if TYPE_CHECKING:
    from engine.config import EngineConfig

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Restart:
    """A planned one: `prepare` settles what the next child is. It waits until nobody has waited for anything for `quiet_s`, but
    not beyond `until` (None = for ever).
    """

    event: str  # for the log
    detail: str
    prepare: Callable[[], None]
    quiet_s: float = 0.0
    until: float | None = None


class Outside:
    """Owner: a supervisor. Times are monotonic seconds."""

    def __init__(
        self,
        config: EngineConfig,
        ladder: Ladder,
        surroundings: Surroundings,
        rules: Supervision,
        depth_of: Callable[[EngineConfig], Depth],
    ) -> None:
        """`depth_of` reads the model file; called on a thread."""
        self._log = _log.bind(model=config.name)
        self._ladder = ladder
        self._depth_of = depth_of
        self._latest = surroundings.latest
        self._pressure = Pressure(config.name, surroundings.margins, config.kv_ram_bytes)
        self._workers = LostWorkers(rules.worker_retry_s)
        self._quiet_s, self._patience_s = rules.quiet_s, rules.patience_s

    @property
    def config(self) -> EngineConfig:
        """What the next child is told: the ladder's size, without workers that are left out."""
        return self._workers.without(self._ladder.config)

    @property
    def sentence(self) -> str:
        """What the engine lacks because of others; "" = nothing."""
        parts = [self._workers.sentence]
        if self._pressure.has_given_back:
            parts.append("idle conversations have less RAM, as other programs take it")
        return "; ".join(filter(None, parts))

    @property
    def is_calm(self) -> bool:
        """Whether there is room for a larger size."""
        return self._pressure.is_calm

    def begin(self) -> None:
        """Another child is to be started: workers that may be asked again are tried. Where the engine cannot be without them
        nothing else would bring them back.
        """
        self._workers.try_again(self._workers.due(time.monotonic()))

    async def worker_lost(self, last_output: Iterable[str]) -> None:
        """A child died of it: by its last words, else of one that is away now, else any may be the one."""
        used = self.config.rpc
        named = {worker_named(line) for line in last_output}
        gone = [name for name in used if name in named]
        if not gone:
            free = await asyncio.to_thread(_which_are_free, used)
            gone = [name for name in used if name not in free] or list(used)
        self._workers.went_away(gone, time.monotonic(), _now())

    def is_ready(self, absent: Mapping[str, str]) -> list[wire.Command]:
        """A child is; `absent`: workers that it could not use. Returns what it has to be told."""
        self._workers.were_absent(absent, time.monotonic(), _now())
        if self._pressure.has_given_back:
            return [self._keep(self._pressure.ram_bytes)]
        return []

    def settled(self) -> None:
        """All has held for long."""
        self._workers.settled()

    async def look(self, now: float, *, is_idle: bool) -> wire.KeepInRam | Restart | None:
        """To be asked again and again while a child is ready: what it has to be told, or why another one should come."""
        step = self._pressure.look(self._latest())
        if step is not None and step.what is What.RESTART:
            return await self._smaller(step, now)
        if step is not None:
            event = "engine_gives_back" if step.what is What.KEEP_LESS else "engine_keeps_again"
            self._log.warning(event, kv_ram_mib=step.ram_bytes // 2**20, reason=step.sentence)
            return self._keep(step.ram_bytes)
        return await self._with_workers(now) if is_idle else None

    def _keep(self, n_bytes: int) -> wire.KeepInRam:
        """Never more than was planned, which may be less than what was asked for."""
        return wire.KeepInRam(n_bytes=min(n_bytes, self._ladder.config.kv_ram_bytes))

    async def _smaller(self, step: Step, now: float) -> Restart | None:
        shortage = step.shortage or Shortage()
        depth = await asyncio.to_thread(self._depth_of, self._ladder.config)
        if not self._ladder.can_leave_room(shortage, depth):
            self._log.warning("engine_cannot_give_back", reason=step.sentence)
            return None

        def prepare() -> None:
            self._ladder.leave_room(shortage, depth, f"at {_now()}")

        detail = f"{step.sentence}: it is started smaller"
        until = now + self._patience_s
        return Restart("engine_leaves_room", detail, prepare, self._quiet_s, until)

    async def _with_workers(self, now: float) -> Restart | None:
        """Workers that are left out are asked while nobody waits for anything; those that are there again are used."""
        due = self._workers.due(now)
        if not due:
            return None
        back = await asyncio.to_thread(_which_are_free, due)
        self._workers.still_away(set(due) - set(back), time.monotonic())
        if not back:
            return None
        detail = f"the RPC worker at {', '.join(back)} is there again"

        def prepare() -> None:
            self._workers.try_again(back)

        return Restart("engine_worker_back", detail, prepare, self._quiet_s)


def _which_are_free(addresses: Iterable[str]) -> list[str]:
    return [address for address in addresses if is_free(address)]


def _now() -> str:
    """For people."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
