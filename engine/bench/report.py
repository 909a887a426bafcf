"""What a benchmark found: figures, their medians and ratios, as a table and as JSON. Pure but for `describe_machine`."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from engine.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured: a sample per round for every engine that could be asked.

    `name` is the key in the JSON ("wave@4.tokens_per_s"), `label` and `unit` are for people.
    """

    name: str
    label: str
    unit: str
    higher_is_better: bool
    samples: Mapping[str, tuple[float, ...]]

    def median(self, engine: str) -> float | None:
        """The median over all rounds; None when this engine does not tell this figure."""
        values = self.samples.get(engine)
        return statistics.median(values) if values else None

    def ratio(self, engine: str, other: str) -> float | None:
        """The median of the rounds' ratios: each round ran both engines one after the other."""
        pairs = zip(self.samples.get(engine, ()), self.samples.get(other, ()), strict=False)
        ratios = [mine / theirs for mine, theirs in pairs if theirs]
        return statistics.median(ratios) if ratios else None


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
            "figures": {figure.name: self._figure_json(figure) for figure in self.figures},
        }

    def table(self) -> Table:
        """The same for a terminal."""
        first, *others = self.engines
        table = Table(title="hearth bench", caption=self._caption())
        table.add_column("measured")
        for name in self.engines:
            table.add_column(name, justify="right")
        for name in others:
            table.add_column(f"{first} ÷ {name}", justify="right")
        for figure in self.figures:
            cells = [_number(figure.median(name), figure.unit) for name in self.engines]
            ratios = [self._ratio_cell(figure, first, name) for name in others]
            table.add_row(figure.label, *cells, *ratios)
        return table

    def _figure_json(self, figure: Figure) -> dict[str, Any]:
        first, *others = self.engines
        return {
            "unit": figure.unit,
            "higher_is_better": figure.higher_is_better,
            "median": {name: _rounded(figure.median(name)) for name in self.engines},
            "samples": {
                name: [_rounded(value) for value in values]
                for name, values in figure.samples.items()
            },
            "ratio": {name: _rounded(figure.ratio(first, name)) for name in others},
        }

    def _ratio_cell(self, figure: Figure, first: str, other: str) -> str:
        ratio = figure.ratio(first, other)
        if ratio is None:
            return "–"
        won = ratio > 1 if figure.higher_is_better else ratio < 1
        color = "default" if abs(ratio - 1) < 0.02 else "green" if won else "yellow"
        return f"[{color}]{ratio:.2f}[/]"

    def _caption(self) -> str:
        rounds, tokens = self.plan["rounds"], self.plan["max_new_tokens"]
        return (
            f"median of {rounds} round(s), replies of at most {tokens} tokens, "
            f"{self.machine['cpus']} CPUs, load {self.machine['load_1m_at_start']}"
        )


def describe_machine() -> dict[str, Any]:
    """What a reader needs to judge the figures: they mean little on a machine that was busy."""
    return {
        "cpus": os.cpu_count() or 0,
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load_1m_at_start": round(os.getloadavg()[0], 2),
    }


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "s":
        return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
    return f"{value:.1f} {unit}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
