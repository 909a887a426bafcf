"""The benchmark behind `hearth bench`: the same work for one or several engines, in turn, in one run.

Owns what is asked and how it is timed, as somebody who waits for an answer sees it. It knows engines by their face only, so a
local model and any OpenAI-compatible server are measured alike. It starts and closes no engine but in `connected`.

Two kinds of work:
- waves: N people ask at the same moment; tokens per second over the whole wave, and the time to the first token;
- turns: several conversations go on in rotation, one request at a time; per turn the time to the first token and the prompt
  tokens that had to be computed. This is where a kept KV state shows.
Beside what the usage figures say stands what the engine's own counters say (`engine.bench.counters`).
Every round runs all engines, in changing order, so that a machine which slows down slows all of them. Prompts differ from
round to round: no engine may answer from what it computed before, except the system prompt.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from engine.bench.counters import CounterSource, LocalCounters, ServerCounters
from engine.bench.figures import Samples
from engine.bench.probe import BenchFailed, BenchPlan, Probe
from engine.bench.report import BenchReport, describe_machine, load_1m
from engine.config import EngineConfig, OpenAISettings
from engine.face import Engine
from engine.types import ModelInfo

__all__ = [
    "BenchFailed",
    "BenchPlan",
    "BenchReport",
    "connected",
    "counters_at",
    "run",
    "run_with_progress",
    "server_at",
]

Step = Callable[[int, int, str], None]


async def run(
    plan: BenchPlan,
    engines: Mapping[str, Engine],
    on_step: Step | None = None,
    counters: Mapping[str, CounterSource] | None = None,
) -> BenchReport:
    """Measure engines that are ready. `on_step(done, total, what)` is called before every step and at the end.

    `counters`: where those of an engine come from; its own stats where nothing is given.
    Raises BenchFailed when a request fails or an engine is not ready.
    """
    report = on_step or (lambda *_: None)
    machine = describe_machine()
    infos = {name: _ready_info(name, engine) for name, engine in engines.items()}
    samples = Samples()
    sources = counters or {}
    benches = [
        Probe(name, engine, sources.get(name) or LocalCounters(engine), plan, samples)
        for name, engine in engines.items()
    ]
    done, total = 0, plan.steps_per_engine * len(benches)
    for bench in benches:
        report(done, total, f"{bench.name}: warm-up")
        await bench.warm_up()
        done += 1
    for number in range(plan.rounds):
        for kind in (*plan.concurrency, *([0] if plan.turns else [])):
            for bench in benches if number % 2 == 0 else benches[::-1]:
                what = f"{kind} at once" if kind else "conversations"
                report(done, total, f"{bench.name}: {what}, round {number + 1}")
                await (bench.wave(kind) if kind else bench.talk())
                done += 1
    report(done, total, "done")
    machine |= {"load_1m_at_end": load_1m()}
    return BenchReport(asdict(plan), machine, infos, samples.figures())


async def run_with_progress(
    plan: BenchPlan,
    engines: Mapping[str, Engine],
    console: Console,
    counters: Mapping[str, CounterSource] | None = None,
) -> BenchReport:
    """`run` with a progress bar on `console`, or a line per step where it is no terminal."""
    if not console.is_terminal:
        return await run(plan, engines, lambda *step: _say_step(console, *step), counters)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def on_step(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=what)

        return await run(plan, engines, on_step, counters)


def _say_step(console: Console, done: int, total: int, what: str) -> None:
    console.print(f"{done}/{total} {what}", highlight=False)


def server_at(url: str, *, model: str = "default", api_key: str = "") -> OpenAISettings:
    """Settings for an OpenAI-compatible server at `url`, with or without `/v1` at its end."""
    base = url.rstrip("/")
    base = base if base.endswith("/v1") else f"{base}/v1"
    # The window cannot be asked for; prompts here are short, so any honest server has more than this.
    return OpenAISettings(
        name=model, base_url=base, model=model, n_ctx=4096, api_key=api_key, n_parallel=64
    )


def counters_at(settings: OpenAISettings) -> CounterSource:
    """What that server says it really did, if it says so."""
    return ServerCounters(settings.base_url)


@contextlib.asynccontextmanager
async def connected(
    configs: Mapping[str, EngineConfig | OpenAISettings],
    timeout_s: float = 300.0,
    server_timeout_s: float = 15.0,
) -> AsyncIterator[dict[str, Engine]]:
    """Engines for these settings, ready; closed at the end. Raises EngineError when one does not come up: a model has
    `timeout_s` to be loaded, a server `server_timeout_s` to answer.
    """
    from engine.client import open_engine

    engines: dict[str, Engine] = {}
    try:
        for name, config in configs.items():
            engines[name] = open_engine(config)
            await engines[name].start()
        for name, config in configs.items():
            is_server = isinstance(config, OpenAISettings)
            await engines[name].wait_ready(server_timeout_s if is_server else timeout_s)
        yield engines
    finally:
        for engine in engines.values():
            await engine.close()


def _ready_info(name: str, engine: Engine) -> ModelInfo:
    if engine.info is None:
        raise BenchFailed(f"{name} is not ready")
    return engine.info
