"""Keeps one engine child alive: start, watch, restart with backoff, and the state that `/readyz` shows.

Owns the child's life and nothing of its work: what the child reports is handed to a `Listener`. Must not know requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import structlog

from engine.backends.modelfile import find_model
from engine.errors import EngineConfigError
from engine.link import wire
from engine.link.aftermath import Aftermath, Life
from engine.link.obituary import Cause, Circumstances, Death, death_of
from engine.link.oomkills import oom_kills
from engine.link.outside import Outside, Restart
from engine.link.process import Child
from engine.link.readiness import Readiness
from engine.link.sizing import Sizing
from engine.link.stepback import Depth, Ladder
from engine.link.watch import StallWatch, Supervision
from engine.machine.margins import Surroundings
from engine.types import EngineState, ModelInfo
from engine.vram.claims import Claims
from engine.vram.gguf import layer_counts

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.vram.auto import PlanListener

log = structlog.get_logger()


class Listener(Protocol):
    """Who uses the child. Called on the event loop; must not block or raise anything but WireError."""

    @property
    def idle_since(self) -> float | None:
        """Monotonic time since which nobody waits for anything; None = somebody does."""
        ...

    def on_ready(self) -> None:
        """A child is ready for requests."""
        ...

    def on_report(self, report: wire.Report) -> None:
        """The child said something that is not about its own life."""
        ...

    def on_down(self, message: str, retry_after_s: float) -> None:
        """There is no child now; whatever was asked of it will not be answered."""
        ...

    def on_death(self, *, blame: bool, healthy: bool) -> bool:
        """Why there is none is known now: `blame` what was being computed, or nobody. True = too many deaths in a row that
        no request can be blamed for.
        """
        ...


class Supervisor:
    """One child after the other. Owner of the state: its own task; the event loop may read it.

    STARTING → READY → RESTARTING → READY …; FAILED while the settings or the model file are wrong, or where children die
    for no reason that a restart could mend (tried again every `config_retry_s`, staying FAILED meanwhile); CLOSED for good.
    After a death for want of memory the next child is one step smaller (`engine.link.stepback`); what others take from it or no
    longer lend it is `engine.link.outside`.
    """

    def __init__(
        self,
        config: EngineConfig,
        rules: Supervision,
        listener: Listener,
        claims: Claims | None = None,
        on_plan: PlanListener | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._rules = rules
        self._listener = listener
        self._log = log.bind(model=config.name)
        self._name = config.name
        self._ladder = Ladder(config)
        self._sizing = Sizing(config, claims or Claims(), self._taken, on_plan)
        self._outside = Outside(
            config, self._ladder, surroundings or Surroundings(), rules, _depth_of
        )
        self._aftermath = Aftermath(rules, self._ladder)
        self.readiness = Readiness(config.name)
        self.n_restarts = 0
        self.last_output: tuple[str, ...] = ()
        self._child: Child | None = None
        self._resume_at = 0.0
        self._ready_at: float | None = None
        self._load_fault = ""
        self._hung = self._broken = ""
        self._wanted: Restart | None = None
        self._planned = False
        self._task: asyncio.Task[None] | None = None

    @property
    def child(self) -> Child | None:
        """The running child, ready or not."""
        return self._child

    @property
    def ready_child(self) -> Child | None:
        """The child that takes requests now."""
        return self._child if self.readiness.state is EngineState.READY else None

    @property
    def step_back(self) -> str:
        """How far below its settings the engine runs, in a sentence; "" = at full size."""
        return self._ladder.sentence

    @property
    def lacks(self) -> str:
        """What it lacks because of others (memory, workers), in a sentence; "" = nothing."""
        return self._outside.sentence

    @property
    def plan(self) -> str:
        """What was planned at the start and why, in one line; "" = the settings are taken as they are."""
        return self._sizing.sentence

    @property
    def retry_after_s(self) -> float:
        """A guess when requests will be taken again; 0 after close."""
        match self.readiness.state:
            case EngineState.CLOSED | EngineState.READY:
                return 0.0
            case EngineState.FAILED:
                return self._rules.config_retry_s
            case _:
                return 1.0 + max(0.0, self._resume_at - time.monotonic())

    def start(self) -> None:
        """Start the first child; calling it again changes nothing."""
        if self._task is None and self.readiness.state is not EngineState.CLOSED:
            self.readiness.set(EngineState.STARTING, "loading the model")
            self._task = asyncio.create_task(self._run(), name=f"engine_{self._name}")

    async def close(self) -> None:
        """End the child: politely for `close_grace_s` when it is ready, else at once. Twice is harmless."""
        child = self.ready_child
        self.readiness.set(EngineState.CLOSED, "closed")
        self._sizing.close()
        task, self._task = self._task, None
        if task is None:
            return
        if child is not None:
            child.send(wire.Shutdown())
            await asyncio.wait({task}, timeout=self._rules.close_grace_s)
        if self._child is not None:
            # Its end ends `_live`, which collects it; only a task that waits for no process is cancelled.
            self._child.kill()
            await asyncio.wait({task}, timeout=self._rules.close_grace_s)
        task.cancel()
        await asyncio.wait({task})

    async def _run(self) -> None:
        while True:
            death = await self._live()
            if self.readiness.state is EngineState.CLOSED:
                return
            wait_s = 0.0 if self._planned else await self._after(death)
            self._resume_at = time.monotonic() + wait_s
            await asyncio.sleep(wait_s)
            self.n_restarts += 1

    async def _after(self, death: Death) -> float:
        """Settle state and size of the next child. Returns how long to wait before it is started."""
        lived_s = None if self._ready_at is None else time.monotonic() - self._ready_at
        unblamed = self._listener.on_death(
            blame=death.may_be_a_requests_fault and lived_s is not None,
            healthy=(lived_s or 0.0) >= self._rules.healthy_after_s,
        )
        when = f"at {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        depth = Depth()
        if death.shortage is not None or death.is_load_fault:
            depth = await asyncio.to_thread(_depth_of, self._ladder.config)
        if death.cause is Cause.WORKER_LOST:
            await self._outside.worker_lost(self.last_output)
        what = self._aftermath.of(death, Life(lived_s, unblamed, depth, when))
        if what.state is EngineState.FAILED:
            self._sizing.renew()  # another file, or other memory, by the next try
        self.readiness.set(what.state, what.detail)
        self._log.warning(
            what.event,
            cause=death.cause.value,
            detail=what.detail,
            step_back=self.step_back,
            restart_s=what.wait_s,
        )
        return what.wait_s

    def _taken(self) -> tuple[int, bool]:
        """The child's own memory, and whether it has loaded."""
        child = self._child
        return (child.private_bytes if child else 0), self.ready_child is not None

    # One life.

    async def _live(self) -> Death:
        """One child from start to end; returns how it ended."""
        self._ready_at = None
        self._load_fault = self._hung = self._broken = ""
        self._planned, self._wanted = False, None
        kills_before = oom_kills()
        self._outside.begin()
        try:
            planned = await self._sizing.settle(self._outside.config.rpc)
        except EngineConfigError as error:
            return Death(Cause.SETTINGS, str(error), is_load_fault=True)
        if planned is not None:
            self._ladder.resize(planned)
        try:
            child = self._child = await Child.start(self._log.bind(engine_child=True))
        except OSError as error:
            return Death(Cause.ENDED, f"the engine child could not be started: {error.strerror}")
        watch = StallWatch(self._rules, time.monotonic())
        watcher = asyncio.create_task(self._watch(child, watch), name="engine_stall_watch")
        grace_s = 0.0
        try:
            child.send(wire.Hello(version=wire.WIRE_VERSION, config=self._outside.config))
            async with contextlib.aclosing(child.reports()) as reports:
                async for report in reports:
                    self._take(report, watch)
            grace_s = 1.0  # the socket has ended by itself, so the process is ending too
        except wire.WireError as error:
            self._broken = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours in one report must not end all supervision
            self._log.exception("engine_report_failed")
            self._broken = f"the bot could not take a report: {type(error).__name__}"
        finally:
            watcher.cancel()
            self._go_down()
            how = await child.reap(grace_s)
            self._child = None
            self.last_output = child.tail
        kills = oom_kills()
        counted = kills is not None and kills_before is not None
        return death_of(
            Circumstances(
                how,
                child.last_words,
                load_fault=self._load_fault,
                hung=self._hung,
                broken=self._broken,
                oom_kills=(kills or 0) - (kills_before or 0) if counted else None,
            )
        )

    def _go_down(self) -> None:
        """Tell all waiters now; reaping the process may take a moment longer."""
        if self.readiness.state is EngineState.READY:
            self.readiness.set(EngineState.RESTARTING, "the engine child has just died")
        closing = self.readiness.state is EngineState.CLOSED
        message = (
            "the engine was closed" if closing else "the engine child died during this request"
        )
        self._listener.on_down(message, self.retry_after_s)

    async def _watch(self, child: Child, watch: StallWatch) -> None:
        while True:
            await asyncio.sleep(self._rules.watch_every_s)
            now = time.monotonic()
            if watch.stalled(now, child.probed_since):
                self._hung = f"{watch.what} hung for more than {watch.allowance_s:.0f} s"
                child.kill()
                return
            child.probe()
            if self._wanted is None:
                self._wanted = await self._wish(child, now)
            if self._wanted is not None and self._may_restart(self._wanted, now):
                self._restart(child, self._wanted)
                await asyncio.sleep(self._rules.close_grace_s)
                child.kill()
                return

    async def _wish(self, child: Child, now: float) -> Restart | None:
        """Why another child should take the place of this one, which is well."""
        if self.ready_child is None:
            return None
        wanted = await self._outside.look(now, is_idle=self._listener.idle_since is not None)
        if isinstance(wanted, wire.KeepInRam):
            child.send(wanted)
            return None
        if wanted is None and self._may_grow(now):
            detail = "the full size is tried again"
            return Restart("engine_full_size_tried", detail, self._ladder.try_full)
        if wanted is None and await self._has_room(now):
            detail = "there is room for all that was asked for"
            return Restart("engine_planned_anew", detail, self._sizing.try_more)
        return wanted

    async def _has_room(self, now: float) -> bool:
        """Whether a plan that gave something up can be made anew; looked for in idle hours only."""
        idle_since, ready_at = self._listener.idle_since, self._ready_at
        if idle_since is None or ready_at is None:
            return False
        if not (self._ladder.is_full and self._outside.is_calm):
            return False
        quiet_s = now - max(idle_since, ready_at)
        return await self._sizing.has_room(quiet_s, self._rules.full_size_retry_s, now)

    def _may_grow(self, now: float) -> bool:
        """Whether a child that is smaller than configured has been idle for so long that the full size can be tried."""
        idle_since = self._listener.idle_since
        if self._ready_at is None or self.ready_child is None:
            return False
        if self._ladder.is_full:
            if now - self._ready_at >= self._rules.full_size_retry_s:
                self._ladder.settled()
                self._outside.settled()
            return False
        if not self._outside.is_calm:
            return False
        wait_s = self._rules.full_size_retry_s * self._ladder.retry_factor()
        return idle_since is not None and now - max(idle_since, self._ready_at) >= wait_s

    def _may_restart(self, wanted: Restart, now: float) -> bool:
        """Whether this is a quiet moment, or it can wait no longer."""
        if self.ready_child is None:
            return False
        idle_since = self._listener.idle_since
        is_quiet = idle_since is not None and now - idle_since >= wanted.quiet_s
        return is_quiet or (wanted.until is not None and now >= wanted.until)

    def _restart(self, child: Child, wanted: Restart) -> None:
        """End a child that is well; requests that it has fail as retryable and are continued by the next one."""
        self._planned = True
        wanted.prepare()
        self.readiness.set(EngineState.RESTARTING, wanted.detail)
        self._log.info(wanted.event, detail=wanted.detail, step_back=self.step_back)
        child.send(wire.Shutdown())

    def _take(self, report: wire.Report, watch: StallWatch) -> None:
        match report:
            case wire.Ready(version=version, info=info):
                watch.loaded(time.monotonic())
                self._become_ready(version, info)
            case wire.LoadFailed(message=message):
                self._load_fault = message
            case wire.Beat(working=working, n_steps=n, longest_step_s=longest):
                watch.beat(time.monotonic(), working=working, n_steps=n, longest_step_s=longest)
            case _:
                self._listener.on_report(report)

    def _become_ready(self, version: int, info: ModelInfo) -> None:
        if version != wire.WIRE_VERSION:
            raise wire.WireError(
                f"the engine on disk speaks wire version {version}, the bot {wire.WIRE_VERSION}: restart hearth"
            )
        if self.readiness.state is EngineState.CLOSED or self._child is None:
            return
        self._ladder.loaded()
        self.readiness.info = info
        self._ready_at = time.monotonic()
        self._sizing.without(info.absent_workers)
        for command in self._outside.is_ready(info.absent_workers):
            self._child.send(command)
        self.readiness.set(EngineState.READY, "")
        self._log.info("engine_ready", pid=self._child.pid, n_restarts=self.n_restarts)
        self._listener.on_ready()


def _depth_of(config: EngineConfig) -> Depth:
    """What the model file says."""
    try:
        return Depth(*layer_counts(find_model(config.name, config.path)))
    except EngineConfigError:
        return Depth()
