"""The recall cases planted in one history and asked for again: as plain messages, in memory, and in a real store.

In memory the same terms and the same ranking work as in the service, without a database: fast enough to try rules on.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from bot.domain.recall import Quote, Rules, choose, parse, rank
from bot.domain.records import Found, Hit
from bot.domain.segment import terms

CASES = Path(__file__).parents[3] / "shared" / "cases"
N_CANDIDATES = 40
MAX_PER_TERM = 500
MAX_QUOTES = 4
# A distractor shortly before its fact, anywhere before it, or all distractors before all facts.
Layout = Literal["close", "spread", "first"]
LAYOUTS: tuple[Layout, ...] = ("close", "spread", "first")
DEFAULT_RULES = Rules()


def read_lines(name: str) -> list[dict[str, Any]]:
    """A file of cases."""
    return [json.loads(line) for line in (CASES / name).read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True)
class Message:
    """A planted message. `case` is "" for filler, `n` -1 for the fact, else the distractor's number."""

    speaker: str
    text: str
    is_answer: bool = False
    case: str = ""
    n: int = 0


def plant(
    cases: Sequence[Mapping[str, Any]],
    filler: Sequence[Mapping[str, Any]],
    seed: int,
    layout: Layout,
    n_after: int = 320,
) -> list[Message]:
    """All facts and distractors in one history with filler between, each distractor before its fact, `n_after` filler behind."""
    rng = random.Random(seed)
    order = list(cases)
    rng.shuffle(order)
    speakers = [case["speaker"] for case in cases]
    placed: list[tuple[float, Message]] = []
    for at, case in enumerate(order):
        fact_at = 5000.0 + at if layout == "first" else 1000.0 + at * 10
        placed.append((fact_at, Message(case["speaker"], case["fact"], case=case["id"], n=-1)))
        for n, text in enumerate(case["distractors"]):
            before = {"close": fact_at - 9 * rng.random(), "spread": fact_at * rng.random(), "first": 4000 * rng.random()}  # fmt: skip
            said = Message(rng.choice(speakers), text, case=case["id"], n=n)
            placed.append((before[layout], said))
    fill = [Message(line["speaker"], line["text"], line["role"] == "assistant") for line in filler]
    placed += [(rng.random() * 6000, fill[i % len(fill)]) for i in range(400)]
    history = [message for _, message in sorted(placed, key=lambda one: one[0])]
    return history + [fill[i % len(fill)] for i in range(n_after)]


class Index(Protocol):
    """Whatever finds messages by terms."""

    def search(self, wanted: Sequence[str]) -> Found: ...


class MemoryIndex:
    """The store's search in memory: turn n is message n."""

    def __init__(self, history: Sequence[Message]) -> None:
        self._history = history
        self._with: dict[str, list[int]] = defaultdict(list)
        for n, message in enumerate(history):
            for term in set(terms(f"{message.speaker} {message.text}")):
                self._with[term].append(n)

    def search(self, wanted: Sequence[str]) -> Found:
        """As bot.store.search does it."""
        scores: dict[int, float] = defaultdict(float)
        counts = {term: min(len(self._with.get(term, ())), MAX_PER_TERM) for term in wanted}
        for term in wanted:
            worth = math.log(1 + (len(self._history) + 0.5) / (counts[term] + 0.5))
            for n in self._with.get(term, ())[-MAX_PER_TERM:]:
                scores[n] += worth
        best = sorted(scores, key=lambda n: (-scores[n], -n))[:N_CANDIDATES]
        hits = [(n, self._history[n]) for n in best]
        return Found(
            tuple(Hit(n, said.is_answer, said.speaker, said.text) for n, said in hits),
            counts,
            len(self._history),
        )


@dataclass(frozen=True)
class Outcome:
    """What came of one case: the fact among the quotes, and above all its own distractors."""

    case: str
    hard: bool
    lang: str
    quoted: bool
    first: bool


def judge(case: Mapping[str, Any], ranked: Sequence[str], chosen: Sequence[str]) -> Outcome:
    """From the texts of all that was ranked, the best first, and of the quotes."""
    fact = next((n for n, text in enumerate(ranked) if text == case["fact"]), None)
    others = [n for n, text in enumerate(ranked) if text in case["distractors"]]
    return Outcome(
        case["id"],
        bool(case.get("hard")),
        case["lang"],
        quoted=case["fact"] in chosen,
        first=fact is not None and all(fact < other for other in others),
    )


def ask(
    cases: Sequence[Mapping[str, Any]],
    index: Index,
    rules: Rules = DEFAULT_RULES,
    min_score: float = 0.0,
) -> list[Outcome]:
    """Ask every case's question."""
    outcomes = []
    for case in cases:
        query = parse(case["question"], rules)
        ranked = rank(query, index.search(query.terms), rules)
        chosen = choose(query, ranked, min_score=min_score, max_quotes=MAX_QUOTES)
        outcomes.append(judge(case, _texts(ranked), _texts(chosen)))
    return outcomes


def _texts(quotes: Sequence[Quote]) -> list[str]:
    return [quote.text for quote in quotes]


def shares(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Share quoted, share above all distractors."""
    n = max(1, len(outcomes))
    counted = Counter(quoted=sum(o.quoted for o in outcomes), first=sum(o.first for o in outcomes))
    return counted["quoted"] / n, counted["first"] / n


def as_turns(history: Sequence[Message]) -> list[tuple[Message, str]]:
    """Questions with the answers they got: what the bot says next in the filler, else a word of acknowledgement."""
    turns: list[tuple[Message, str]] = []
    for said in history:
        if not said.is_answer:
            turns.append((said, "👌"))
        elif turns:
            turns[-1] = (turns[-1][0], said.text)
    return turns
