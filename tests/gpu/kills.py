"""The engine dies in mid-answer on a GPU, and the answer goes on; a neighbour takes the card, and the engine steps back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.client import EngineProcess
from engine.config import EngineConfig
from engine.link.watch import Supervision
from engine.types import EngineState
from engine.vram.probe import build_devices
from tests.gpu.ballast import held
from tests.support.deathkit import Blow, prompt_of, tell

BLOWS = {"kill -9": signal.SIGKILL, "abort": signal.SIGABRT}
RULES = Supervision(backoff_first_s=0.1, backoff_max_s=0.5, first_step_s=60.0, config_retry_s=0.5)
_N_TOKENS = 48


@dataclass(frozen=True)
class Kills:
    """What is run. `device` "" = no GPU; `leave` bytes stay free when the neighbour comes."""

    model: Path
    n_gpu_layers: int
    n_cpu_moe: int
    device: str
    leave: int
    limit_s: float

    def engine(self, **changes: Any) -> EngineProcess:
        """The model with the plan's placement."""
        settings: dict[str, Any] = {
            "name": "check", "path": str(self.model), "n_ctx": 2048, "n_parallel": 2,
            "n_gpu_layers": self.n_gpu_layers, "n_cpu_moe": self.n_cpu_moe,
            "cache_type_k": "q8_0", "cache_type_v": "q8_0",
        }  # fmt: skip
        return EngineProcess(EngineConfig(**settings | changes), RULES)


@dataclass(frozen=True)
class Found:
    """What came of it."""

    passed: bool
    figures: str


async def run_kills(kills: Kills) -> Found:
    """All of it within the limit."""
    async with asyncio.timeout(kills.limit_s):
        passed, told = await _blows(kills)
        if kills.device:
            better, more = await _neighbour(kills)
            passed, told = passed and better, f"{told}; {more}"
    return Found(passed, told)


async def _blows(kills: Kills) -> tuple[bool, str]:
    engine = kills.engine()
    await engine.start()
    try:
        await engine.wait_ready(120)
        prompt = await prompt_of(engine, "What is the sea made of?")
        blows = [_blow(sign, 8 * (i + 1)) for i, sign in enumerate(BLOWS.values())]
        told = await tell(engine, prompt, blows, n_tokens=_N_TOKENS, name="killed")
    finally:
        await engine.close()
    whole = len(told.ids) == _N_TOKENS and told.n_tries == len(BLOWS) + 1
    gaps = ", ".join(f"{name} {gap:.1f} s" for name, gap in zip(BLOWS, told.gaps_s, strict=False))
    return whole, f"next token after {gaps}; {len(told.ids)} of {_N_TOKENS} tokens"


def _blow(sign: signal.Signals, at_token: int) -> Blow:
    return Blow(at_token, lambda pid: os.kill(pid, sign))


async def _neighbour(kills: Kills) -> tuple[bool, str]:
    """The card has not enough left for the plan: the engine must come up one or more steps smaller, and answer."""
    with _crowded(kills) as free:
        engine = kills.engine()
        began = time.monotonic()
        await engine.start()
        try:
            await engine.wait_ready(120)
            prompt = await prompt_of(engine, "What is the sea made of?")
            told = await tell(engine, prompt, n_tokens=16, name="crowded")
            stats = await engine.stats()
        finally:
            await engine.close()
    answered = stats.state is EngineState.READY and len(told.ids) == 16
    text = f"with {free / 2**30:.1f} GiB left: {stats.step_back or 'no step back'}, {len(told.ids)} of 16 tokens after {time.monotonic() - began:.0f} s"
    return answered, text


@contextmanager
def _crowded(kills: Kills) -> Iterator[int]:
    free = next(device.capacity for device in build_devices() if device.name == kills.device)
    with held(kills.device, free - kills.leave) as got:
        yield free - got
