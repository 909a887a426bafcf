"""What `hearth tune` says: progress while it measures, the table at the end, and the same for scripts. Decides nothing."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from msgspec.structs import asdict
from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from engine.vram.devices import GIB
from engine.vram.runs import (
    HELD,
    RAM,
    TURN_PROMPT,
    TURN_REPLY,
    Knobs,
    Quality,
    Run,
    holds,
    seconds_per_round,
)
from engine.vram.tuneplan import TunePlan
from engine.vram.tuner import TuneReport

# Processes that compute at the same time, before the first run.
_BUSY_LOAD: Final = 0.7
# Short names, in the order in which they are shown.
_NAMES: Final = {
    "n_gpu_layers": "layers",
    "n_cpu_moe": "cpu_moe",
    "kv_on_card": "kv_on_card",
    "n_threads": "threads",
    "n_ubatch": "ubatch",
    "n_batch": "batch",
    "flash_attention": "flash",
    "cache_type_k": "KV",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is told at the end: the plan, what was measured, and the file that keeps it."""

    plan: TunePlan
    report: TuneReport
    file: Path


class Teller:
    """Progress on a console: a moving line on a terminal, else a line as each run ends. Use it as a context manager."""

    def __init__(self, console: Console, plan: TunePlan, budget_s: float) -> None:
        self._console = console
        self._start = plan.space.start
        self._plan = plan
        self._budget_s = budget_s
        self._begun = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[phase]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1, phase="")
        self._label = ""

    def __enter__(self) -> Self:
        about = f"measuring for up to {self._budget_s / 60:.3g} min on {self._plan.whose.device}"
        lines = [f"{self._plan.path.name}: {self._plan.why}", about]
        load = os.getloadavg()[0]
        if load > _BUSY_LOAD:
            lines.append(
                f"the machine is busy (load {load:.1f}): stop what else runs, or the figures say little"
            )
        for line in lines:
            self._console.print(line, soft_wrap=True)
        self._bar.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begins(self, what: Knobs | Quality, number: int) -> None:
        """A run begins: the moving line is about it."""
        spent = (time.monotonic() - self._begun) / 60
        name = quality_name(what) if isinstance(what, Quality) else knobs_name(what, self._start)
        self._label = f"[{number}] {name}"
        text = f"{self._label}  ({spent:.1f} of {self._budget_s / 60:.3g} min)"
        self._bar.update(self._task, description=text, completed=0, total=1, phase="loading")

    def progress(self, phase: str, done: int, total: int) -> None:
        """The moving line goes on."""
        self._bar.update(self._task, completed=done, total=total, phase=f"{phase} {done}/{total}")

    def ends(self, what: Run | Quality) -> None:
        """A line that stays."""
        self._bar.console.print(f"{self._label}: {_result(what)}", soft_wrap=True)


def _result(what: Run | Quality) -> str:
    if isinstance(what, Quality):
        return f"perplexity {what.perplexity:.3f}" if what.perplexity else what.reason
    if what.outcome != HELD:
        return f"{what.outcome}: {what.reason}"
    memory = ", ".join(f"{name} {_gib(n)} GiB" for name, n in what.peak.items())
    return (
        f"prompt {what.prompt_tps:.1f} tok/s, generation {what.generation_tps:.1f} tok/s, {memory}"
    )


def knobs_name(knobs: Knobs, start: Knobs) -> str:
    """The knobs that are not as planned; "plan" when all are."""
    changed = [
        f"{name} {_shown(getattr(knobs, key))}"
        for key, name in _NAMES.items()
        if getattr(knobs, key) != getattr(start, key)
    ]
    return ", ".join(changed) or "plan"


def quality_name(quality: Quality) -> str:
    """What a perplexity is of."""
    kinds = dict.fromkeys((quality.cache_type_k, quality.cache_type_v))
    flash = (
        "" if quality.flash_attention == "on" else f", flash attention {quality.flash_attention}"
    )
    return f"perplexity with KV {'/'.join(kinds)}{flash}"


def _shown(value: object) -> str:
    return (
        {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    )


def perplexity_of(run: Run, report: TuneReport) -> float | None:
    """The perplexity with a run's kind of cache; None = not known."""
    kinds = (run.knobs.cache_type_k, run.knobs.cache_type_v)
    fitting = [q for q in report.qualities if (q.cache_type_k, q.cache_type_v) == kinds]
    flash = run.knobs.flash_attention
    exact = [q for q in fitting if q.flash_attention == flash] or fitting
    return exact[0].perplexity or None if exact else None


def verdict(run: Run, outcome: Outcome) -> str:
    """One word or sentence about a run."""
    space, report = outcome.plan.space, outcome.report
    if run == report.best:
        return "kept"
    if run.outcome != HELD:
        return f"{run.outcome}: {run.reason}"
    if not holds(run, run.room, space.idle_bytes):
        return "tight"
    if run.knobs.cache_type_k != space.start.cache_type_k:
        return "shown"
    return ""


def view(outcome: Outcome, chart: Path | None, *, is_narrow: bool = False) -> Group:
    """The table (a line for each run where a window is too narrow for one), and what is kept."""
    report, plan = outcome.report, outcome.plan
    rows = list(_rows(outcome)) if is_narrow else [_table(outcome)]
    parts: list[Any] = [Text(""), *rows, Text("")]
    ended = (run for run in report.runs if run.outcome != HELD)
    parts += [
        Text(f"{knobs_name(run.knobs, plan.space.start)}: {verdict(run, outcome)}") for run in ended
    ]
    parts += [Text(line, overflow="fold") for line in _sentences(outcome)]
    if not report.is_finished:
        parts.append(Text("not everything was tried: the same command goes on from here"))
    parts.append(Text(f"results {outcome.file}", overflow="fold"))
    if chart:
        parts.append(Text(f"chart   {chart}", overflow="fold"))
    parts.append(
        Text(
            f"s per round = {plan.config.n_parallel} people ask at the same moment: {TURN_PROMPT} new prompt tokens and "
            f"{TURN_REPLY} of reply each, behind {_depth(report)} tokens in every conversation; ppl = perplexity of a fixed text, "
            "less is better; tight = too little memory stays free; shown = another KV type, not for the tuner to choose",
            style="dim",
        )
    )
    return Group(*parts)


def _depth(report: TuneReport) -> int:
    return max((run.depth for run in report.runs), default=0)


def _rows(outcome: Outcome) -> Iterator[Text]:
    report, start = outcome.report, outcome.plan.space.start
    for run in report.runs:
        if run.outcome != HELD:
            continue  # told below, with its reason
        perplexity = perplexity_of(run, report)
        facts = [f"{_result(run)}, {seconds_per_round(run):.2f} s per round"]
        facts += [f"ppl {perplexity:.2f}"] if perplexity else []
        facts += [word] if (word := verdict(run, outcome)) else []
        style = "bold green" if run == report.best else ""
        yield Text(f"{knobs_name(run.knobs, start)}: {', '.join(facts)}", style, overflow="fold")


def _table(outcome: Outcome) -> Table:
    report, plan = outcome.report, outcome.plan
    cards = [
        name for name in dict.fromkeys(n for run in report.runs for n in run.peak) if name != RAM
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    for title in ("prompt tok/s", "reply tok/s", "s per round", "RAM GiB", *(f"{_short(c)} GiB" for c in cards), "ppl"):  # fmt: skip
        table.add_column(title, justify="right", min_width=5)
    table.add_column("")
    for run in report.runs:
        style = "bold green" if run == report.best else "" if run.outcome == HELD else "dim"
        perplexity = perplexity_of(run, report)
        is_held = run.outcome == HELD
        table.add_row(
            knobs_name(run.knobs, plan.space.start),
            f"{run.prompt_tps:.1f}" if is_held else "–",
            f"{run.generation_tps:.1f}" if is_held else "–",
            f"{seconds_per_round(run):.2f}" if is_held else "–",
            *(_gib(run.peak.get(name, 0)) for name in (RAM, *cards)),
            f"{perplexity:.2f}" if perplexity else "–",
            run.outcome if run.outcome != HELD else verdict(run, outcome),
            style=style,
        )
    return table


def _short(name: str) -> str:
    return name.split(" ", maxsplit=1)[0]


def _sentences(outcome: Outcome) -> Iterator[str]:
    report, plan = outcome.report, outcome.plan
    best, start = report.best, report.start
    if best is None:
        yield "no settings held with their margin; `hearth plan` names smaller ones"
        return
    told = ", ".join(f"{key} = {_toml(value)}" for key, value in asdict(best.knobs).items())
    yield f"kept: {told}"
    if start is not None and start.outcome == HELD and best != start:
        gain = 100 * (seconds_per_round(start) / seconds_per_round(best) - 1)
        yield f"{gain:+.0f} % rounds per minute against the plan"
    elif best == start:
        yield "the plan was the fastest of what was tried"
    yield from _trades(outcome, best)
    yield f'`vram = "auto"` uses it for {plan.config.n_parallel} × {plan.config.n_ctx} tokens on this device and build'


def _trades(outcome: Outcome, best: Run) -> Iterator[str]:
    """What another kind of cache would give and cost."""
    report = outcome.report
    ours = perplexity_of(best, report)
    kinds = (best.knobs.cache_type_k, best.knobs.cache_type_v)
    for run in report.runs:
        theirs = perplexity_of(run, report)
        if (run.knobs.cache_type_k, run.knobs.cache_type_v) == kinds or run.outcome != HELD:
            continue
        speed = 100 * (seconds_per_round(best) / seconds_per_round(run) - 1)
        memory = ", ".join(
            f"{_short(name)} {(n - best.peak.get(name, 0)) / 2**20:+,.0f} MiB"
            for name, n in run.peak.items()
        )
        cost = f", perplexity {100 * (theirs / ours - 1):+.2f} %" if ours and theirs else ""
        yield f"KV {run.knobs.cache_type_k} instead: {speed:+.0f} % rounds, {memory}{cost}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.2f}"


def to_json(outcome: Outcome, chart: Path | None) -> dict[str, Any]:
    """Everything, for scripts."""
    report, plan = outcome.report, outcome.plan
    best = report.best
    return {
        "model": str(plan.path),
        "device": plan.whose.device,
        "build": plan.whose.build,
        "n_ctx": plan.config.n_ctx,
        "n_parallel": plan.config.n_parallel,
        "depth": _depth(report),
        "finished": report.is_finished,
        "kept": asdict(best.knobs) if best else None,
        "runs": [_run_json(run, outcome) for run in report.runs],
        "qualities": [asdict(quality) for quality in report.qualities],
        "results": str(outcome.file),
        "chart": str(chart) if chart else None,
    }


def _run_json(run: Run, outcome: Outcome) -> dict[str, Any]:
    seconds = seconds_per_round(run)
    return {
        "setting": knobs_name(run.knobs, outcome.plan.space.start),
        "knobs": asdict(run.knobs),
        "outcome": run.outcome,
        "reason": run.reason,
        "prompt_tokens_per_second": run.prompt_tps,
        "generation_tokens_per_second": run.generation_tps,
        "seconds_per_round": seconds if run.outcome == HELD and math.isfinite(seconds) else None,
        "peak": run.peak,
        "room": run.room,
        "perplexity": perplexity_of(run, outcome.report),
        "verdict": verdict(run, outcome),
    }
