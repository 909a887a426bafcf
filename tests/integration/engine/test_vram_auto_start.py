"""`vram = "auto"` for real: engines start with what was planned, answer, and stay within the plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from bot.app import Hearth
from bot.cli.report import print_plan
from bot.config import parse_config
from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.types import EngineState, Finished
from engine.vram import here
from engine.vram.auto import StartPlan, plan_start
from engine.vram.ledger import OVERHEAD
from engine.vram.ledger import RESERVE as RESERVE_ITEM
from tests.support.memorypeak import measured_peak
from tests.support.processkit import ask, events_of
from tests.support.rpckit import RpcWorker
from tests.support.tinymodels import write_model

MIB = 2**20
RESERVE = 256 * MIB
pytestmark = pytest.mark.timeout(120)


def wish(path: str, **changes: object) -> EngineConfig:
    fields: dict[str, object] = {
        "n_ctx": 4096,
        "n_parallel": 4,
        "kv_ram_bytes": 2 * 2**30,
        "is_fitted": True,
    }
    return EngineConfig(name="m", path=path, use_mmap=False, **fields | changes)  # type: ignore[arg-type]


def free(monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    monkeypatch.setattr(here, "available_bytes", lambda: mib * MIB)


def told(plan: StartPlan, peak: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  {plan.settings}: planned {plan.ledger.ram.used / MIB:.1f} MiB of "
            f"{plan.ledger.ram.device.capacity / MIB:.0f}, measured {peak / MIB:.1f} MiB",
            end="",
        )


@pytest.mark.model
def test_the_demo_model_stays_within_its_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free(monkeypatch, 520)
    plan = plan_start(wish("demo"))
    peak = measured_peak(plan.config)
    told(plan, peak, capsys)
    assert plan.given_up
    assert peak <= plan.ledger.ram.used <= plan.ledger.ram.device.capacity < 520 * MIB


@pytest.mark.parametrize("name", ["qwen3moe", "lfm2", "mamba2"])
def test_tiny_models_stay_within_their_plans(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free(monkeypatch, 330)
    plan = plan_start(wish(str(write_model(name, tmp_path)), n_ctx=16384))
    peak = measured_peak(plan.config)
    told(plan, peak, capsys)
    assert plan.given_up
    assert peak <= plan.ledger.ram.used


@pytest.mark.model
async def test_an_engine_answers_in_less_memory_than_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free(monkeypatch, 560)
    engine = EngineProcess(wish("demo"))
    await engine.start()
    try:
        info = await engine.wait_ready(60.0)
        prompt = tuple(range(10, 310))
        events = await events_of(engine, ask("r", 4, prompt_tokens=prompt, cache_key="a"))
        stats = await engine.stats()
        peak = peak_of(stats.child_pid)
    finally:
        await engine.close()
    assert isinstance(events[-1], Finished)
    assert "smaller than wished: " in stats.plan
    assert "kv_ram 2.00 GiB → 0.00 GiB" in stats.plan
    assert info.kv_cells < 4 * 4096
    planned = re.search(r"RAM ([\d.]+) of ([\d.]+) GiB", stats.plan)
    assert planned is not None
    # The whole child, Python and all, has room in what the plan keeps free beside the model.
    assert peak <= float(planned[1]) * 2**30 + RESERVE
    assert float(planned[1]) <= float(planned[2]) < 0.3


@pytest.mark.model
async def test_an_engine_that_cannot_fit_says_so_instead_of_being_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free(monkeypatch, 340)
    engine = EngineProcess(replace(wish("demo"), sacrifice=("kv_ram",)))
    await engine.start()
    try:
        with pytest.raises(EngineConfigError, match="does not fit: even with kv_ram") as caught:
            await engine.wait_ready(30.0)
        stats = await engine.stats()
    finally:
        await engine.close()
    assert stats.state is EngineState.FAILED
    assert "choose a smaller model" in str(caught.value) or "it would with" in str(caught.value)


@pytest.mark.model
async def test_layers_go_to_a_lent_device_as_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """An RPC worker on loopback is the card: 1 GiB of it, of which a context and the reserve are taken for granted."""
    plans: list[StartPlan] = []
    async with RpcWorker("--memory", "1GiB") as worker:
        before = peak_of(worker.lender.pid)
        asked = wish("demo", rpc=(worker.address,), kv_ram_bytes=0, n_parallel=2)
        engine = EngineProcess(asked, on_plan=plans.append)
        await engine.start()
        try:
            await engine.wait_ready(60.0)
            prompt = tuple(range(10, 310))
            events = await events_of(engine, ask("r", 4, prompt_tokens=prompt))
            taken = peak_of(worker.lender.pid) - before
        finally:
            await engine.close()
    assert isinstance(events[-1], Finished)
    (plan,) = plans
    account = plan.ledger.card
    assert account is not None
    assert 0 < plan.config.n_gpu_layers < 31, "more than fits was asked for"
    assert "memory of the card binds" in plan.why
    assert plan.config.rpc == asked.rpc
    own = account.used - account.items[OVERHEAD] - account.items[RESERVE_ITEM]
    with capsys.disabled():
        print(  # noqa: T201
            f"\n  {plan.settings}: planned {own / MIB:.1f} MiB on the lent device, measured {taken / MIB:.1f} MiB",
            end="",
        )
    assert account.used <= account.device.capacity <= 2**30
    assert taken <= own + account.items[RESERVE_ITEM]


def peak_of(pid: int) -> int:
    """Most memory that a process ever had."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.model
async def test_a_whole_hearth_prints_its_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = parse_config(
        {"models": {"main": {"n_ctx": 1024, "n_parallel": 2, "kv_ram": "64MiB"}}}, tmp_path
    )
    hearth = Hearth(config, on_plan=print_plan)
    await hearth.start(listen=False)
    try:
        await hearth.engines["main"].wait_ready(60.0)
        ready, facts = await hearth.readiness()
    finally:
        await hearth.close()
    assert ready
    assert facts["models"]["main"]["plan"].startswith("2 × 1024 tokens, KV f16, all in RAM")
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("  plan       main: 2 × 1024 tokens")
    assert "weights 0.0" in second
    assert "idle conversations 0.06" in second


async def test_a_replaced_configuration_is_planned_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine with other wishes is what a changed file makes: nothing of the old plan is left."""
    free(monkeypatch, 2000)
    path = str(write_model("llama", tmp_path))
    plans = []
    for n_ctx in (1024, 2048):
        engine = EngineProcess(wish(path, n_ctx=n_ctx, kv_ram_bytes=0, n_parallel=2))
        await engine.start()
        try:
            await engine.wait_ready(60.0)
            plans.append((await engine.stats()).plan)
        finally:
            await engine.close()
    assert [plan.split(",")[0] for plan in plans] == ["2 × 1024 tokens", "2 × 2048 tokens"]
