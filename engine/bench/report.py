"""What a benchmark found, as tables for people and as JSON. Pure but for `describe_machine`."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from engine.bench.figures import Figure
from engine.types import ModelInfo

# More work waiting than processors: what is measured then says little.
BUSY_LOAD_PER_CPU = 0.5
SAME_WITHIN = 0.02
LABEL_WIDTH = 26


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Everything a run of the benchmark found. `engines` are in the order given; the first is compared with the others."""

    plan: Mapping[str, Any]
    machine: Mapping[str, Any]
    engines: Mapping[str, ModelInfo]
    figures: tuple[Figure, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values only. A ratio is first engine / other engine."""
        return {
            "plan": dict(self.plan),
            "machine": dict(self.machine),
            "engines": {
                name: {
                    "model": info.name,
                    "description": info.description,
                    "n_ctx_tokens": info.n_ctx_tokens,
                    "n_parallel": info.n_parallel,
                }
                for name, info in self.engines.items()
            },
            "figures": {figure.what.name: self._figure_json(figure) for figure in self.figures},
        }

    def view(self) -> RenderableType:
        """The same for a terminal: a table of the waves, one of the turns, and what one should know to read them."""
        tokens, talks = self.plan["max_new_tokens"], self.plan["conversations"]
        titles = {
            "wave": f"People asking at the same moment, replies of at most {tokens} tokens",
            "turn": f"{talks} conversation{'s' * (talks != 1)} in rotation, turn by turn",
        }
        parts: list[RenderableType] = []
        for prefix, title in titles.items():
            table = self._table(prefix)
            parts += [Text(title, style="bold"), table] if table.row_count else []
        return Group(*parts, *self._notes())

    def _table(self, prefix: str) -> Table:
        first, *others = self.engines
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("", min_width=LABEL_WIDTH)
        for name in self.engines:
            table.add_column(name, justify="right")
        for name in others:
            table.add_column(f"÷ {name}", justify="right")
        for block, figures in self._blocks(prefix):
            if table.row_count:
                table.add_row()
            table.add_row(Text(block, style="bold"))
            for figure in figures:
                table.add_row(f"  {figure.what.row}", *self._cells(figure, first, others))
        return table

    def _blocks(self, prefix: str) -> Iterator[tuple[str, list[Figure]]]:
        """Figures of one kind together, kinds in the order in which they were first measured; none that nobody told."""
        blocks: dict[str, list[Figure]] = {}
        for figure in self.figures:
            if figure.what.name.startswith(prefix):
                blocks.setdefault(figure.what.block, []).append(figure)
        for block, figures in blocks.items():
            if any(figure.median(name) for figure in figures for name in self.engines):
                yield block, figures

    def _cells(self, figure: Figure, first: str, others: Sequence[str]) -> list[RenderableType]:
        values = [_number(figure.median(name), figure.what.unit) for name in self.engines]
        return [*values, *(_ratio(figure, first, name) for name in others)]

    def _notes(self) -> Iterator[Text]:
        first, *others = self.engines
        machine, rounds = self.machine, self.plan["rounds"]
        for name, info in self.engines.items():
            yield _note(f"{name}: {_whereabouts(info)}")
        yield _note(
            f"Medians of {rounds} round{'s' * (rounds != 1)}"
            + (", in which all took turns. " if others else ". ")
            + f"{machine['cpus']} CPUs ({machine['architecture']}), load {machine['load_1m_at_start']}."
            + " –: it does not say."
        )
        yield _note(
            "Prompt tokens are per reply. usage: what the reply's usage figures say; engine: what the engine's own counter "
            "says it put into its decode calls."
        )
        if others:
            yield _note(
                f"÷: {first} divided by the other, round by round; more is better for tok/s, less for times and tokens "
                f"(green: {first} is better)."
            )
        yield from self._warnings(first)

    def _warnings(self, first: str) -> Iterator[Text]:
        waves = self.plan["concurrency"]
        n_parallel = self.engines[first].n_parallel
        if waves and max(waves) > n_parallel:
            yield _warning(
                f"{first} decodes {n_parallel} at once: of {max(waves)} people, the others wait for their turn."
            )
        if self.machine["load_1m_at_start"] > BUSY_LOAD_PER_CPU * self.machine["cpus"]:
            yield _warning(
                "This machine was busy when the benchmark began: only the ratios say something, and not much."
            )

    def _figure_json(self, figure: Figure) -> dict[str, Any]:
        first, *others = self.engines
        return {
            "unit": figure.what.unit,
            "higher_is_better": figure.what.higher_is_better,
            "median": {name: _rounded(figure.median(name)) for name in self.engines},
            "samples": {
                name: [_rounded(value) for value in values]
                for name, values in figure.samples.items()
            },
            "ratio": {name: _rounded(figure.ratio(first, name)) for name in others},
        }


def load_1m() -> float:
    """Processes that wanted a processor within the last minute."""
    return round(os.getloadavg()[0], 2)


def describe_machine() -> dict[str, Any]:
    """What a reader needs to judge the figures: they mean little on a machine that was busy."""
    return {
        "cpus": os.cpu_count() or 0,
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load_1m_at_start": load_1m(),
    }


def _whereabouts(info: ModelInfo) -> str:
    """The model and its file; of a server, which has no cells of ours, its address."""
    if not info.kv_cells:
        return info.path or info.name
    window = f"{info.n_ctx_tokens} tokens each, {info.kv_cells} KV cells, {info.n_parallel} at once"
    return f"{info.description}, {info.path.rpartition('/')[2]} ({window})"


def _ratio(figure: Figure, first: str, other: str) -> Text:
    ratio = figure.ratio(first, other)
    if ratio is None:
        return Text("" if figure.what.higher_is_better is None else "–")
    won = ratio > 1 if figure.what.higher_is_better else ratio < 1
    style = "" if abs(ratio - 1) < SAME_WITHIN else "green" if won else "yellow"
    return Text(f"{ratio:.2f}", style=style)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    match unit:
        case "s":
            return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
        case "B":
            return f"{value / 2**20:.1f} MiB" if value >= 2**20 else f"{value / 2**10:.0f} KiB"
        case "tok":
            return f"{value:.0f} tok"
        case "%":
            return f"{value:.1f} %"
        case _:
            return f"{value:.1f} {unit}"


def _note(text: str) -> Text:
    return Text(text, style="dim")


def _warning(text: str) -> Text:
    return Text(text, style="yellow")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
