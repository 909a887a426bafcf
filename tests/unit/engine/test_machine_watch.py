"""The task that looks at the machine: off the loop, one look at a time, still there after a fault, gone after close."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from engine.machine.margins import Margins
from engine.machine.sample import Sample
from engine.machine.sampler import Sampler
from engine.machine.watch import MachineWatch
from tests.support.samplekit import MIB, sample


class Scripted:
    """Hands out what it was given; the last sample again and again. An exception is raised, a number slept."""

    def __init__(self, *script: Sample | Exception | float) -> None:
        self.script = list(script)
        self.threads: set[int] = set()
        self.pids: list[Mapping[str, int]] = []
        self.closed = False

    def take(self, pids: Mapping[str, int]) -> Sample:
        self.threads.add(threading.get_ident())
        self.pids.append(pids)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, float):
            time.sleep(step)
            return sample(time.monotonic())
        return step

    def close(self) -> None:
        self.closed = True


def watch(sampler: Scripted) -> MachineWatch:
    return MachineWatch(Margins(), lambda: {"main": 42}, every_s=0.01, sampler=sampler)


async def until_seen(watched: MachineWatch, at: float) -> None:
    async with asyncio.timeout(30):
        while watched.latest is None or watched.latest.at < at:
            await asyncio.sleep(0.005)


async def test_looks_go_beside_the_loop_and_warnings_into_the_log() -> None:
    script = [sample(float(at), ram_available=100 * MIB) for at in (5, 10, 15, 20)]
    script += [sample(float(at)) for at in (25, 90)]
    sampler = Scripted(*script)
    watched = watch(sampler)
    with capture_logs() as logs:
        watched.start()
        await until_seen(watched, 90)
        await watched.close()
    told = [(one["event"], one["log_level"]) for one in logs]
    assert told == [("machine_warning", "warning"), ("machine_warning_over", "info")]
    assert logs[0]["what"] == "ram_low"
    assert "only 100 MiB of memory are available" in logs[0]["detail"]
    assert watched.alarms == ()
    assert sampler.pids[0] == {"main": 42}
    assert len(sampler.threads) == 1
    assert threading.get_ident() not in sampler.threads
    assert sampler.closed


async def test_a_fault_is_told_once_and_looking_goes_on() -> None:
    sampler = Scripted(OSError("gone"), OSError("gone"), sample(5.0))
    watched = watch(sampler)
    with capture_logs() as logs:
        watched.start()
        await until_seen(watched, 5)
        await watched.close()
        await watched.close()
    assert [one["event"] for one in logs] == ["machine_watch_failed"]


async def test_a_driver_that_hangs_holds_up_neither_the_loop_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.machine.watch._CLOSE_S", 0.2)
    watched = watch(Scripted(30.0))
    watched.start()
    started = time.monotonic()
    await asyncio.sleep(0.05)
    await watched.close()
    assert time.monotonic() - started < 15
    assert watched.latest is None


def test_a_real_sample() -> None:
    sampler = Sampler()
    found = sampler.take({"me": os.getpid(), "gone": 2**22 + 1})
    sampler.close()
    assert 0 < found.ram_available <= found.ram_total
    assert set(found.engines) == {"me"}
    assert found.engines["me"].rss > 5 * MIB
