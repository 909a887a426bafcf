"""The plan before a child is started: when it is made, what the engine and its people are told, and what it holds for others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.link import sizing, wire
from engine.link.outside import Outside
from engine.link.sizing import Sizing
from engine.link.stepback import Depth, Ladder
from engine.link.watch import Supervision
from engine.machine.margins import Surroundings
from engine.types import EngineState
from engine.vram.auto import StartPlan
from engine.vram.claims import Claims, Held
from engine.vram.devices import Device
from engine.vram.ledger import DeviceLedger, Ledger, Placement
from engine.vram.settings import context_settings
from tests.support.samplekit import sample

GIB = 2**30
CONFIG = EngineConfig(name="m", is_fitted=True)
FAKE = EngineConfig(name="m", backend="fake", is_fitted=True, n_parallel=4)


def plan_of(config: EngineConfig, ram: int = GIB, card: int = 0, **changes: Any) -> StartPlan:
    def account(name: str, n_bytes: int) -> DeviceLedger:
        return DeviceLedger(Device(name, "cpu", 8 * GIB, 0.0, True), {"layers": n_bytes}, 0, 0)

    chosen = replace(config, **changes)
    on_card = account("CUDA0", card) if card else None
    ledger = Ledger(Placement(), context_settings(chosen, 0), on_card, account("RAM", ram))
    smaller = tuple(f"{key} is smaller" for key in changes)
    return StartPlan(chosen, ledger, "because", smaller, ())


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Held]]:
    """Sets what the planner answers (a plan, or an exception to raise); returns what it was told that others hold."""

    def put(*answers: StartPlan | Exception) -> list[Held]:
        left, seen = list(answers), []

        def plan(_config: EngineConfig, held: Held) -> StartPlan:
            seen.append(held)
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(sizing, "plan_start", plan)
        return seen

    return put


def sizing_of(config: EngineConfig, claims: Claims | None = None, **more: Any) -> Sizing:
    return Sizing(config, claims or Claims(), more.get("taken", lambda: (0, False)), more.get("on_plan"))  # fmt: skip


async def test_a_plan_is_made_once_and_told(planner: Callable[..., list[Held]]) -> None:
    planner(plan_of(CONFIG, n_ctx=2048))
    told: list[StartPlan] = []
    one = sizing_of(CONFIG, on_plan=told.append)
    assert one.sentence == ""
    chosen = await one.settle()
    assert chosen is not None
    assert chosen.n_ctx == 2048
    assert await one.settle() is None
    assert [plan.config for plan in told] == [chosen]
    assert "because; smaller than wished: n_ctx is smaller" in one.sentence


async def test_what_is_not_to_be_planned_is_not(planner: Callable[..., list[Held]]) -> None:
    planner()
    one = sizing_of(EngineConfig(name="m", rpc=("10.0.0.2:50052",)))
    one.renew()
    assert await one.settle() is None
    assert await one.settle(("10.0.0.2:50052",)) is None


async def test_other_workers_are_another_plan(planner: Callable[..., list[Held]]) -> None:
    here, there = "10.0.0.2:50052", "10.0.0.3:50052"
    wish = replace(CONFIG, rpc=(here, there))
    planner(*(plan_of(replace(wish, rpc=()), n_gpu_layers=n) for n in (30, 10, 20, 30)))
    one = sizing_of(wish)

    async def layers(*used: str) -> int | None:
        chosen = await one.settle(used)
        assert chosen is None or chosen.rpc == (here, there), "nobody is forgotten"
        return chosen.n_gpu_layers if chosen else None

    assert await layers(here, there) == 30
    assert await layers(here, there) is None, "a crash of its own is no reason"
    assert await layers(here) == 10, "one was lost"
    assert await layers(here, there) == 20, "and is there again"
    one.without({there})  # the child could not use it after all
    assert await layers(here, there) == 30


async def test_a_refusal_is_raised_and_planned_again_when_it_is_due(
    planner: Callable[..., list[Held]],
) -> None:
    planner(EngineConfigError("nothing fits"), EngineConfigError("still"), plan_of(CONFIG))
    one = sizing_of(CONFIG)
    for says in ("nothing fits", "still"):
        with pytest.raises(EngineConfigError, match=says):
            await one.settle()
        one.renew()
    assert await one.settle() is not None


async def test_a_fault_of_ours_starts_the_engine_as_it_is_set(
    planner: Callable[..., list[Held]],
) -> None:
    planner(ZeroDivisionError("a bug"))
    assert await sizing_of(CONFIG).settle() is None


async def test_models_that_start_together_do_not_plan_with_the_same_memory(
    planner: Callable[..., list[Held]],
) -> None:
    first, second = (replace(CONFIG, name=name) for name in "ab")
    seen = planner(plan_of(first, 3 * GIB, 2 * GIB), plan_of(second), plan_of(second), plan_of(second))  # fmt: skip
    claims, state = Claims(), [(0, False)]
    one = sizing_of(first, claims, taken=lambda: state[0])
    two = sizing_of(second, claims)
    await asyncio.gather(one.settle(), two.settle())
    state[0] = (
        GIB,
        True,
    )  # loaded: a third of the RAM is there, and the driver tells what is taken of the card
    two.renew()
    await two.settle()
    one.close()
    two.renew()
    await two.settle()
    assert seen == [Held(0, 0), Held(3 * GIB, 2 * GIB), Held(2 * GIB, 0), Held(0, 0)]


async def test_more_room_is_looked_for_in_quiet_hours_only(
    planner: Callable[..., list[Held]],
) -> None:
    small = plan_of(CONFIG, GIB, GIB, n_ctx=1024)
    seen = planner(small, small, EngineConfigError("less than ever"), plan_of(CONFIG))
    one = sizing_of(CONFIG, taken=lambda: (GIB // 2, True))
    await one.settle()
    assert not await one.has_room(3599.0, 3600.0, 10_000.0)
    assert len(seen) == 1, "nobody looks before an hour is over"
    assert not await one.has_room(3600.0, 3600.0, 10_000.0), "the same again is no reason"
    assert seen[1] == Held(-GIB // 2, -GIB), "what it has itself would be free"
    assert not await one.has_room(4000.0, 3600.0, 10_400.0)
    assert len(seen) == 2
    assert not await one.has_room(9000.0, 3600.0, 20_000.0), "nor is a refusal"
    assert await one.has_room(9000.0, 3600.0, 30_000.0)


async def test_where_the_room_is_gone_again_the_old_size_stays(
    planner: Callable[..., list[Held]],
) -> None:
    planner(plan_of(CONFIG, n_ctx=1024), EngineConfigError("gone"))
    one = sizing_of(CONFIG)
    await one.settle()
    before = one.sentence
    one.try_more()
    assert await one.settle() is None
    assert one.sentence == before
    assert await one.settle() is None


async def test_what_is_given_back_later_is_never_more_than_was_planned() -> None:
    """2 GiB for idle conversations were asked for and none planned: a quarter of what was asked would be more."""
    wish = replace(CONFIG, kv_ram_bytes=2 * GIB)
    ladder = Ladder(wish)
    ladder.resize(replace(wish, kv_ram_bytes=0))
    short = [sample(at, ram_available=2**28) for at in (1.0, 40.0)]
    surroundings = Surroundings(latest=lambda: short.pop(0))
    outside = Outside(wish, ladder, surroundings, Supervision(), lambda _: Depth())
    assert await outside.look(1.0, is_idle=True) is None
    assert await outside.look(40.0, is_idle=True) == wire.KeepInRam(n_bytes=0)


# The whole engine.


async def test_an_engine_starts_with_what_was_planned_and_says_so(
    planner: Callable[..., list[Held]],
) -> None:
    planner(plan_of(FAKE, n_parallel=2))
    engine = EngineProcess(FAKE)
    try:
        await engine.start()
        info = await engine.wait_ready(20.0)
        stats = await engine.stats()
    finally:
        await engine.close()
    assert info.n_parallel == 2
    assert "2 × 4096 tokens" in stats.plan
    assert stats.step_back == "", "a plan is no step back"


async def test_an_engine_grows_when_memory_has_become_free(
    planner: Callable[..., list[Held]],
) -> None:
    whole = plan_of(FAKE)
    planner(plan_of(FAKE, n_parallel=1), whole, whole)
    engine = EngineProcess(
        FAKE, Supervision(full_size_retry_s=0.3, watch_every_s=0.05, close_grace_s=1.0)
    )
    try:
        await engine.start()
        assert (await engine.wait_ready(20.0)).n_parallel == 1
        for _ in range(400):
            if engine.info is not None and engine.info.n_parallel == 4:
                break
            await asyncio.sleep(0.05)
        stats = await engine.stats()
    finally:
        await engine.close()
    assert engine.info is not None
    assert engine.info.n_parallel == 4
    assert "smaller than wished" not in stats.plan


async def test_planning_does_not_block_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(config: EngineConfig, _held: Held) -> StartPlan:
        entered.set()
        go_on.wait(10.0)
        return plan_of(config)

    monkeypatch.setattr(sizing, "plan_start", slow)
    engine = EngineProcess(FAKE)
    try:
        await engine.start()
        before = time.monotonic()
        while not entered.is_set():
            await asyncio.sleep(0.01)
        assert time.monotonic() - before < 5.0
        assert (await engine.stats()).state is EngineState.STARTING
    finally:
        go_on.set()
        await engine.close()


async def test_what_does_not_fit_is_a_clear_state_until_it_does(
    planner: Callable[..., list[Held]], tmp_path: Path
) -> None:
    """FAILED with the planner's sentence, tried again by itself."""
    planner(EngineConfigError("models.m: it does not fit"), plan_of(FAKE, n_ctx=1024))
    engine = EngineProcess(FAKE, Supervision(config_retry_s=0.3))
    try:
        await engine.start()
        with pytest.raises(EngineConfigError, match=r"models\.m: it does not fit"):
            await engine.wait_ready(20.0)
        assert (await engine.stats()).state is EngineState.FAILED
        for _ in range(400):
            if (await engine.stats()).state is EngineState.READY:
                break
            await asyncio.sleep(0.05)
        info = await engine.wait_ready(20.0)
        assert info.n_ctx_tokens == 1024
    finally:
        await engine.close()
