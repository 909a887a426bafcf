"""Real deaths of a real child (scripted model): each cause is named, the engine steps back, and what kills is found."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.link.watch import Supervision
from engine.types import (
    EngineRequest,
    EngineState,
    EngineStats,
    Failed,
    FailureCode,
    Finished,
    Started,
)
from tests.support.processkit import ask, events_of, ids_of

pytestmark = pytest.mark.crash

QUICK = Supervision(
    backoff_first_s=0.05,
    backoff_max_s=0.1,
    stall_s=0.4,
    first_step_s=0.4,
    stall_factor=1.0,
    watch_every_s=0.1,
    config_retry_s=30.0,
)
PATIENT = Supervision(backoff_first_s=0.05, backoff_max_s=0.1, config_retry_s=30.0)
BAD, GOOD = tuple(b"please die now"), tuple(b"please live")
Make = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Make]:
    made: list[EngineProcess] = []

    async def make(
        rules: Supervision = PATIENT, *, wait: bool = True, **changes: Any
    ) -> EngineProcess:
        config = EngineConfig(**{"name": "m", "backend": "fake", "n_ctx": 1024} | changes)
        engine = EngineProcess(config, rules)
        made.append(engine)
        await engine.start()
        if wait:
            await engine.wait_ready(20.0)
        return engine

    yield make
    for engine in made:
        await engine.close()


async def until(
    engine: EngineProcess, condition: Callable[[EngineStats], bool], timeout_s: float = 40.0
) -> EngineStats:
    async with asyncio.timeout(timeout_s):
        while not condition(stats := await engine.stats()):
            await asyncio.sleep(0.02)
    return stats


async def end_of(engine: EngineProcess, request: EngineRequest) -> Finished | Failed:
    end = (await events_of(engine, request))[-1]
    assert isinstance(end, Finished | Failed)
    return end


async def after_restart(engine: EngineProcess, request: EngineRequest) -> Finished | Failed:
    """As a turn does it: wait until it is ready, ask again."""
    await engine.wait_ready(20.0)
    return await end_of(engine, request)


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ({"die": "abort", "last_words": "ggml.c:7: GGML_ASSERT(ok) failed"}, ("SIGABRT", "a check inside llama.cpp failed", "GGML_ASSERT(ok)")),
        ({"die": "segv"}, ("SIGSEGV", "native code crashed")),
        ({"die": "kill"}, ("SIGKILL", "somebody killed it from outside")),
        ({"die": "hang"}, ("SIGKILL", "a decode step hung for more than 0 s")),
        ({"die": "bus"}, ("SIGBUS", "the model file was cut off while in use")),
        ({"die": "abort", "last_words": "CUDA error: unspecified launch failure"}, ("the graphics card reported a fault",)),
    ],
    ids=["abort", "segv", "kill", "hang", "bus", "cuda"],
)  # fmt: skip
async def test_the_cause_is_named_and_the_others_are_served(
    start: Make, script: dict[str, str], words: tuple[str, ...]
) -> None:
    engine = await start(QUICK, fake={"die_on": "die", "die_after": "3", **script})
    events = await events_of(engine, ask("r", 50, prompt_tokens=BAD))
    assert isinstance(events[-1], Failed)
    assert (events[-1].code, events[-1].retryable) == (FailureCode.ENGINE_DIED, True)
    assert len(ids_of(events)) <= 3
    stats = await until(engine, lambda stats: words[0] in stats.detail)
    assert all(part in stats.detail for part in words)
    assert isinstance(await after_restart(engine, ask("r", prompt_tokens=GOOD)), Finished)
    assert (await engine.stats()).step_back == ""


async def test_a_build_for_another_cpu_is_told_at_once(start: Make) -> None:
    engine = await start(fake={"die": "ill"})
    assert isinstance(await end_of(engine, ask("r")), Failed)
    with pytest.raises(EngineConfigError, match="made for another CPU: run `make setup` again"):
        await engine.wait_ready(10.0)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_size_that_is_refused_becomes_smaller_until_it_fits(start: Make) -> None:
    engine = await start(n_ubatch=128, fake={"fits": "n_ubatch=64 n_parallel=2"})
    stats = await engine.stats()
    assert stats.state is EngineState.READY
    assert stats.step_back.startswith(
        "n_ubatch 128 → 64, n_parallel 4 → 2 after running out of memory at 20"
    )
    assert engine.info is not None
    assert engine.info.n_parallel == 2
    assert isinstance(await end_of(engine, ask("r")), Finished)


async def test_a_card_that_is_full_at_the_first_batch_moves_layers(start: Make) -> None:
    """The scripted model goes by the demo model's 30 layers."""
    script = {"fits": "n_gpu_layers=26", "short_at": "decode", "last_words": "CUDA error: out of memory"}  # fmt: skip
    engine = await start(fake=script, n_ubatch=64, n_gpu_layers=99)
    tries = 0
    while isinstance(await after_restart(engine, ask("r")), Failed):
        tries += 1
        assert tries < 4
    assert tries == 2, "99 is 31 here, then 27 and 23"
    assert (await engine.stats()).step_back.startswith("n_gpu_layers 99 → 23 after")


async def test_no_request_is_blamed_for_a_size(start: Make) -> None:
    script = {"fits": "n_ubatch=64", "short_at": "decode"}
    engine = await start(fake=script)
    for _ in range(3):
        end = await after_restart(engine, ask("r", lineage="turn"))
        assert isinstance(end, Failed)
        assert end.code is FailureCode.ENGINE_DIED
    assert isinstance(await after_restart(engine, ask("r", lineage="turn")), Finished)


async def test_nothing_left_to_give_up_is_a_clear_state(start: Make) -> None:
    script = {"fits": "n_ctx=512", "short_at": "load"}
    engine = await start(wait=False, n_parallel=1, n_ubatch=64, fake=script)
    with pytest.raises(EngineConfigError, match="nothing is left to make smaller") as refused:
        await engine.wait_ready(30.0)
    assert "the machine ran out of memory" in str(refused.value)
    assert "cache_type_k f16 → q4_0" in str(refused.value)
    end = await end_of(engine, ask("r"))
    assert isinstance(end, Failed)
    assert not end.retryable


async def test_the_full_size_is_tried_again_when_nobody_has_asked_for_long(
    start: Make, tmp_path: Path
) -> None:
    rules = Supervision(backoff_first_s=0.05, watch_every_s=0.05, full_size_retry_s=0.6)
    spare = tmp_path / "browser-closed"
    script = {"fits": "n_ubatch=256", "spare": str(spare), "token_delay_s": "0.02"}
    engine = await start(rules, fake=script)
    small = (await engine.stats()).step_back
    assert small.startswith("n_ubatch 512 → 256 after")
    busy = await events_of(engine, ask("r", 60))  # more than a second
    assert isinstance(busy[-1], Finished)
    n_restarts = (await engine.stats()).n_restarts
    assert n_restarts == 1, "not while somebody waits"
    stats = await until(engine, lambda stats: stats.n_restarts >= n_restarts + 2)
    stats = await until(engine, lambda stats: stats.state is EngineState.READY)
    assert stats.step_back.startswith("n_ubatch 512 → 256"), "in vain, and one way back"
    spare.touch()
    await until(engine, lambda stats: not stats.step_back and stats.state is EngineState.READY)
    assert isinstance(await end_of(engine, ask("r")), Finished)


async def test_what_the_kernel_kills_for_memory_comes_back_smaller(
    start: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = [0]
    monkeypatch.setattr("engine.link.supervisor.oom_kills", lambda: kills[0])
    engine = await start()
    kills[0] += 1
    os.kill((await engine.stats()).child_pid, signal.SIGKILL)
    stats = await until(engine, lambda stats: bool(stats.step_back))
    await engine.wait_ready(20.0)
    assert stats.step_back.startswith("n_ubatch 512 → 256 after")


# ── poison ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def turn(engine: EngineProcess, request: EngineRequest) -> tuple[Finished | Failed, int]:
    """One turn as the bot runs it: again while the failure passes, behind what it has."""
    ids: list[int] = []
    tries = 0
    while True:
        tries += 1
        await engine.wait_ready(20.0)
        again = EngineRequest(
            id=f"{request.lineage}.{tries}",
            prompt_tokens=request.prompt_tokens,
            generated_tokens=tuple(ids),
            max_new_tokens=request.max_new_tokens,
            lineage=request.lineage,
            owner=request.lineage,
        )
        events = await events_of(engine, again)
        ids += ids_of(events)
        end = events[-1]
        assert isinstance(end, Finished | Failed)
        if isinstance(end, Finished) or not end.retryable:
            return end, tries


async def test_poison_is_found_and_everyone_else_goes_on(start: Make) -> None:
    script = {"die": "abort", "die_on": "die", "die_after": "5", "token_delay_s": "0.01"}
    engine = await start(fake=script)
    bad = turn(engine, ask("", 60, prompt_tokens=BAD, lineage="bad"))
    good = [
        turn(engine, ask("", 60, prompt_tokens=(*GOOD, n), lineage=f"good{n}")) for n in range(3)
    ]
    ends = await asyncio.gather(bad, *good)
    (poisoned, tries), *others = ends
    assert isinstance(poisoned, Failed)
    assert (poisoned.code, poisoned.retryable) == (FailureCode.POISON, False)
    assert tries == 4, "two deaths in company, one alone, and the refusal"
    assert all(isinstance(end, Finished) for end, _ in others)
    assert all(n_tries <= 4 for _, n_tries in others)
    assert (await engine.stats()).n_restarts == 3
    again = await end_of(engine, ask("again", prompt_tokens=BAD, lineage="bad"))
    assert isinstance(again, Failed)
    assert again.code is FailureCode.POISON
    assert (await engine.stats()).n_restarts == 3, "it is not computed once more"


async def test_the_same_words_from_a_program_are_poison_too(start: Make) -> None:
    engine = await start(fake={"die": "segv", "die_on": "die"})
    for _ in range(3):
        assert isinstance(await after_restart(engine, ask("r", prompt_tokens=BAD)), Failed)
    end = await after_restart(engine, ask("r", prompt_tokens=BAD))
    assert isinstance(end, Failed)
    assert end.code is FailureCode.POISON
    assert isinstance(await end_of(engine, ask("r", prompt_tokens=GOOD)), Finished)


async def test_a_hang_can_be_poison(start: Make) -> None:
    engine = await start(QUICK, fake={"die": "hang", "die_on": "die"})
    end, tries = await turn(engine, ask("", prompt_tokens=BAD, lineage="bad"))
    assert isinstance(end, Failed)
    assert (end.code, tries) == (FailureCode.POISON, 4)


async def test_waiting_ones_are_not_suspected(start: Make) -> None:
    script = {"die": "abort", "die_on": "die", "die_after": "20", "token_delay_s": "0.02"}
    engine = await start(n_parallel=1, fake=script)
    for _ in range(2):
        await engine.wait_ready(20.0)
        bad = asyncio.create_task(end_of(engine, ask("bad", 60, prompt_tokens=BAD, lineage="bad")))
        await asyncio.sleep(0.1)
        waiting = await events_of(engine, ask("w", lineage="w"))
        assert not any(isinstance(event, Started) for event in waiting)
        assert isinstance(await bad, Failed)
    await engine.wait_ready(20.0)
    verdict = engine._suspects.verdict
    assert verdict(ask("w", lineage="w")).value == "free"
    assert verdict(ask("bad", lineage="bad")).value == "alone"


async def test_an_engine_that_dies_over_everything_says_so(start: Make) -> None:
    engine = await start(fake={"die": "abort"})
    for n in range(3):
        end = await after_restart(engine, ask("r", lineage=f"turn {n}", prompt_tokens=(1, n)))
        assert isinstance(end, Failed)
        assert end.code is FailureCode.ENGINE_DIED
    with pytest.raises(EngineConfigError, match="dies again and again, whatever it computes"):
        await engine.wait_ready(20.0)
    end = await end_of(engine, ask("late"))
    assert isinstance(end, Failed)
    assert not end.retryable, "people are told, not kept waiting"
