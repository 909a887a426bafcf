"""Keeps one engine child alive: start, watch, restart with backoff, and the state that `/readyz` shows.

Owns the child's life and nothing of its work: what the child reports is handed to a `Listener`. Must not know requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Protocol

import structlog

from engine.link import wire
from engine.link.process import Child
from engine.link.readiness import Readiness
from engine.link.watch import Backoff, StallWatch, Supervision
from engine.types import EngineState, ModelInfo

if TYPE_CHECKING:
    from engine.config import EngineConfig

log = structlog.get_logger()

_FATAL_MARK = "Fatal Python error"


class Listener(Protocol):
    """Who uses the child. Called on the event loop; must not block or raise anything but WireError."""

    def on_ready(self) -> None:
        """A child is ready for requests."""
        ...

    def on_report(self, report: wire.Report) -> None:
        """The child said something that is not about its own life."""
        ...

    def on_down(self, message: str, retry_after_s: float) -> None:
        """There is no child now; whatever was asked of it will not be answered."""
        ...


class Supervisor:
    """One child after the other. Owner of the state: its own task; the event loop may read it.

    STARTING → READY → RESTARTING → READY …; FAILED while the settings or the model file are wrong (tried again every
    `config_retry_s`, staying FAILED meanwhile); CLOSED for good.
    """

    def __init__(self, config: EngineConfig, rules: Supervision, listener: Listener) -> None:
        self._config = config
        self._rules = rules
        self._listener = listener
        self._log = log.bind(model=config.name)
        self.readiness = Readiness(config.name)
        self.n_restarts = 0
        self.last_output: tuple[str, ...] = ()
        self._child: Child | None = None
        self._resume_at = 0.0
        self._ready_at: float | None = None
        self._load_fault = ""
        self._n_load_deaths = 0
        self._kill_reason = ""
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
            self._task = asyncio.create_task(self._run(), name=f"engine_{self._config.name}")

    async def close(self) -> None:
        """End the child: politely for `close_grace_s` when it is ready, else at once. Twice is harmless."""
        child = self.ready_child
        self.readiness.set(EngineState.CLOSED, "closed")
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
        backoff = Backoff(self._rules)
        while True:
            how = await self._live()
            if self.readiness.state is EngineState.CLOSED:
                return
            healthy_s = time.monotonic() - self._ready_at if self._ready_at is not None else 0.0
            wait_s = backoff.next_wait_s(healthy_s)
            self._count_load_death(how)
            if self._load_fault:
                wait_s = self._rules.config_retry_s
                self.readiness.set(EngineState.FAILED, self._load_fault)
                self._log.error("engine_load_failed", detail=self._load_fault, retry_s=wait_s)
            else:
                self.readiness.set(EngineState.RESTARTING, f"{how}; it is started again")
                self._log.warning("engine_died", how=how, restart_s=wait_s)
            self._resume_at = time.monotonic() + wait_s
            await asyncio.sleep(wait_s)
            self.n_restarts += 1

    def _count_load_death(self, how: str) -> None:
        """llama.cpp aborts over some damaged files, and the kernel kills who takes too much memory: again and again."""
        self._n_load_deaths = 0 if self._ready_at is not None else self._n_load_deaths + 1
        if self._n_load_deaths >= self._rules.max_load_deaths and not self._load_fault:
            self._load_fault = f"the model could not be loaded {self._n_load_deaths} times: {how}"

    async def _live(self) -> str:
        """One child from start to end; returns how it ended, in words for an admin."""
        self._ready_at = None
        self._load_fault = self._kill_reason = ""
        try:
            child = self._child = await Child.start(self._log.bind(engine_child=True))
        except OSError as error:
            return f"the engine child could not be started: {error.strerror}"
        watch = StallWatch(self._rules, time.monotonic())
        watcher = asyncio.create_task(self._watch(child, watch), name="engine_stall_watch")
        grace_s = 0.0
        try:
            child.send(wire.Hello(version=wire.WIRE_VERSION, config=self._config))
            async with contextlib.aclosing(child.reports()) as reports:
                async for report in reports:
                    self._take(report, watch)
            grace_s = 1.0  # the socket has ended by itself, so the process is ending too
        except wire.WireError as error:
            self._kill_reason = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours in one report must not end all supervision
            self._log.exception("engine_report_failed")
            self._kill_reason = f"the bot could not take a report: {type(error).__name__}"
        finally:
            watcher.cancel()
            self._go_down()
            how = await child.reap(grace_s)
            self._child = None
            self.last_output = child.tail
        return obituary(how, self._kill_reason, child.tail)

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
            if watch.stalled(time.monotonic()):
                self._kill_reason = f"{watch.what} hung for more than {watch.allowance_s:.0f} s"
                child.kill()
                return

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
        self.readiness.info = info
        self._ready_at = time.monotonic()
        self.readiness.set(EngineState.READY, "")
        self._log.info("engine_ready", pid=self._child.pid, n_restarts=self.n_restarts)
        self._listener.on_ready()


def obituary(how: str, kill_reason: str, tail: tuple[str, ...]) -> str:
    """How a child ended, with its last words: those before Python's own report of a fatal signal, if there is one."""
    marks = [index for index, line in enumerate(tail) if line.startswith(_FATAL_MARK)]
    spoken = tail[: marks[0]] or tail[marks[0] : marks[0] + 1] if marks else tail
    reason = kill_reason
    if not reason and how.endswith("SIGKILL"):
        reason = "perhaps the machine ran out of memory"
    words = f"the engine child ended ({how}{', ' + reason if reason else ''})"
    return f'{words}, last words: "{spoken[-1]}"' if spoken else words
