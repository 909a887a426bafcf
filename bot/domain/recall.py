"""Which old messages are worth quoting beside a new question: parsing the question, ranking what the index found. Pure.

The index only says which messages share terms with the question. Here each is weighed by how rare these terms are and how
they stand together, by whether it could be an answer at all (a question is none; who asks for a number wants one), and by
what was said after it: of messages about the same thing a later one overrides an earlier one.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from bot.domain.cues import (
    ASKS,
    FIGURE,
    FUNCTION_CHARS,
    FUNCTION_WORDS,
    INTERROGATIVES,
    OPEN,
    REQUESTS,
    SETTLED,
    SUPERSEDED,
    WANTS_FIGURE,
)
from bot.domain.records import Found, Hit
from bot.domain.segment import (
    HAN_NUMBER,
    MAX_TERM_CHARS,
    WORD,
    fold,
    han_number,
    is_paired,
    stem,
    terms,
)
from bot.domain.weight import items_of

MAX_TERMS = 48
# A quote of a longer message is at most about so long.
WINDOW_CHARS = 280
# Of a very long message only the beginning is looked at, by this many of its passages.
MAX_HIT_CHARS = 6000
MAX_PASSAGES = 3
# Of a very long question so much of either end.
MAX_END_CHARS = 1000
# So many of the best are weighed against each other.
FRONT = 16
# Who asks for nothing is shown something only far above the threshold.
UNASKED = 3.0
_SENTENCE_END = re.compile(r"[。！？!?；;\n]+|(?<=[a-z0-9)\"'])[.](?=\s)")


@dataclass(frozen=True, slots=True)
class Rules:
    """What counts how much. Set by hand with all cases in sight; how well values tuned on one half of them do on the other
    is measured in tests/prove/recall.py."""

    function_word: float = 0.15
    half_function_pair: float = 0.6
    run: float = 0.35
    figure: float = 1.25
    no_figure: float = 0.8
    item: float = 1.2
    chars: float = 0.2
    is_question: float = 0.55
    has_question: float = 0.75
    open: float = 0.8
    own_words: float = 0.85
    superseded: float = 0.85
    settled: float = 1.15
    # Each later message about the same thing leaves so much of an earlier one's score ...
    overridden: float = 0.65
    # ... when it shares at least this much of what both share with the question, and is no weaker than this.
    same_topic: float = 0.5
    rival: float = 0.5
    length: float = 0.12


@dataclass(frozen=True, slots=True)
class Query:
    """A question, parsed. `terms` are unique, in order."""

    text: str
    terms: tuple[str, ...]
    priors: Mapping[str, float]
    chars: frozenset[str]
    wants_figure: bool
    is_past: bool
    asks: bool


@dataclass(frozen=True, slots=True)
class Quote:
    """A message, or a part of it, as it was said. `score` is between 0 and about 2; `reply` is the answer to a question."""

    turn_no: int
    is_answer: bool
    speaker: str
    text: str
    score: float
    said_at: datetime | None = None
    reply: str = ""


def parse(question: str, rules: Rules = Rules()) -> Query:
    """What to look for. Of a very long question the beginning and the end count, where people put what they want."""
    if len(question) > 2 * MAX_END_CHARS:
        question = f"{question[:MAX_END_CHARS]}\n{question[-MAX_END_CHARS:]}"
    folded = fold(question)
    topic = INTERROGATIVES.sub(" ", folded)
    unique = dict.fromkeys(terms(topic))
    found = [term for term in unique if _prior(term, rules) > rules.function_word]
    if len(found) > MAX_TERMS:
        half = MAX_TERMS // 2
        found = found[:half] + found[-half:]
    return Query(
        text=folded,
        terms=tuple(found),
        priors={term: _prior(term, rules) for term in found},
        chars=frozenset(
            char
            for char in topic
            if char >= "\u3400" and char.isalpha() and char not in FUNCTION_CHARS
        ),
        wants_figure=bool(WANTS_FIGURE.search(folded)),
        is_past=bool(SUPERSEDED.search(folded)),
        asks=bool(REQUESTS.search(folded)),
    )


def _prior(term: str, rules: Rules) -> float:
    if term.isdecimal() and len(term) < 3:
        return 0.5
    if term.isascii():
        return rules.function_word if term in FUNCTION_WORDS else 1.3
    n_function = sum(char in FUNCTION_CHARS for char in term)
    if n_function == len(term):
        return rules.function_word
    return rules.half_function_pair if n_function else 1.0


def weights(query: Query, counts: Mapping[str, int], n_messages: int) -> dict[str, float]:
    """What each term of a question is worth: the rarer in the conversation, the more."""
    return {
        term: query.priors[term] * math.log(1 + (n_messages - n + 0.5) / (n + 0.5))
        for term in query.terms
        if (n := min(counts.get(term, 0), n_messages)) >= 0
    }


@dataclass(frozen=True, slots=True)
class _Scored:
    hit: Hit
    passage: str
    matched: frozenset[str]
    score: float
    # Whether it can override what was said before: a question cannot, nor can the bot what a person said.
    asserts: bool = False


def rank(query: Query, found: Found, rules: Rules = Rules()) -> list[Quote]:
    """What the index found, the best first."""
    worth = weights(query, found.counts, found.n_messages)
    whole = sum(worth.values()) or 1.0
    scored = [_score(query, hit, worth, whole, rules) for hit in found.hits]
    scored = sorted((one for one in scored if one.score > 0), key=_order)
    best = sorted(_overridden(scored, worth, rules), key=_order)
    return [
        Quote(
            one.hit.turn_no,
            one.hit.is_answer,
            one.hit.speaker,
            one.passage.strip(),
            one.score,
            one.hit.said_at,
            "" if one.asserts or not one.hit.reply else _passages(one.hit.reply)[0].strip(),
        )
        for one in best
    ]


def _order(one: _Scored) -> tuple[float, int]:
    return -one.score, -one.hit.turn_no


def choose(
    query: Query, ranked: Sequence[Quote], *, min_score: float, max_quotes: int
) -> list[Quote]:
    """The quotes to show: those above the threshold, none that says what the question or a better one already says.

    Who asks for nothing is shown something only where it is clearly about the same.
    """
    if not query.asks:
        min_score *= UNASKED
    chosen: list[Quote] = []
    said = [query.text]
    for quote in ranked:
        if quote.score < min_score or len(chosen) == max_quotes:
            break
        if not any(_says_the_same(f"{quote.text} {quote.reply}", other) for other in said):
            chosen.append(quote)
            said.append(f"{quote.text} {quote.reply}")
    return chosen


def _says_the_same(one: str, other: str) -> bool:
    a, b = set(terms(one)), set(terms(other))
    return len(a & b) > 0.85 * len(a | b)


# -- one message ---------------------------------------------------------------------------------------------------------
def _score(
    query: Query, hit: Hit, worth: Mapping[str, float], whole: float, rules: Rules
) -> _Scored:
    best = _Scored(hit, "", frozenset(), 0.0)
    passages = _passages(hit.text[:MAX_HIT_CHARS])
    if len(passages) > MAX_PASSAGES:
        # A rough look first: what takes long is folding a text.
        passages.sort(key=lambda text: -_n_terms(query, text.lower()))
    for passage in passages[:MAX_PASSAGES]:
        one = _score_passage(query, hit, passage, worth, whole, rules)
        if one.score > best.score:
            best = one
    return best


def _n_terms(query: Query, text: str) -> int:
    return sum(term in text for term in query.terms)


def _score_passage(
    query: Query, hit: Hit, passage: str, worth: Mapping[str, float], whole: float, rules: Rules
) -> _Scored:
    folded = fold(passage)
    places = find_terms(folded, query.terms)
    for name_term in terms(hit.speaker):
        if name_term in worth:
            places.setdefault(name_term, -1)
    value = sum(worth[term] for term in places) + _runs(query, places, worth, rules)
    value /= whole
    if query.chars:
        value += rules.chars * len(query.chars.intersection(folded)) / len(query.chars)
    value /= 1 + rules.length * max(0.0, math.log(max(1, len(folded)) / 40))
    asks = bool(ASKS.search(folded))
    value *= _likeliness(query, folded, asks, rules)
    if any(item not in query.text for item in items_of(passage)):
        value *= rules.item
    if hit.is_answer:
        value *= rules.own_words
    return _Scored(hit, passage, frozenset(places), value, asserts=not asks)


def _runs(
    query: Query, places: Mapping[str, int], worth: Mapping[str, float], rules: Rules
) -> float:
    """What terms are worth more because they stand together as in the question."""
    value = 0.0
    for first, second in itertools.pairwise(query.terms):
        if first in places and second in places:
            is_run = 0 < places[second] - places[first] <= len(first) + 1
            value += rules.run * min(worth[first], worth[second]) if is_run else 0.0
    return value


def _likeliness(query: Query, folded: str, asks: bool, rules: Rules) -> float:
    """How much a text looks like an answer, whatever it is about."""
    factors = [
        rules.is_question if asks else rules.has_question if "?" in folded else 1.0,
        rules.open if OPEN.search(folded) else 1.0,
        rules.superseded if not query.is_past and SUPERSEDED.search(folded) else 1.0,
        rules.settled if SETTLED.search(folded) else 1.0,
    ]
    if query.wants_figure:
        factors.append(rules.figure if FIGURE.search(folded) else rules.no_figure)
    return math.prod(factors)


def find_terms(folded: str, wanted: Sequence[str]) -> dict[str, int]:
    """Which terms a folded text has, and where first: the same answer as segmenting it, at a tenth of the time."""
    places: dict[str, int] = {}
    words: dict[str, int] | None = None
    for term in wanted:
        if is_paired(term):
            at = folded.find(term)
            if at >= 0:
                places[term] = at
            continue
        words = _words(folded) if words is None else words
        if term in words:
            places[term] = words[term]
    return places


def _words(folded: str) -> dict[str, int]:
    """The words and numbers of a folded text, as terms, and where they first stand."""
    words: dict[str, int] = {}
    for match in WORD.finditer(folded):
        words.setdefault(stem(match.group()[:MAX_TERM_CHARS]), match.start())
    for match in HAN_NUMBER.finditer(folded):
        value = han_number(match.group())
        if value is not None:
            words.setdefault(str(value), match.start())
    return words


def _passages(text: str) -> list[str]:
    """A message in windows of whole sentences, each exactly as it stands there."""
    if len(text) <= WINDOW_CHARS:
        return [text]
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    passages, start, end = [], 0, 0
    for next_end in [*ends, len(text)]:
        if next_end - start > WINDOW_CHARS and end > start:
            passages.append(text[start:end])
            start = end
        while next_end - start > 2 * WINDOW_CHARS:
            passages.append(text[start : start + WINDOW_CHARS])
            start += WINDOW_CHARS
        end = next_end
    passages.append(text[start:])
    return [passage for passage in passages if passage.strip()] or [text]


# -- one beside the other ------------------------------------------------------------------------------------------------
def _overridden(
    scored: Sequence[_Scored], worth: Mapping[str, float], rules: Rules
) -> list[_Scored]:
    """Scores lowered by what was said later about the same thing. Only what comes near the best is looked at."""
    front = scored[:FRONT]
    result = []
    for one in front:
        n_later = sum(_overrides(other, one, worth, rules) for other in front)
        lowered = one.score * rules.overridden ** min(n_later, 3)
        result.append(replace(one, score=lowered))
    return [*result, *scored[FRONT:]]


def _overrides(later: _Scored, one: _Scored, worth: Mapping[str, float], rules: Rules) -> bool:
    if later.hit.turn_no <= one.hit.turn_no or later.score < rules.rival * one.score:
        return False
    if not later.asserts or (later.hit.is_answer and not one.hit.is_answer):
        return False
    common = sum(worth[term] for term in later.matched & one.matched)
    either = sum(worth[term] for term in one.matched)
    return common >= rules.same_topic * either
