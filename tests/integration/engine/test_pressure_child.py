"""Memory is taken by others while people talk: the engine gives back what it can, and no reply loses a word over it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.machine.margins import Margins, Surroundings
from engine.machine.sample import Sample
from engine.types import EngineState, Finished
from tests.support import deathkit
from tests.support.deathkit import prompt_of, tell, until
from tests.support.samplekit import MIB, sample

pytestmark = pytest.mark.crash
RULES = replace(deathkit.RULES, watch_every_s=0.05, quiet_s=0.1, patience_s=0.2)


class Machine:
    """A memory reader that is told what it reads; each look is `step_s` after the one before."""

    def __init__(self, step_s: float = 10.0) -> None:
        self.at = 0.0
        self.free = 8192 * MIB
        self._step_s = step_s

    def latest(self) -> Sample:
        self.at += self._step_s
        return sample(self.at, ram_available=self.free, cards=())

    @property
    def surroundings(self) -> Surroundings:
        return Surroundings(self.latest, Margins(hold_s=20.0, calm_s=100.0))


def engine_beside(machine: Machine, **changes: Any) -> EngineProcess:
    settings = {"name": "m", "n_ctx": 1024, "n_parallel": 2, "n_threads": 1, "n_ubatch": 64}
    config = EngineConfig(**settings | changes)
    return EngineProcess(config, RULES, surroundings=machine.surroundings)


async def test_a_reply_goes_on_through_the_planned_restart() -> None:
    machine = Machine()
    script = {"reply": "word " * 40, "token_delay_s": "0.01"}
    engine = engine_beside(machine, backend="fake", kv_ram_bytes=64 * MIB, fake=script)
    await engine.start()
    try:
        await engine.wait_ready(20.0)
        prompt = await prompt_of(engine, "please")
        with capture_logs() as logs:
            machine.free = 100 * MIB
            told = await tell(engine, prompt, n_tokens=400)
        assert told.text == "word " * 40
        assert isinstance(told.end, Finished)
        assert told.n_tries == 2
        stats = await engine.stats()
        assert stats.step_back.startswith(
            "n_parallel 2 → 1 to leave memory to other programs at 20"
        )
        assert stats.lacks == "idle conversations have less RAM, as other programs take it"
        events = [one["event"] for one in logs if one["event"].startswith("engine_")]
        order = [events.index(name) for name in ("engine_gives_back", "engine_leaves_room", "engine_ready")]  # fmt: skip
        assert order == sorted(order)
        assert events.count("engine_gives_back") == 2
        machine.free = 8192 * MIB
        stats = await until(engine, lambda stats: not stats.lacks)
        assert stats.step_back, "the full size is tried in an idle hour, not at once"
    finally:
        await engine.close()


@pytest.mark.model
async def test_a_real_conversation_leaves_ram_and_comes_back_from_disk(tmp_path: Path) -> None:
    machine = Machine(step_s=2.0)
    engine = engine_beside(
        machine, path="demo", kv_ram_bytes=64 * MIB, kv_disk_bytes=256 * MIB, kv_dir=str(tmp_path)
    )
    await engine.start()
    try:
        await engine.wait_ready(60.0)
        prompt = await prompt_of(engine, deathkit.QUESTIONS[0])
        whole = await tell(engine, prompt, n_tokens=32, name="talk")
        before = await until(
            engine, lambda stats: stats.kv_disk_bytes > 0 and stats.kv_ram_bytes > 0
        )
        machine.free = 100 * MIB
        freed = await until(engine, lambda stats: stats.kv_ram_bytes == 0)
        assert freed.n_restarts == 0, "without any restart"
        given_back = await until(
            engine, lambda stats: bool(stats.step_back) and stats.state is EngineState.READY
        )
        assert given_back.kv_disk_bytes >= before.kv_disk_bytes
        assert given_back.n_restarts == 1
        again = (*prompt, *whole.ids)
        told = await tell(engine, again, n_tokens=4, name="talk")
        stats = await engine.stats()
        assert stats.kv_restored_tokens_total >= 64, "it was not computed again"
        assert isinstance(told.end, Finished)
        await until(engine, lambda stats: stats.kv_ram_bytes == 0)
    finally:
        await engine.close()


async def test_nothing_is_given_back_for_a_moments_shortage() -> None:
    machine = Machine()
    engine = engine_beside(machine, backend="fake", kv_ram_bytes=64 * MIB)
    await engine.start()
    try:
        await engine.wait_ready(20.0)
        for _ in range(3):
            machine.free = 100 * MIB
            looked_at = machine.at
            while machine.at < looked_at + 10:
                await until(engine, lambda stats: stats.state is EngineState.READY)
            machine.free = 8192 * MIB
            looked_at = machine.at
            while machine.at < looked_at + 20:
                await until(engine, lambda stats: stats.state is EngineState.READY)
        stats = await engine.stats()
        assert (stats.n_restarts, stats.step_back, stats.lacks) == (0, "", "")
    finally:
        await engine.close()
