"""The one task that looks at the machine: samples on a thread, judges on the loop, tells the log when something begins and ends."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import structlog

from engine.machine.alarms import Alarm, Alarms
from engine.machine.margins import Margins
from engine.machine.sample import Sample
from engine.machine.sampler import Sampler

_log = structlog.get_logger()
_Result = TypeVar("_Result")
# A driver that hangs must not hold up the end of the process.
_CLOSE_S = 2.0


class TakesSamples(Protocol):
    """What the watch needs of a sampler; tests hand in their own."""

    def take(self, pids: Mapping[str, int]) -> Sample:
        """The machine now."""
        ...

    def close(self) -> None:
        """No more samples are wanted."""
        ...


class _Thread:
    """Runs calls one after the other beside the loop. A daemon: unlike an executor's thread it lets the process end while a
    driver hangs.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="machine_watch", daemon=True).start()

    async def run(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Its result or its exception."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()

        def call() -> None:
            result: object = None
            error: Exception | None = None
            try:
                result = function(*arguments)
            except Exception as caught:  # noqa: BLE001 - handed to whoever waits
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_settle, future, result, error)

        self._calls.put(call)
        return await future

    def end(self) -> None:
        """Behind the calls that wait."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return  # nobody waits any more
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class MachineWatch:
    """Owner of its task and its thread. `latest` and `alarms` may be read by anybody on the loop."""

    def __init__(
        self,
        margins: Margins,
        pids: Callable[[], Mapping[str, int]],
        *,
        every_s: float = 5.0,
        sampler: TakesSamples | None = None,
    ) -> None:
        """`pids`: the engine children of the moment, by the model's name."""
        self._pids = pids
        self._every_s = every_s
        self._sampler = sampler or Sampler()
        self._alarms = Alarms(margins)
        self._thread: _Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self.latest: Sample | None = None

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong now."""
        return self._alarms.raised

    def start(self) -> None:
        """Begin to look."""
        self._thread = _Thread()
        self._task = asyncio.create_task(self._run(), name="machine_watch")

    async def close(self) -> None:
        """Stop; calling it twice is harmless."""
        task, self._task = self._task, None
        thread, self._thread = self._thread, None
        if task is None or thread is None:
            return
        task.cancel()
        await asyncio.wait({task})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await thread.run(self._sampler.close)
        thread.end()

    async def _run(self) -> None:
        failed = False
        while True:
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - a figure that cannot be read must not end all watching
                if not failed:
                    _log.exception("machine_watch_failed")
                failed = True
            await asyncio.sleep(self._every_s)

    async def _look(self) -> None:
        if self._thread is None:
            return
        sample = await self._thread.run(self._sampler.take, dict(self._pids()))
        self.latest = sample
        raised, ended = self._alarms.look(sample)
        for alarm in raised:
            _log.warning("machine_warning", what=alarm.kind.value, detail=alarm.sentence)
        for alarm in ended:
            _log.info("machine_warning_over", what=alarm.kind.value, about=alarm.about)
