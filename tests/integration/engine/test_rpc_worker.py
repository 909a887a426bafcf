"""Devices of another process through llama.cpp's RPC, on loopback: a real worker, real models, and everything that a card would do."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.lending import check_free
from engine.rpc.client import Workers
from engine.rpc.endpoints import Endpoint, parse_listen
from engine.rpc.hello import WorkerAway, ask_worker, is_free
from engine.types import EngineState, Finished
from engine.vram.planning import Wishes, make_plan
from engine.vram.probe import dry_run
from engine.vram.workers import worker_devices
from tests.support import deathkit
from tests.support.deathkit import Blow, Told, demo_engine, prompt_of, tell, until
from tests.support.forcing import Forcing, open_backend
from tests.support.nearties import Judge
from tests.support.rpckit import RpcWorker
from tests.support.tinymodels import write_model

pytestmark = [
    pytest.mark.model,
    pytest.mark.crash,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]
RULES = replace(deathkit.RULES, worker_retry_s=0.5, quiet_s=0.1)
QUESTION = deathkit.QUESTIONS[0]
N_TOKENS = 16
MIB = 2**20


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker() -> AsyncIterator[RpcWorker]:
    async with RpcWorker() as worker:
        yield worker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(worker: RpcWorker) -> AsyncIterator[EngineProcess]:
    """Half of the layers are lent."""
    engine = demo_engine(RULES, rpc=(worker.address,), n_gpu_layers=15)
    await engine.start()
    await engine.wait_ready(60.0)
    yield engine
    await engine.close()


async def one_reply(engine: EngineProcess, *blows: Blow) -> Told:
    return await tell(engine, await prompt_of(engine, QUESTION), blows, n_tokens=N_TOKENS)


async def test_layers_that_are_lent_say_the_same(
    engine: EngineProcess, worker: RpcWorker, judge: Judge
) -> None:
    told = await one_reply(engine)
    prompt = await prompt_of(engine, QUESTION)
    judge.verdict(prompt, judge.whole(prompt, N_TOKENS), told.ids)
    assert (await engine.stats()).lacks == ""
    held = {connection.raddr for connection in worker.lender.net_connections() if connection.raddr}
    assert len(held) == 1, "the engine holds one connection while it has the model"
    assert worker.lines[0].startswith("rpc-worker: lends CPU (")
    assert worker.address in worker.lines[0]
    await worker.said("a client uses it")


def nobody_dials(address: str) -> None:
    raise AssertionError(f"{address} was dialled")


async def test_a_worker_in_use_is_dialled_by_nobody(
    engine: EngineProcess, worker: RpcWorker
) -> None:
    """By its own protocol it would keep them waiting for ever: the lock tells this machine, a time limit the others."""
    address = Endpoint("127.0.0.1", worker.port)
    with pytest.raises(WorkerAway, match="somebody else uses it"):
        await asyncio.to_thread(ask_worker, address, 0.3)
    pid = (await engine.stats()).child_pid
    second = Workers("second")
    await asyncio.to_thread(second.connect, [worker.address], nobody_dials)
    assert second.absent == {
        worker.address: f"models.demo (process {pid}) uses it, and it serves one at a time"
    }
    notes: list[str] = []
    (device,) = worker_devices([worker.address], "models.m.rpc", notes)
    assert device.name == f"RPC0 at {worker.address}"
    assert device.capacity > 100 * MIB
    assert notes[0].startswith(
        f"the RPC worker at {worker.address} is in use by models.demo (process {pid})"
    )
    told = await one_reply(engine)
    assert isinstance(told.end, Finished), "nobody was disturbed"


async def test_a_worker_killed_in_mid_answer(
    engine: EngineProcess, worker: RpcWorker, judge: Judge
) -> None:
    """The answer goes on without it, and when it is there again it is used again."""
    told = await one_reply(engine, Blow(5, lambda _pid: worker.kill()))
    assert isinstance(told.end, Finished)
    assert told.n_tries == 2
    prompt = await prompt_of(engine, QUESTION)
    judge.verdict(prompt, judge.whole(prompt, N_TOKENS), told.ids)
    lacks = (await engine.stats()).lacks
    assert lacks.startswith(f"without the RPC worker at {worker.address} since 20")
    assert lacks.endswith("it went away")
    await worker.said("started again in")
    stats = await until(engine, lambda stats: not stats.lacks and stats.state is EngineState.READY)
    assert stats.n_restarts == 2
    assert stats.step_back == ""
    assert not await asyncio.to_thread(is_free, worker.address), "it is in use again"


async def test_a_worker_that_ends_while_nobody_asks_is_missed_at_once(
    engine: EngineProcess, worker: RpcWorker
) -> None:
    n_before = (await engine.stats()).n_restarts
    assert await worker.stop() == 0
    assert worker.lines[-1] == "rpc-worker: stopping"
    stats = await until(engine, lambda s: s.n_restarts > n_before and s.state is EngineState.READY)
    assert f"without the RPC worker at {worker.address}" in stats.lacks
    assert isinstance((await one_reply(engine)).end, Finished)
    await engine.close()
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(("127.0.0.1", worker.port))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small() -> AsyncIterator[RpcWorker]:
    """Lends less than the demo model's 92.1 MiB."""
    async with RpcWorker("--memory", "92MiB") as worker:
        yield worker


async def test_a_device_without_room_takes_fewer_layers(small: RpcWorker) -> None:
    """What `CUDA out of memory` is on a card: real words of llama.cpp, real steps back, until it fits."""
    (lent,) = await asyncio.to_thread(ask_worker, Endpoint("127.0.0.1", small.port))
    assert lent.total == 92 * MIB
    assert lent.free <= lent.total
    engine = demo_engine(RULES, rpc=(small.address,), n_ctx=256, n_parallel=1, n_ubatch=64)
    await engine.start()
    try:
        await engine.wait_ready(60.0)
        stats = await engine.stats()
        assert stats.step_back.startswith("n_gpu_layers all → 2")
        assert "after running out of memory" in stats.step_back
        assert stats.lacks == "", "it is used, with what it has"
        assert isinstance((await one_reply(engine)).end, Finished)
    finally:
        await engine.close()


async def test_experts_stay_here_and_the_rest_is_lent(small: RpcWorker, tmp_path: Path) -> None:
    """`n_cpu_moe` on a device that is not the CPU: in the plan, in llama.cpp's dry run, and by the words of a model of experts."""
    path = str(write_model("qwen3moe", tmp_path))
    sizes = {"n_ctx": 256, "n_parallel": 1, "n_threads": 1, "n_gpu_layers": -1, "n_cpu_moe": 3}
    lent = EngineConfig(name="moe", path=path, rpc=(small.address,), **sizes)
    plan = await asyncio.to_thread(make_plan, lent, Wishes())
    assert plan.ledger.card is not None
    assert plan.ledger.card.device.name == f"RPC0 at {small.address}"
    assert not plan.is_estimate
    assert plan.dry_run is not None, plan.notes
    buffers = (await asyncio.to_thread(dry_run, lent)).weight_buffers
    assert f"RPC0[{small.address}]" in buffers
    assert any(buffer.startswith("CPU") for buffer in buffers)
    prompt = tuple(range(5, 40))
    engine = EngineProcess(lent, RULES)
    await engine.start()
    try:
        await engine.wait_ready(60.0)
        told = await tell(engine, prompt, n_tokens=8)
        assert (await engine.stats()).lacks == ""
    finally:
        await engine.close()
    backend = open_backend(path)
    try:
        assert told.ids == Forcing(backend).greedy(prompt, 8)[: len(told.ids)]
        assert len(told.ids) > 1
    finally:
        backend.close()


async def test_what_cannot_be_listened_on_is_said_in_one_sentence() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = parse_listen(f"127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(EngineConfigError, match="another program listens there"):
            check_free(taken)
    with pytest.raises(EngineConfigError, match="this machine has no such address"):
        check_free(parse_listen("10.255.254.253:50052"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bot", "rpc-worker", "--listen", "0.0.0.0:50052",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 2
    assert out == b""
    assert err.decode().count("\n") == 1
    assert "has no password and trusts whoever connects" in err.decode()
