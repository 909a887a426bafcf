"""EngineProcess with a real child (fake backend): starting, dying, restarting, closing."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.errors import EngineConfigError, EngineUnavailable, TextRefused
from engine.link import supervisor
from engine.link.watch import Supervision
from engine.types import (
    ChatMessage,
    Delta,
    EngineEvent,
    EngineState,
    Failed,
    FailureCode,
    Finished,
    Role,
)
from tests.support.processkit import ask, events_of, ids_of

ROOT = Path(__file__).resolve().parents[3]
Make = Callable[..., EngineProcess]
# 50 tokens a second, so that there is a middle of a reply to die in.
SLOW_FAKE: dict[str, Any] = {"name": "m", "backend": "fake", "fake": {"token_delay_s": "0.02"}}


@pytest.fixture
async def engines() -> AsyncIterator[Make]:
    made: list[EngineProcess] = []

    def make(rules: Supervision | None = None, **changes: Any) -> EngineProcess:
        engine = EngineProcess(EngineConfig(**SLOW_FAKE | changes), rules)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        await engine.close()


async def ready(make: Make, rules: Supervision | None = None, **changes: Any) -> EngineProcess:
    engine = make(rules, **changes)
    await engine.start()
    await engine.wait_ready(20.0)
    return engine


async def pid_of(engine: EngineProcess) -> int:
    return (await engine.stats()).child_pid


async def until(condition: Callable[[], bool], timeout_s: float = 40.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


async def frozen(engine: EngineProcess) -> int:
    """Stop every thread of the child; returns its process id."""
    pid = await pid_of(engine)
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED))
    return pid


# ── living ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_from_start_to_close(engines: Make) -> None:
    engine = engines()
    assert engine.info is None
    assert (await engine.stats()).state is EngineState.STARTING
    await engine.start()
    await engine.start()
    info = await engine.wait_ready(20.0)
    assert engine.info == info
    finished = (await events_of(engine, ask("r")))[-1]
    assert isinstance(finished, Finished)
    stats = await engine.stats()
    assert stats.state is EngineState.READY
    assert stats.rss_bytes > 1_000_000
    assert psutil.pid_exists(stats.child_pid)
    await engine.close()
    await engine.close()
    assert not psutil.pid_exists(stats.child_pid)
    closed = await engine.stats()
    assert (closed.state, closed.child_pid) == (EngineState.CLOSED, 0)
    (failed,) = await events_of(engine, ask("late"))
    assert isinstance(failed, Failed)
    assert failed.retryable, "a turn that meets a closing engine is answered at the next start"
    await engine.start()
    with pytest.raises(EngineUnavailable, match="closed"):
        await engine.wait_ready(1.0)
    with pytest.raises(EngineUnavailable, match="closed"):
        await engine.count("x")


async def test_before_it_is_ready_a_request_fails_at_once(engines: Make) -> None:
    engine = engines()
    await engine.start()
    (failed,) = await events_of(engine, ask("r"))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == (FailureCode.ENGINE_DIED, True)
    assert failed.retry_after_s > 0
    with pytest.raises(EngineUnavailable, match="starting"):
        await engine.count("x")
    with pytest.raises(EngineUnavailable, match="not ready within 0 s"):
        await engine.wait_ready(0.0)


# ── dying ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.crash
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
async def test_a_death_in_mid_reply(engines: Make, how: signal.Signals) -> None:
    engine = await ready(engines)
    pid = await pid_of(engine)
    events: list[EngineEvent] = []
    died_at = 0.0
    async for event in engine.submit(ask("r", 3000)):
        events.append(event)
        if isinstance(event, Delta) and not died_at:
            died_at = time.monotonic()
            os.kill(pid, how)
    assert time.monotonic() - died_at < 15, "by the socket's end, not by the watchdog"
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == (FailureCode.ENGINE_DIED, True)
    stats = await engine.stats()
    assert stats.state is EngineState.RESTARTING
    await engine.wait_ready(20.0)
    assert isinstance((await events_of(engine, ask("r")))[-1], Finished)
    stats = await engine.stats()
    assert stats.n_restarts == 1
    assert stats.child_pid not in {pid, 0}


@pytest.mark.crash
async def test_a_native_abort(engines: Make) -> None:
    engine = await ready(engines, fake={"token_delay_s": "0.01", "crash_after_tokens": "20"})
    events = await events_of(engine, ask("r", 300))
    assert isinstance(events[-1], Failed)
    assert events[-1].code is FailureCode.ENGINE_DIED
    assert 0 < len(ids_of(events)) < 20
    await until(lambda: "SIGABRT" in engine._supervisor.readiness.detail)
    await engine.wait_ready(20.0)
    assert isinstance((await events_of(engine, ask("r", 5)))[-1], Finished)


@pytest.mark.crash
async def test_a_question_that_the_child_dies_over(engines: Make) -> None:
    engine = await ready(engines)
    os.kill(await pid_of(engine), signal.SIGSTOP)
    question = asyncio.create_task(engine.count("x"))
    await asyncio.sleep(0.05)
    os.kill(await pid_of(engine), signal.SIGKILL)
    async with asyncio.timeout(1.0):
        with pytest.raises(EngineUnavailable):
            await question


@pytest.mark.crash
async def test_a_text_that_the_child_dies_over_twice_is_not_read_again(
    engines: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where nobody counts kills for memory, SIGKILL may be a death like any other.
    monkeypatch.setattr(supervisor, "oom_kills", lambda: None)
    engine = await ready(engines)
    for _ in range(2):
        pid = await frozen(engine)
        question = asyncio.create_task(engine.count("deadly"))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable):
            await question
        await engine.wait_ready(20.0)
    with pytest.raises(TextRefused, match="each time it read this text"):
        await engine.count("deadly")
    assert await engine.count("harmless") == 8
    assert (await engine.stats()).n_restarts == 2


@pytest.mark.crash
async def test_a_hung_step_is_killed(engines: Make) -> None:
    rules = Supervision(stall_s=0.4, first_step_s=0.4, stall_factor=1.0, watch_every_s=0.1)
    engine = await ready(engines, rules)
    pid = await pid_of(engine)
    events: list[EngineEvent] = []
    async for event in engine.submit(ask("r", 3000)):
        if isinstance(event, Delta) and not ids_of(events):
            os.kill(pid, signal.SIGSTOP)
        events.append(event)
    assert isinstance(events[-1], Failed)
    assert events[-1].retryable
    await until(lambda: not psutil.pid_exists(pid))
    await engine.wait_ready(20.0)
    assert (await engine.stats()).n_restarts == 1


@pytest.mark.crash
async def test_a_child_that_is_frozen_while_idle_is_killed_once_somebody_asks(
    engines: Make,
) -> None:
    rules = Supervision(stall_s=0.4, first_step_s=0.4, stall_factor=1.0, watch_every_s=0.1)
    engine = await ready(engines, rules)
    pid = await frozen(engine)
    with pytest.raises(EngineUnavailable):
        await engine.render([ChatMessage(role=Role.USER, content="hi")])
    await until(lambda: not psutil.pid_exists(pid))
    await engine.wait_ready(20.0)
    assert isinstance((await events_of(engine, ask("r")))[-1], Finished)


@pytest.mark.crash
async def test_an_idle_child_is_left_in_peace(engines: Make) -> None:
    rules = Supervision(stall_s=0.2, first_step_s=0.2, stall_factor=1.0, watch_every_s=0.05)
    engine = await ready(engines, rules)
    pid = await pid_of(engine)
    await events_of(engine, ask("r"))
    await asyncio.sleep(1.0)
    assert await pid_of(engine) == pid


@pytest.mark.crash
async def test_signals_to_the_whole_group_do_not_end_it(engines: Make) -> None:
    engine = await ready(engines)
    pid = await pid_of(engine)
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    assert isinstance((await events_of(engine, ask("r")))[-1], Finished)
    assert await pid_of(engine) == pid


async def test_close_in_the_middle_of_work(engines: Make) -> None:
    engine = await ready(engines)
    pid = await pid_of(engine)
    readers = [asyncio.create_task(events_of(engine, ask(f"r{n}", 3000))) for n in range(8)]
    await asyncio.sleep(0.2)
    async with asyncio.timeout(30.0):
        await engine.close()
        for events in await asyncio.gather(*readers):
            assert isinstance(events[-1], Failed)
            assert events[-1].retryable
    assert not psutil.pid_exists(pid)


async def test_close_while_it_loads(engines: Make) -> None:
    engine = engines()
    await engine.start()
    waiter = asyncio.create_task(engine.wait_ready(20.0))
    await asyncio.sleep(0.05)
    pid = await pid_of(engine)
    await engine.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        await waiter
    assert not psutil.pid_exists(pid)


@pytest.mark.crash
async def test_close_does_not_wait_for_a_frozen_child(engines: Make) -> None:
    engine = await ready(engines, Supervision(close_grace_s=0.3))
    pid = await pid_of(engine)
    os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(30.0):
        await engine.close()
    assert not psutil.pid_exists(pid)


# ── not coming up ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_wrong_file_is_told_once_and_looked_at_again(engines: Make, tmp_path: Path) -> None:
    rules = Supervision(config_retry_s=0.3)
    missing = tmp_path / "no-such.gguf"
    engine = engines(rules, backend="llama.cpp", path=str(missing))
    await engine.start()
    with pytest.raises(EngineConfigError, match=r"no-such\.gguf"):
        await engine.wait_ready(20.0)
    assert (await engine.stats()).state is EngineState.FAILED
    (failed,) = await events_of(engine, ask("r"))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == (FailureCode.ENGINE_DIED, False)
    await until(lambda: engine._supervisor.n_restarts >= 1)
    assert (await engine.stats()).state is EngineState.FAILED


async def test_settings_that_cannot_work_are_refused_at_start(engines: Make) -> None:
    engine = engines(n_ctx=0)
    with pytest.raises(EngineConfigError, match=r"n_ctx"):
        await engine.start()


def program(folder: Path, script: str, interpreter: str = "/bin/sh") -> str:
    """An executable that is started in place of Python."""
    path = folder / "not-python"
    path.write_text(f"#!{interpreter}\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.crash
async def test_a_child_that_dies_at_once_is_not_started_in_a_hot_loop(
    engines: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noise = "head -c 300000 /dev/zero | tr '\\0' 'x' >&2"
    last = "printf '\\nCUDA error: unknown error\\033[0m\\n' >&2"
    executable = program(tmp_path, f"{noise}; {last}; kill -ABRT $$")
    monkeypatch.setattr(sys, "executable", executable)
    engine = engines(Supervision(backoff_first_s=0.2, max_load_deaths=9))
    await engine.start()
    await until(lambda: engine._supervisor.n_restarts >= 2)
    started = time.monotonic()
    await until(lambda: engine._supervisor.n_restarts >= 3)
    assert time.monotonic() - started > 0.3, "the waits double"
    await until(lambda: engine._supervisor.readiness.state is EngineState.RESTARTING)
    stats = await engine.stats()
    assert "SIGABRT" in stats.detail
    assert "CUDA error: unknown error" in stats.detail
    assert "\x1b" not in stats.detail
    assert sum(map(len, engine.child_output)) < 30_000
    with pytest.raises(EngineUnavailable, match="CUDA error"):
        await engine.wait_ready(0.0)


async def test_a_program_that_cannot_be_started(
    engines: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    engine = engines()
    await engine.start()
    await until(lambda: engine._supervisor.readiness.state is EngineState.RESTARTING)
    assert "could not be started: No such file" in (await engine.stats()).detail


@pytest.mark.crash
async def test_a_child_that_talks_nonsense_is_replaced(
    engines: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    honest = sys.executable
    nonsense = program(
        tmp_path,
        "import os, sys, time\n"
        "os.write(int(sys.argv[sys.argv.index('--fd') + 1]), b'A' * 12)\n"
        "time.sleep(60)",
        honest,
    )
    monkeypatch.setattr(sys, "executable", nonsense)
    engine = engines()
    await engine.start()
    await until(lambda: engine._supervisor.readiness.state is EngineState.RESTARTING)
    assert "announces" in (await engine.stats()).detail
    monkeypatch.setattr(sys, "executable", honest)
    await engine.wait_ready(20.0)


async def test_a_report_that_breaks_the_bot_does_not_end_supervision(
    engines: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await ready(engines)

    def broken(report: object) -> None:
        raise KeyError(type(report).__name__)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "on_report", broken)
        events = await events_of(engine, ask("r"))
    assert isinstance(events[-1], Failed)
    assert events[-1].code is FailureCode.ENGINE_DIED
    await engine.wait_ready(20.0)
    assert isinstance((await events_of(engine, ask("r")))[-1], Finished)


# ── with the parent ──────────────────────────────────────────────────────────────────────────────────────────────────

PARENT = """
import asyncio, sys
from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.types import EngineRequest

async def main():
    engine = EngineProcess(EngineConfig(**{config!r}))
    await engine.start()
    await engine.wait_ready(20.0)
    stream = engine.submit(EngineRequest(id="r", prompt_tokens=(10, 11, 12), max_new_tokens=3000))
    await anext(stream)
    print((await engine.stats()).child_pid, flush=True)
    {then}

asyncio.run(main())
"""


@pytest.mark.crash
@pytest.mark.parametrize("end", ["killed", "exits"])
async def test_the_child_dies_with_its_parent(end: str) -> None:
    then = "await asyncio.sleep(60)" if end == "killed" else "import os; os._exit(0)"
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT.format(config=SLOW_FAKE, then=then),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    try:
        lines = [await parent.stdout.readline()]
        while b"engine_ready" in lines[-1]:
            lines.append(await parent.stdout.readline())
        child = int(lines[-1])
    finally:
        with suppress(ProcessLookupError):
            parent.kill()
    await parent.wait()
    await until(lambda: not _alive(child), 1.0)


def _alive(pid: int) -> bool:
    """A zombie that nobody has collected yet is dead."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
