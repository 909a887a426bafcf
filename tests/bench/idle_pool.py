"""What idle conversations in the pool cost those who are being answered, with and without KV tiers to leave for.

    .venv/bin/python -m tests.bench.idle_pool [--model demo] [--clients 4] [--idle 14] [--tokens 96] [--rounds 3]

Per round, in turn in one run: the same replies with an empty pool and with `--idle` conversations of some 230 tokens each that
have just been answered. `ratio` is full / empty in generated tokens per second; the prompts are new every time. Prints one
JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import uuid
from typing import Any

from engine.bench import connected
from engine.config import EngineConfig
from engine.face import Engine
from engine.types import ChatMessage, Delta, EngineRequest, Failed, Role, Sampling

N_CTX = 1024
WAYS = {"tiers": 256 * 2**20, "no_tiers": 0}
FILLER = (
    "The keeper of the lighthouse writes down the wind, the ships and the weather every hour. " * 9
)


async def answer(engine: Engine, text: str, n_tokens: int, key: str) -> int:
    """Ask and wait for the whole reply. Returns generated tokens."""
    rendered = await engine.render([ChatMessage(role=Role.USER, content=text)])
    request = EngineRequest(
        id=uuid.uuid4().hex,
        prompt_tokens=rendered.token_ids,
        max_new_tokens=n_tokens,
        sampling=Sampling(temperature=0.0),
        cache_key=key,
        owner=key,
        scope="bench",
    )
    n_generated = 0
    async for event in engine.submit(request):
        match event:
            case Failed():
                raise RuntimeError(event.message)
            case Delta():
                n_generated += len(event.token_ids)
    return n_generated


async def speed(engine: Engine, n_clients: int, n_tokens: int) -> float:
    """Generated tokens per second of so many replies at once; nothing of them stays."""
    salt = uuid.uuid4().hex[:6]
    keys = [f"{salt}-{i}" for i in range(n_clients)]
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(answer(engine, f"{key}: tell a long story.", n_tokens, key))
            for key in keys
        ]
    took_s = time.perf_counter() - begun
    for key in keys:
        await engine.forget(key)
    return sum(task.result() for task in tasks) / took_s


async def compare(engine: Engine, n_idle: int, size: tuple[int, int, int]) -> dict[str, float]:
    """Both states in turn."""
    n_clients, n_tokens, rounds = size
    await speed(engine, n_clients, 8)
    empty, full, n_kept = [], [], []
    for number in range(rounds):
        empty.append(await speed(engine, n_clients, n_tokens))
        keys = [f"idle-{number}-{i}" for i in range(n_idle)]
        for key in keys:
            await answer(engine, f"{key}: {FILLER} Answer yes or no.", 4, key)
        n_kept.append((await engine.stats()).kv_cells_used)
        full.append(await speed(engine, n_clients, n_tokens))
        for key in keys:
            await engine.forget(key)
    pairs = zip(full, empty, strict=True)
    return {
        "empty_tokens_per_s": round(statistics.median(empty), 1),
        "full_tokens_per_s": round(statistics.median(full), 1),
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
        "cells_in_use_before": statistics.median(n_kept),
    }


async def measure(model: str, n_idle: int, size: tuple[int, int, int]) -> dict[str, Any]:
    """The figures of each way, each with a child of its own."""
    figures: dict[str, Any] = {"clients": size[0], "idle": n_idle}
    for way, kv_ram_bytes in WAYS.items():
        settings = EngineConfig(
            name="bench",
            path=model,
            n_ctx=N_CTX,
            n_parallel=size[0],
            kv_cells=N_CTX * size[0],
            n_sequences=n_idle + size[0] + 2,
            cache_type_k="q8_0",
            cache_type_v="q8_0",
            speculation=False,
            kv_ram_bytes=kv_ram_bytes,
        )
        async with connected({"engine": settings}) as engines:
            figures[way] = await compare(engines["engine"], n_idle, size)
    return figures


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--idle", type=int, default=14)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    size = (args.clients, args.tokens, args.rounds)
    print(json.dumps(asyncio.run(measure(args.model, args.idle, size))))


if __name__ == "__main__":
    main()
