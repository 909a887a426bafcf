"""What running replies feel of a long prompt: gaps between their tokens before it and while it comes in, and what it took.

    .venv/bin/python -m tests.bench.prefill_gap [--model demo] [--tokens 3000] [--talkers 1,4] [--rounds 2] [--threads 0]

Everything through `EngineProcess`, as the bot uses it. A talker asks again as soon as its reply has ended; only gaps inside a
reply count. `after`: with the prompt's tokens still in the cache, which makes every step longer. `prompt_alone_s` is the same
prompt with nobody else. On a busy machine use `prefill_core`. Prints one JSON line: gaps in ms, times in s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import uuid
from typing import Any

from engine.bench import BenchFailed, connected
from engine.config import EngineConfig
from engine.face import Engine
from engine.types import ChatMessage, Delta, EngineRequest, Failed, Role, Sampling

N_CTX = 4096
BEFORE_S, AFTER_S = 4.0, 3.0
MAX_REPLY = 600


class Talker:
    """Somebody who reads one reply after the other. `gaps`: (when the later token came, seconds since the one before)."""

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine = engine
        self._number = number
        self.gaps: list[tuple[float, float]] = []
        self.speaking = asyncio.Event()

    async def talk(self) -> None:
        """For ever. Raises BenchFailed when the engine fails."""
        n_replies = 0
        while True:
            n_replies += 1
            question = f"Story {self._number}-{n_replies}: tell me a long one about a lighthouse, with every detail."
            rendered = await self._engine.render([ChatMessage(role=Role.USER, content=question)])
            request = EngineRequest(
                id=uuid.uuid4().hex,
                prompt_tokens=rendered.token_ids,
                max_new_tokens=MAX_REPLY,
                sampling=Sampling(temperature=0.9, seed=n_replies),
                owner=f"talker{self._number}",
            )
            last_s = 0.0
            async for event in self._engine.submit(request):
                if isinstance(event, Failed):
                    raise BenchFailed(event.message)
                if isinstance(event, Delta):
                    now = time.perf_counter()
                    if last_s:
                        self.gaps.append((now, now - last_s))
                        self.speaking.set()
                    last_s = now


async def long_prompt(engine: Engine, n_tokens: int) -> tuple[int, ...]:
    """Ids that no earlier prompt began with."""
    words = " ".join(f"{uuid.uuid4().hex[:4]} ship {i}" for i in range(n_tokens // 3))
    rendered = await engine.render([ChatMessage(role=Role.USER, content=words)])
    return rendered.token_ids[:n_tokens]


async def compute(engine: Engine, tokens: tuple[int, ...]) -> float:
    """Seconds from asking to the first token behind a prompt."""
    request = EngineRequest(
        id=uuid.uuid4().hex,
        prompt_tokens=tokens,
        max_new_tokens=1,
        sampling=Sampling(temperature=0.0),
        owner="newcomer",
    )
    begun = time.perf_counter()
    async for event in engine.submit(request):
        if isinstance(event, Failed):
            raise BenchFailed(event.message)
    return time.perf_counter() - begun


async def one_round(
    engine: Engine, n_talkers: int, n_tokens: int
) -> tuple[list[float], list[float], list[float], float]:
    """Gaps before, during and after the prompt, and how long the prompt took."""
    talkers = [Talker(engine, n) for n in range(n_talkers)]
    tasks = [asyncio.create_task(talker.talk()) for talker in talkers]
    try:
        for talker in talkers:
            await asyncio.wait_for(talker.speaking.wait(), 60)
        await asyncio.sleep(1.0)
        calm_from = time.perf_counter()
        await asyncio.sleep(BEFORE_S)
        tokens = await long_prompt(engine, n_tokens)
        asked = time.perf_counter()
        took_s = await compute(engine, tokens)
        ended = asked + took_s
        await asyncio.sleep(AFTER_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    gaps = [gap for talker in talkers for gap in talker.gaps]
    before = [s for at, s in gaps if calm_from <= at - s and at <= asked]
    during = [s for at, s in gaps if asked <= at <= ended]
    after = [s for at, s in gaps if ended <= at - s]
    return before, during, after, took_s


async def measure(
    model: str, n_tokens: int, talkers: list[int], rounds: int, n_threads: int
) -> dict[str, Any]:
    """All figures, by number of talkers."""
    config = EngineConfig(
        name="bench",
        path=model,
        n_ctx=N_CTX,
        n_threads=n_threads,
        n_parallel=max(talkers) + 1,
        cache_type_k="q8_0",
        cache_type_v="q8_0",
        speculation=False,
    )
    figures: dict[str, Any] = {"prompt_tokens": n_tokens}
    async with connected({"engine": config}) as engines:
        engine = engines["engine"]
        alone = [await compute(engine, await long_prompt(engine, n_tokens)) for _ in range(rounds)]
        figures["prompt_alone_s"] = round(statistics.median(alone), 2)
        for n_talkers in talkers:
            runs = [await one_round(engine, n_talkers, n_tokens) for _ in range(rounds)]
            before = sorted(gap for run in runs for gap in run[0])
            during = sorted(gap for run in runs for gap in run[1])
            after = sorted(gap for run in runs for gap in run[2])
            figures[f"talkers@{n_talkers}"] = {
                "before": _spread(before),
                "during": _spread(during),
                "after": _spread(after),
                "ratio_p50": round(_at(during, 0.5) / _at(before, 0.5), 2),
                "ratio_p95": round(_at(during, 0.95) / _at(before, 0.95), 2),
                "prompt_s": round(statistics.median(run[3] for run in runs), 2),
            }
    return figures


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def _spread(values: list[float]) -> str:
    p50, p95, top = (1000 * _at(values, share) for share in (0.5, 0.95, 1.0))
    return f"p50 {p50:.0f} p95 {p95:.0f} max {top:.0f} ms ({len(values)})"


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--talkers", default="1,4")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--threads", type=int, default=0, help="1 suffers least from a busy machine"
    )
    args = parser.parse_args()
    talkers = [int(part) for part in args.talkers.split(",")]
    measured = measure(args.model, args.tokens, talkers, args.rounds, args.threads)
    print(json.dumps(asyncio.run(measured)))


if __name__ == "__main__":
    main()
