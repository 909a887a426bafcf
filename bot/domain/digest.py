"""A long text summarized in parts: which text is one part, what of a model's answer is worth keeping, what else stands for it.

Pure; counting and asking a model happen in `bot.service.digesting`. Positions are characters of the whole text; those of a talk
hold the turn's number, so that they stay the same when turns are added behind or taken out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bot.domain.documents import Piece, cut_pieces
from bot.domain.records import PastTurn
from bot.domain.summary import Said, clean_prose, draft, language_of, told_of
from bot.domain.weight import fold, items_of

# A part's summary is kept when it is so much shorter than the part ...
_MAX_RATIO = 0.7
# ... and, where both are in one language, at least this share of its words stands in the part.
_MIN_KNOWN_WORDS = 0.5
# ... and this share of its figures, names and codes stands in it, or one for so many tokens that it may have.
_MIN_ITEMS = 0.15
_TOKENS_PER_ITEM = 20
_MESSAGE = 1_000_000
_FIGURE = re.compile(r"\d[\d.,:/-]*\d|\d")
# The headings that its parts were given.
_HEADING = re.compile(
    r"^\s*(?:part|pages?)\s[\d, –-]+:\s*$|^\s*第\s?[\d, –-]+\s?(?:部分|页)[:：]\s*$",
    re.IGNORECASE | re.MULTILINE,
)
_WORD = re.compile(r"[^\W\d_]{4,}|[\u4e00-\u9fff]{2}|\d[\d.,:/-]*\d|\d")
_BULLET = re.compile(r"^\s*[-*•·]\s+")
_SENTENCE_END = re.compile(r"[。！？；!?;…]+[”’」』\"')\]]*|\.(?=\s|$)|\n")
# What small models say before they begin, and what asks the person back at the end.
_OPENING = re.compile(
    r"^(?:sure|certainly|of course|okay|ok|here(?: is|'s| are)|好的|当然|以下是)[^\n]{0,80}[:：\n]\s*", re.IGNORECASE
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DigestPart:
    """What one part came to. `n` counts from 1; `start` and `end` are positions; `document_id` 0 = the talk.

    `how`: "model" or "extract" (sentences taken over as they are).
    """

    n: int
    document_id: int
    start: int
    end: int
    text: str
    how: str


@dataclass(frozen=True, slots=True)
class Part:
    """Pieces that are read at once."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return joined(self.pieces)

    @property
    def start(self) -> int:
        """Where it begins."""
        return self.pieces[0].start_chars

    @property
    def end(self) -> int:
        """Where it ends."""
        return end_of(self.pieces[-1])


def end_of(piece: Piece) -> int:
    """The position behind a piece."""
    return piece.start_chars + len(piece.text)


def joined(pieces: Iterable[Piece]) -> str:
    """Pieces as one text; those of another page or message begin a line."""
    texts: list[str] = []
    last = -1
    for piece in pieces:
        if texts and not texts[-1].endswith("\n") and piece.start_chars != last:
            texts.append("\n")
        texts.append(piece.text)
        last = end_of(piece)
    return "".join(texts).strip("\n")


def talk_pieces(turns: Sequence[PastTurn], bot_name: str) -> tuple[Piece, ...]:
    """A talk as pieces, with who said it in front of each message."""
    pieces: list[Piece] = []
    for turn in turns:
        asker = turn.asker.name or turn.asker.user_id[-4:]
        question = turn.prompt_text.removeprefix(f"[{asker}] ")
        for is_answer, who, said in ((0, asker, question), (1, bot_name, turn.answer)):
            place = (2 * turn.turn_no + is_answer) * _MESSAGE
            for piece in cut_pieces([f"{who}: {said.strip()}\n"], numbered=False):
                pieces.append(replace(piece, n=len(pieces), start_chars=place + piece.start_chars))
    return tuple(pieces)


def halves(piece: Piece) -> tuple[Piece, Piece]:
    """A piece that is too large by itself as two."""
    middle = max(1, len(piece.text) // 2)
    second = replace(piece, start_chars=piece.start_chars + middle, text=piece.text[middle:])
    return replace(piece, text=piece.text[:middle]), second


def whole_sentences(text: str) -> str:
    """A text that was cut off, up to its last whole sentence; "" when it has none."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]].rstrip() if ends else ""


def worth_keeping(
    text: str, source: str, max_tokens: int, *, was_cut: bool, may_be_long: bool = False
) -> str:
    """A model's summary of `source` made tidy, or "" when it is none: empty, as long as the text, about something else, or
    without the figures and names that one of `max_tokens` has room for.

    `may_be_long`: the source is made of summaries already, which a whole one need not be shorter than.
    """
    if was_cut:
        text = whole_sentences(text)
    text = _HEADING.sub("", _OPENING.sub("", text.strip()))
    text = clean_prose(text, keep_bullets=True)
    if language_of([text], "en") == language_of([source], "en"):
        text = told_of(text, source.splitlines())
    if not text or (len(text) > _MAX_RATIO * len(source) and not may_be_long):
        return ""
    return text if _is_about(text, source, max_tokens) else ""


def _is_about(text: str, source: str, max_tokens: int) -> bool:
    if language_of([text], "en") != language_of([source], "en"):
        # A summary in the chat's language of a text in another one: figures are what they have in common.
        wanted = frozenset(_FIGURE.findall(source))
        return sum(item in text for item in wanted) >= _needed(wanted, max_tokens) / 2
    words, wanted = _words(text), items_of(source)
    if len(words & _words(source)) < _MIN_KNOWN_WORDS * len(words):
        return False
    folded = fold(text)
    return sum(item in folded for item in wanted) >= _needed(wanted, max_tokens)


def _needed(wanted: frozenset[str], max_tokens: int) -> float:
    """Of the items of a text: a share, but no more than a summary of that size can hold beside its words."""
    return min(_MIN_ITEMS * len(wanted), max_tokens / _TOKENS_PER_ITEM)


def extract(source: str, max_tokens: int, cost: Callable[[str], float]) -> str:
    """The sentences of a text that say the most, word for word, in at most about `max_tokens` by `cost`; "" for no text."""
    lines = [Said("", _BULLET.sub("", line)) for line in source.splitlines()]
    found = draft("", "", lines, max_tokens, cost)
    return found.text() or _begin(source, max_tokens, cost)


def _begin(source: str, max_tokens: int, cost: Callable[[str], float]) -> str:
    """Where no sentence is worth more than another (a table, a list of words): the beginning."""
    text = source.strip()
    while text and cost(text) > max_tokens:
        text = text[: len(text) * 3 // 4].rstrip()
    return text


def _words(text: str) -> set[str]:
    return {match.group().casefold() for match in _WORD.finditer(text)}
