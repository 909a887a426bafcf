"""What is measured: the figures of the two tables, and their samples by engine. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class What:
    """A thing that is measured. `name` is the key in the JSON ("wave@4.tokens_per_s").

    For people: `block` is its heading in a table, `row` its line there, `unit` how it is written. `higher_is_better` is None
    for what is no merit and so is not compared.
    """

    name: str
    block: str
    row: str
    unit: str
    higher_is_better: bool | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A sample per round for every engine that could be asked."""

    what: What
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def median(self, engine: str) -> float | None:
        """The median over all rounds; None when this engine does not tell this figure."""
        values = self.samples.get(engine)
        return statistics.median(values) if values else None

    def ratio(self, engine: str, other: str) -> float | None:
        """The median of the rounds' ratios: each round ran both engines one after the other."""
        if self.what.higher_is_better is None:
            return None
        pairs = zip(self.samples.get(engine, ()), self.samples.get(other, ()), strict=False)
        ratios = [mine / theirs for mine, theirs in pairs if theirs]
        return statistics.median(ratios) if ratios else None


class Samples:
    """All samples so far, by figure and engine; owned by one run."""

    def __init__(self) -> None:
        self._whats: dict[str, What] = {}
        self._values: dict[str, dict[str, list[float]]] = {}

    def add(self, what: What, engine: str, value: float | None) -> None:
        """One more; None = this engine does not tell it."""
        self._whats.setdefault(what.name, what)
        if value is not None:
            self._values.setdefault(what.name, {}).setdefault(engine, []).append(value)

    def figures(self) -> tuple[Figure, ...]:
        """What there is, in the order in which it was first measured."""
        return tuple(
            Figure(what, {e: tuple(v) for e, v in self._values.get(name, {}).items()})
            for name, what in self._whats.items()
        )


def of_wave(n_people: int, kind: str) -> What:
    """A figure of so many people asking at the same moment."""
    block, unit, higher = _WAVE[kind]
    return What(f"wave@{n_people}.{kind}", block, f"{n_people} at once", unit, higher)


def of_turn(turn: int, kind: str) -> What:
    """A figure of the n-th turn of conversations in rotation."""
    block, unit, higher = _TURN[kind]
    return What(f"turn@{turn}.{kind}", block, f"turn {turn}", unit, higher)


# Block, unit, whether higher is better.
_WAVE: dict[str, tuple[str, str, bool | None]] = {
    "tokens_per_s": ("generated, in all", "tok/s", True),
    "guessed_share": ("of it guessed ahead", "%", None),
    "first_token_s": ("first token after", "s", False),
    "prompt_tokens_computed": ("prompt computed (usage)", "tok", None),
    "prompt_tokens_decoded": ("prompt computed (engine)", "tok", None),
    "python_share": ("Python's share of a step", "%", None),
}
_TURN: dict[str, tuple[str, str, bool | None]] = {
    "first_token_s": ("first token after", "s", False),
    "prompt_tokens": ("prompt sent", "tok", None),
    "prompt_tokens_computed": ("of it computed (usage)", "tok", False),
    "prompt_tokens_decoded": ("of it computed (engine)", "tok", False),
    "tokens_restored": ("of it back from RAM or disk", "tok", None),
    "bytes_written": ("KV stored", "B", None),
}
