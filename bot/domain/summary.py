"""What a summary is made of and whether one is good enough. Pure; counting and asking a model happen in the service.

A summary is a few lines of prose, if a model gave any worth keeping, and under them the sentences that carry what the prose
lost, as they were said. So the worst model costs style, not facts: with nothing usable from it the sentences stand alone.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bot.domain.catalogue import Language, say
from bot.domain.cues import FUNCTION_WORDS
from bot.domain.segment import terms
from bot.domain.weight import Sentence, fold, items_of, phrases_of, split_sentences, weigh

# A model's text is kept when it is so much shorter than what it stands for ...
_MAX_RATIO = 0.7
# ... and holds at least this share of the items that the text has.
_MIN_ITEMS = 0.15
# ... and this share of what the talk's own sentences would hold in the same room.
_MIN_OF_EXTRACT = 0.6
# Of a line, so much must have been said.
_MIN_KNOWN_TERMS = 0.4
_BULLET = re.compile(r"^\s*[-*•·]\s*")
_FENCE = re.compile(r"^```\w*\n|\n?```\s*$")
_LABEL = re.compile(
    r"^\s*(?:#+\s*)?\**(?:summary|摘要|总结|对话摘要|要点)\**\s*[:：]?\**\s*", re.IGNORECASE
)
_SPEAKER = re.compile(r"^(?:[-*•·]\s+)?[^\s:：]{1,32}[:：]\s+")
# Headings of what the model was asked, which small ones write once more.
_ECHOES = frozenset(
    fold(say(language, key))
    for language in ("zh", "en")
    for key in ("summarizer.before", "summarizer.talk", "summarizer.now")
)


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the talk that is compressed."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A summary before it is counted exactly: prose and sentences, the most valuable first to stay."""

    prose: str
    sentences: tuple[Sentence, ...]

    @property
    def how(self) -> str:
        """As `Summary.how` tells it."""
        return "model" if self.prose else "extract"

    def text(self) -> str:
        """The summary as the prompt shows it; sentences in the order they were said."""
        in_order = sorted(self.sentences, key=lambda sentence: sentence.order)
        lines = [_line(sentence) for sentence in in_order]
        return "\n".join(filter(None, [self.prose, *lines]))


def language_of(texts: Sequence[str], default: Language) -> Language:
    """The language most of a talk is in."""
    text = "".join(texts)
    n_han = sum("\u4e00" <= char <= "\u9fff" for char in text)
    n_latin = sum(char.isascii() and char.isalpha() for char in text)
    if n_han + n_latin < 20:
        return default
    return "zh" if n_han * 3 > n_latin else "en"


def request_text(
    language: Language, instruction: str, before: str, said: Sequence[Said], *, max_words: int
) -> str:
    """What the model is asked. `instruction` is the configured one, "" = ours."""
    lines = [instruction.strip() or say(language, "summarizer.ask", n=max_words)]
    if before:
        lines += ["", say(language, "summarizer.before"), before]
    lines += ["", say(language, "summarizer.talk")]
    lines += [f"{message.speaker}: {message.text}" for message in said]
    return "\n".join([*lines, "", say(language, "summarizer.now")])


def clean_prose(text: str, *, keep_bullets: bool = False) -> str:
    """What a model wrote, without fences, labels, and lines that say the same again. Bullets go unless they are to stay."""
    text = _FENCE.sub("", text.strip())
    lines: list[str] = []
    seen: set[str] = set()
    for raw in text.splitlines():
        line = _LABEL.sub("", _BULLET.sub("", raw)).strip()
        key = fold(line)
        if line and key not in seen and key not in _ECHOES and not _loops(line):
            seen.add(key)
            is_item = keep_bullets and _BULLET.match(raw) is not None
            lines.append(f"- {line}" if is_item else line)
    return "\n".join(lines)


def accept(prose: str, source: Sequence[Said], before: str) -> str:
    """The prose if it is worth keeping, else "": it must be shorter than what it stands for, and about it."""
    whole = "\n".join([before, *(message.text for message in source)])
    said = [part for message in source for part in (message.speaker, message.text)]
    text = told_of(clean_prose(prose), [before, *said])
    if not text or len(text) > _MAX_RATIO * len(whole):
        return ""
    wanted = items_of(whole)
    if not wanted:
        return text
    kept = sum(item in fold(text) for item in wanted)
    return text if kept >= _MIN_ITEMS * len(wanted) else ""


def told_of(text: str, source: Sequence[str]) -> str:
    """The lines that tell of the source: most of their words stand in it, and they are no mere phrase of it."""
    known = {term for one in source for term in terms(one)}
    phrases = phrases_of(_SPEAKER.sub("", one) for one in source)
    return "\n".join(line for line in text.splitlines() if _is_of(line, known, phrases))


def _is_of(line: str, known: set[str], phrases: frozenset[str]) -> bool:
    if all(fold(part) in phrases for part in split_sentences(_SPEAKER.sub("", line))):
        return False
    own = [term for term in terms(line) if term not in FUNCTION_WORDS]
    return sum(term in known for term in own) >= _MIN_KNOWN_TERMS * len(own)


def draft(
    prose: str,
    before: str,
    said: Sequence[Said],
    max_chars: int,
    cost: Callable[[str], float] = len,
) -> Draft:
    """The best summary of about `max_chars` (by `cost`, such as an estimate of tokens): `prose` (already accepted), then
    sentences by what they add that is not there yet."""
    sentences = _unique(weigh([*_old_lines(before), *((m.speaker, m.text) for m in said)]))
    have = _items_in(prose, sentences)
    if cost(prose) > max_chars or not _is_dense(prose, have, sentences, cost):
        prose, have = "", set()
    chosen = _choose(sentences, have, max_chars - cost(prose), cost)
    if not prose and not chosen:
        # Nothing but small talk: better that than a talk of which the prompt knows nothing.
        said_once = [replace(s, value=max(s.value, 1.0)) for s in sentences if s.value > 0]
        chosen = _choose(said_once, have, max_chars, cost)
    return Draft(prose, chosen)


def _is_dense(
    prose: str, have: set[str], sentences: Sequence[Sentence], cost: Callable[[str], float]
) -> bool:
    """Whether prose holds nearly what the talk's own sentences would in its room: a weak model's takes theirs away."""
    instead = _choose(sentences, set(), cost(prose), cost)
    items = {item for sentence in instead for item in sentence.items}
    return len(have) >= _MIN_OF_EXTRACT * len(items)


def _choose(
    sentences: Sequence[Sentence], have: set[str], room: float, cost: Callable[[str], float]
) -> tuple[Sentence, ...]:
    """The sentences that add the most to what is there, one after the other. What one adds only falls as others are
    chosen, so that it is looked at anew only when it comes first: a thousand turns take a moment, not minutes."""
    have, chosen = set(have), []
    costs = [cost(_line(sentence)) + 1 for sentence in sentences]
    heap = [
        (-gain, n)
        for n, sentence in enumerate(sentences)
        if sentence.value > 0.5 and (gain := _gain(sentence, have, costs[n])) > 0
    ]
    heapq.heapify(heap)
    while heap:
        known, n = heapq.heappop(heap)
        if costs[n] > room:
            continue
        gain = _gain(sentences[n], have, costs[n])
        if gain < -known:
            if gain > 0:
                heapq.heappush(heap, (-gain, n))
            continue
        chosen.append(sentences[n])
        have |= sentences[n].items
        room -= costs[n]
    return tuple(chosen)


def shorter(this: Draft) -> Draft:
    """Without its least valuable sentence, or without its prose when nothing else is left."""
    if this.sentences:
        worst = min(this.sentences, key=lambda sentence: (sentence.value, sentence.order))
        return Draft(this.prose, tuple(s for s in this.sentences if s is not worst))
    return Draft(this.prose[: len(this.prose) // 2], ())


def _gain(sentence: Sentence, have: set[str], cost: float) -> float:
    new = len(sentence.items - have)
    share = new / len(sentence.items) if sentence.items else 0.6
    return sentence.value * share / math.sqrt(7 + cost)


def _line(sentence: Sentence) -> str:
    return f"- {sentence.speaker}: {sentence.text}" if sentence.speaker else f"- {sentence.text}"


def _old_lines(before: str) -> list[tuple[str, str]]:
    """The lines of an earlier summary as things that were said; a speaker's name in front is found again."""
    found = []
    for line in before.splitlines():
        text = _BULLET.sub("", line).strip()
        match = re.match(r"([^\s:：]{1,32}): (.+)", text) if line.lstrip().startswith("-") else None
        found.append((match.group(1), match.group(2)) if match else ("", text))
    return found


def _unique(sentences: Sequence[Sentence]) -> list[Sentence]:
    """Of sentences that say the same only the last."""
    last = {fold(sentence.text): sentence for sentence in sentences}
    return sorted(last.values(), key=lambda sentence: sentence.order)


def _items_in(prose: str, sentences: Sequence[Sentence]) -> set[str]:
    folded = fold(prose)
    return {item for sentence in sentences for item in sentence.items if item in folded}


def _loops(line: str) -> bool:
    """Whether a line repeats itself over and over, as small models do."""
    words = line.split() if " " in line else list(line)
    return len(words) > 24 and len(set(words)) * 4 < len(words)
