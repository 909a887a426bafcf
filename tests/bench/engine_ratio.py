"""How much of the backend's own speed is left behind scheduler, frames and event loop, at 1, 4 and 8 clients.

    .venv/bin/python -m tests.bench.engine_ratio [--backend llama.cpp|fake] [--model demo] [--tokens 96] [--rounds 3]

Both sides get the same prompts and generate the same number of tokens, greedily, in turn in one run: the bare side is a
plain loop over `Backend.decode` and `Backend.sample` with all sequences in every batch (prompts first), the other one is the
engine's child process as the bot uses it. Prints one JSON line; a ratio of 1 would be "nothing lost".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import uuid
from collections.abc import Sequence
from typing import Any

from engine.backends.base import Backend, BatchPart, DecodeStatus, make_backend
from engine.bench import connected
from engine.config import EngineConfig
from engine.face import Engine
from engine.types import ChatMessage, EngineRequest, Failed, Finished, Role, Sampling

GREEDY = Sampling(temperature=0.0)
CLIENTS = (1, 4, 8)


def config(backend: str, model: str, n_clients: int) -> EngineConfig:
    """The same settings for both sides."""
    return EngineConfig(
        name="bench",
        backend=backend,
        path=model,
        n_ctx=1024,
        n_parallel=n_clients,
        speculation=False,
    )


def bare_loop(backend: Backend, prompts: Sequence[Sequence[int]], n_tokens: int) -> float:
    """Seconds to prefill all prompts and to generate `n_tokens` behind each; sequences are empty before and after."""
    begun = time.perf_counter()
    samplers = [backend.new_sampler(GREEDY, ()) for _ in prompts]
    last: list[int] = []
    for seq_id, prompt in enumerate(prompts):
        for start in range(0, len(prompt), backend.n_batch):
            chunk = prompt[start : start + backend.n_batch]
            ends = start + len(chunk) == len(prompt)
            _decode(backend, [BatchPart(seq_id, start, chunk, int(ends))])
        last.append(backend.sample(0, samplers[seq_id]))
    for step in range(n_tokens - 1):
        _decode(
            backend,
            [BatchPart(i, len(prompt) + step, [last[i]], 1) for i, prompt in enumerate(prompts)],
        )
        last = [backend.sample(i, samplers[i]) for i in range(len(prompts))]
    took_s = time.perf_counter() - begun
    for seq_id, sampler in enumerate(samplers):
        sampler.close()
        backend.seq_rm(seq_id, 0)
    return took_s


def _decode(backend: Backend, parts: Sequence[BatchPart]) -> None:
    if backend.decode(parts) is not DecodeStatus.DONE:
        raise RuntimeError("the batch does not fit the KV cells")


async def through_engine(
    engine: Engine, prompts: Sequence[Sequence[int]], n_tokens: int
) -> tuple[float, int]:
    """(seconds, generated tokens) of the same work as requests of as many clients."""

    async def client(prompt: Sequence[int]) -> int:
        request = EngineRequest(
            id=uuid.uuid4().hex,
            prompt_tokens=tuple(prompt),
            max_new_tokens=n_tokens,
            sampling=GREEDY,
            owner=uuid.uuid4().hex,
            scope=uuid.uuid4().hex,
        )
        async for event in engine.submit(request):
            match event:
                case Failed():
                    raise RuntimeError(event.message)
                case Finished():
                    return event.usage.n_generated
        raise RuntimeError("a reply ended without a terminal event")

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client(prompt)) for prompt in prompts]
    return time.perf_counter() - begun, sum(task.result() for task in tasks)


async def measure(
    backend: str = "llama.cpp", model: str = "demo", n_tokens: int = 96, rounds: int = 3
) -> dict[str, Any]:
    """Tokens per second of both sides and their ratio, per number of clients."""
    settings = config(backend, model, max(CLIENTS))
    figures: dict[str, Any] = {"n_tokens": n_tokens, "rounds": rounds, "backend": backend}
    async with connected({"engine": settings}) as engines:
        bare = await asyncio.to_thread(make_backend, settings)
        try:
            for n_clients in CLIENTS:
                figures[f"clients@{n_clients}"] = await _compare(
                    bare, engines["engine"], n_clients, (n_tokens, rounds)
                )
        finally:
            bare.close()
    return figures


async def _compare(
    bare: Backend, engine: Engine, n_clients: int, size: tuple[int, int]
) -> dict[str, float]:
    n_tokens, rounds = size
    speeds: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        prompts = [await _prompt(engine, f"{number}-{i}") for i in range(n_clients)]
        bare_s = await asyncio.to_thread(bare_loop, bare, prompts, n_tokens)
        engine_s, n_generated = await through_engine(engine, prompts, n_tokens)
        if number:  # the first round warms both up
            speeds.append((n_clients * n_tokens / bare_s, n_generated / engine_s))
    return {
        "bare_tokens_per_s": round(statistics.median(s[0] for s in speeds), 2),
        "engine_tokens_per_s": round(statistics.median(s[1] for s in speeds), 2),
        "ratio": round(statistics.median(s[1] / s[0] for s in speeds), 4),
    }


async def _prompt(engine: Engine, salt: str) -> tuple[int, ...]:
    text = f"{salt}: write a long story about a lighthouse, a storm and two old friends. Do not stop early."
    rendered = await engine.render([ChatMessage(role=Role.USER, content=text)])
    return rendered.token_ids


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="llama.cpp")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(json.dumps(asyncio.run(measure(args.backend, args.model, args.tokens, args.rounds))))


if __name__ == "__main__":
    main()
