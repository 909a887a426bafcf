"""Recall: facts said once, asked for in other words when at least 200 turns lie between.

All cases of shared/cases/recall.jsonl stand in one history with filler between and their distractors before them; the rows are
inserted without a model, questions go through the service's own code, and prompts are counted with the demo model's tokenizer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bot.domain.recall import Rules, parse, rank
from bot.store import Store
from engine.client import open_engine
from engine.config import EngineConfig
from engine.face import Engine
from engine.types import ModelInfo
from tests.prove.suite import Figures, Suite, median, percentile
from tests.support.recallkit import (
    LAYOUTS,
    Layout,
    MemoryIndex,
    Message,
    Outcome,
    as_turns,
    ask,
    judge,
    plant,
    read_lines,
    shares,
)
from tests.support.recallstore import (
    KEY,
    Asker,
    begin_window,
    config,
    fill,
    index,
    shown_with,
)

N_CTX = 4096
WINDOW_TURNS = 40
COLUMNS = ("quoted", "above its distractors", "hard: quoted", "hard: above")
# Tuned here, one at a time, when rules are tried on one half and checked on the other.
TRIED: dict[str, tuple[float, ...]] = {
    "overridden": (0.5, 0.65, 0.8, 0.95), "same_topic": (0.35, 0.5, 0.65), "rival": (0.4, 0.5, 0.65), "item": (1.0, 1.2, 1.4),
    "settled": (1.0, 1.15, 1.3), "superseded": (0.7, 0.85, 1.0), "chars": (0.0, 0.2, 0.4), "run": (0.0, 0.35),
}  # fmt: skip


@asynccontextmanager
async def demo_engine(n_ctx: int = N_CTX) -> AsyncIterator[tuple[Engine, ModelInfo]]:
    """The demo model."""
    engine = open_engine(
        EngineConfig(name="main", path="demo", n_ctx=n_ctx, n_parallel=1, n_threads=2)
    )
    await engine.start()
    try:
        yield engine, await engine.wait_ready(120)
    finally:
        await engine.close()


@asynccontextmanager
async def filled_store(
    said: Sequence[tuple[Message, str]],
) -> AsyncIterator[tuple[Store, str, Path]]:
    """A store with these turns, indexed."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/hearth.db")
        await store.open()
        try:
            session_id = await fill(store, said)
            await index(store, session_id)
            yield store, session_id, Path(folder)
        finally:
            await store.close()


def figures_of(outcomes: Sequence[Outcome]) -> Figures:
    """The columns."""
    easy = [outcome for outcome in outcomes if not outcome.hard]
    hard = [outcome for outcome in outcomes if outcome.hard]
    texts = [f"{100 * share:.1f} %" for some in (easy, hard) for share in shares(some)]
    return dict(zip(COLUMNS, texts, strict=True))


async def in_the_prompt(layout: Layout, seed: int, *, enabled: bool = True) -> Figures:
    """Every case's question as a turn of its own over the whole history, in a window of 4096 tokens."""
    cases = read_lines("recall.jsonl")
    said = as_turns(plant(cases, read_lines("filler.jsonl"), seed, layout, n_after=400))
    last_fact = max(n for n, (message, _) in enumerate(said) if message.n == -1 and message.case)
    assert len(said) - 1 - last_fact >= 200, "too few turns after the facts"
    async with demo_engine() as (engine, info), filled_store(said) as (store, session_id, folder):
        await begin_window(store, session_id, len(said) - WINDOW_TURNS)
        asker = Asker(store, engine, config(folder, recall={"enabled": enabled}))
        outcomes, prompts = [], []
        for case in cases:
            _, turn, prepared = await asker.prepare(case["question"], info)
            await asker.take_back(turn)
            plan = prepared.built.plan
            assert plan.n_prompt_tokens + plan.max_new_tokens <= N_CTX, "the window overflows"
            prompts.append(plan.n_prompt_tokens)
            shown = shown_with(prepared, case["question"])
            quoted = [text for text in texts_of(case) if text in shown]
            quoted.sort(key=shown.index)
            ranked = await ranking(store, session_id, case["question"], len(said) - WINDOW_TURNS)
            outcomes.append(judge(case, ranked, quoted))
    figures = figures_of(outcomes)
    easy = shares([outcome for outcome in outcomes if not outcome.hard])
    if not enabled:
        figures = {key: value for key, value in figures.items() if "above" not in key}
    else:
        assert easy[0] >= 0.95, f"only {figures} quoted"
        assert easy[1] >= 0.90, f"only {figures} above the distractors"
    return {
        **figures,
        "turns": len(said),
        "turns after the facts": len(said) - 1 - last_fact,
        "prompt_max": max(prompts),
    }


def texts_of(case: dict[str, Any]) -> list[str]:
    """A case's fact and distractors."""
    return [case["fact"], *case["distractors"]]


async def ranking(store: Store, session_id: str, question: str, before: int) -> list[str]:
    """All that is found for a question, the best first."""
    query = parse(question)
    found = await store.search(session_id, query.terms, before, 40)
    return [quote.text for quote in rank(query, found)]


async def other_half(seed: int) -> Figures:
    """Rules tuned on a random half of the cases, measured on the other; both ways."""
    cases, filler = read_lines("recall.jsonl"), read_lines("filler.jsonl")
    worlds = [MemoryIndex(plant(cases, filler, 10 + n, layout)) for n, layout in enumerate(LAYOUTS)]
    easy = [case for case in cases if not case.get("hard")]
    random.Random(seed).shuffle(easy)
    halves = (easy[: len(easy) // 2], easy[len(easy) // 2 :])
    measured = []
    for tuned_on, measured_on in (halves, halves[::-1]):
        rules = await asyncio.to_thread(tune, worlds, tuned_on)
        measured += [outcome for world in worlds for outcome in ask(measured_on, world, rules)]
    quoted, first = shares(measured)
    return {
        COLUMNS[0]: f"{100 * quoted:.1f} %",
        COLUMNS[1]: f"{100 * first:.1f} %",
        "layouts": len(worlds),
    }


def tune(worlds: Sequence[MemoryIndex], cases: Sequence[dict[str, Any]]) -> Rules:
    """The best rules for some cases, begun from rules that weigh nothing but terms, one key after the other."""
    best = dataclasses.replace(
        Rules(), overridden=0.95, item=1.0, settled=1.0, superseded=1.0, chars=0.0
    )
    score = gain(worlds, cases, best)
    for key, values in TRIED.items():
        for value in values:
            rules = dataclasses.replace(best, **{key: value})
            new = gain(worlds, cases, rules)
            if new > score:
                best, score = rules, new
    return best


def gain(worlds: Sequence[MemoryIndex], cases: Sequence[dict[str, Any]], rules: Rules) -> float:
    """What is tuned for."""
    return sum(sum(shares(ask(cases, world, rules))) for world in worlds)


async def how_long(n_turns: int) -> Figures:
    """Search and ranking in a long history, and indexing it."""
    cases, filler = read_lines("recall.jsonl"), read_lines("filler.jsonl")
    some = as_turns(plant(cases, filler, 5, "close"))
    said = [some[n % len(some)] for n in range(n_turns)]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/hearth.db")
        await store.open()
        session_id = await fill(store, said)
        started = time.perf_counter()
        await index(store, session_id)
        index_s = time.perf_counter() - started
        times, cpu = [], []
        for case in cases:
            started, cpu_started = time.perf_counter(), time.process_time()
            await ranking(store, session_id, case["question"], n_turns)
            times.append(1000 * (time.perf_counter() - started))
            cpu.append(1000 * (time.process_time() - cpu_started))
        started = time.perf_counter()
        await store.next_epoch(KEY, erase_from_prompt=True)
        erase_s = time.perf_counter() - started
        await store.close()
    return {
        "turns": n_turns, "median_ms": round(median(times), 1), "p95_ms": round(percentile(times, 0.95), 1),
        "cpu_median_ms": round(median(cpu), 1), "cpu_p95_ms": round(percentile(cpu, 0.95), 1),
        "index_s": round(index_s, 1), "reset_ms": round(1000 * erase_s),
    }  # fmt: skip


async def first_token() -> Figures:
    """Time to the first token and computed tokens: ordinary turns, one with quotes, the next one (after the re-warm, and at once)."""
    cases, filler = read_lines("recall.jsonl"), read_lines("filler.jsonl")
    english = [line for line in filler if line["lang"] == "en"]
    facts = [case for case in cases if case["lang"] == "en" and not case.get("hard")]
    said = as_turns(plant(facts, english, 3, "close"))
    rows: dict[str, list[tuple[int, float]]] = {
        "ordinary": [],
        "with quotes": [],
        "after, warm": [],
        "after, at once": [],
    }
    async with demo_engine() as (engine, info), filled_store(said) as (store, session_id, folder):
        await begin_window(store, session_id, len(said) - 12)
        asker = Asker(store, engine, config(folder, recall={}))
        await asker.answer("Hello again.", info)
        for n, case in enumerate(facts[:8]):
            await one(rows["ordinary"], asker, info, "Well then, thanks.")
            await settled(engine)
            await one(rows["with quotes"], asker, info, case["question"])
            if n % 2:
                await settled(engine)
            await one(
                rows["after, warm" if n % 2 else "after, at once"],
                asker,
                info,
                "Well then, thanks.",
            )
            await settled(engine)
    figures: Figures = {}
    for name, measured in rows.items():
        computed, first = median([float(n) for n, _ in measured]), median([s for _, s in measured])
        figures[f"{name}: computed tokens"] = int(computed)
        figures[f"{name}: first token s"] = round(first, 2)
    ratio = figures["after, warm: first token s"] / max(0.01, figures["ordinary: first token s"])
    more = figures["after, warm: computed tokens"] - figures["ordinary: computed tokens"]
    assert more <= 4, f"the turn after a recall computes {more} tokens more: {figures}"
    return {**figures, "first token, after / ordinary": round(ratio, 2)}


async def one(row: list[tuple[int, float]], asker: Asker, info: ModelInfo, text: str) -> None:
    """A turn's computed tokens and its seconds to the first token."""
    usage, first_s = await asker.answer(text, info)
    row.append((usage.n_prompt - usage.n_cached, first_s))


async def settled(engine: Engine) -> None:
    """Until nothing runs in the engine."""
    await asyncio.sleep(2.0)
    for _ in range(100):
        stats = await engine.stats()
        if stats.n_running == 0 and stats.n_waiting == 0:
            return
        await asyncio.sleep(0.1)


def summary(done: dict[str, Figures]) -> str:
    """What came of it."""
    with_recall = [figures for name, figures in done.items() if name.startswith("with recall")]
    lowest = [
        min((float(figures.get(column, "0 %")[:-2]) for figures in with_recall), default=0.0)
        for column in COLUMNS[:2]
    ]
    return (
        f"Of the 84 cases not marked hard, the sentence with the fact was in the prompt for {lowest[0]} % or more, and ranked above all "
        f"its distractors for {lowest[1]} % or more, in {len(with_recall)} arrangements. The 16 hard ones share no word with "
        "their fact; no embedding model is used. The rules and the cue words were made with all cases in sight; the splits re-tune 8 of the "
        "rules on one half, so they bound the fit of these values, not of the design. Times were taken while other work ran on the machine; `cpu` is processor time."
    )


def build() -> Suite:
    """The suite."""
    items: dict[str, Any] = {
        f"with recall, distractors {layout}, seed {seed}": lambda layout=layout, seed=seed: (
            in_the_prompt(layout, seed)
        )
        for seed, layout in [(21, "close"), (22, "spread"), (23, "first"), (24, "close")]
    }
    items["without recall"] = lambda: in_the_prompt("close", 21, enabled=False)
    items |= {
        f"rules tuned on one half, measured on the other, split {n}": lambda n=n: other_half(n)
        for n in (1, 2, 3)
    }
    items["search and ranking, 10,000 turns"] = lambda: how_long(10_000)
    items["time to first token around a recall, demo model"] = first_token
    return Suite(
        "recall",
        "Recall: what was said long ago, asked for in other words",
        items,
        summary,
        COLUMNS,
    )
