"""Files that people send, as text: which ones can be read, the pieces they are kept in, which pieces bear on a question. Pure."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from bot.domain.recall import find_terms, parse
from bot.domain.segment import fold
from bot.domain.types import Attachment

PIECE_CHARS = 500
MAX_NAME_CHARS = 60

_READABLE = frozenset(
    re.findall(
        r"\w+",
        """
        txt text md markdown rst log csv tsv json jsonl ndjson yaml yml toml ini cfg conf properties env xml html htm css scss
        sql py pyi ipynb js mjs cjs ts tsx jsx vue java kt kts scala groovy gradle c h cc cpp cxx hpp cs go rs rb php pl lua r
        swift m mm dart sh bash zsh ps1 bat cmd diff patch tex bib srt vtt proto graphql cmake pdf docx
        """,
    )
)
# Where a piece may end, the best first.
_BREAKS = (re.compile(r"\n\n"), re.compile(r"\n"), re.compile(r"[。！？；]|[.!?;](?=\s)"), re.compile(r"\s"))  # fmt: skip
_MENTIONS = re.compile(
    r"文件|文档|附件|报告|材料|这份|那份|全文|第\s*[0-9一二三四五六七八九十百]+\s*页"
    r"|\b(?:file|document|attachment|attached|pdf|docx|report|page|pages|summari[sz]e|summary)\b",
    re.IGNORECASE,
)
_ASKS_FOR_ALL = re.compile(
    r"总结|概括|摘要|归纳|主要内容|讲了(?:些)?什么|全文|summar(?:y|i[sz]e)|\btl;?dr\b|\bgist\b|main points",
    re.IGNORECASE,
)
_PAGE = re.compile(r"第\s*(\d{1,4})\s*页|\bpages?\s*(\d{1,4})\b", re.IGNORECASE)


class DocumentState(StrEnum):
    """What came of reading a file. Everything but READ has a sentence that says so (catalogue: document.<state>)."""

    READ = "read"
    TOO_BIG = "too_big"
    ENCRYPTED = "encrypted"
    NO_TEXT = "no_text"
    UNSUPPORTED = "unsupported"
    UNREADABLE = "unreadable"
    NOT_FETCHED = "not_fetched"


@dataclass(frozen=True, slots=True)
class Document:
    """A file as kept with its conversation. `id` is 0 until it is stored; `n_pages` 0 = it has none.

    `source` names the attachment (`source_of`); `turn_no` is the turn it came with. `is_cut`: only its beginning was read.
    """

    source: str
    name: str
    state: DocumentState
    turn_no: int
    n_pages: int = 0
    n_chars: int = 0
    n_pieces: int = 0
    is_cut: bool = False
    id: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A passage of a document, word for word. `start_chars` counts over the whole text; `page` from 1, 0 = no pages."""

    n: int
    start_chars: int
    page: int
    text: str


def source_of(attachment: Attachment) -> str:
    """Names an attachment for good, without holding its address or key."""
    return hashlib.sha256(attachment.remote_key.encode()).hexdigest()[:32]


def is_document(attachment: Attachment) -> bool:
    """Whether it is worth fetching: a file whose name says text, PDF or Word, or says nothing at all."""
    if attachment.kind != "file" or not attachment.remote_key:
        return False
    path = PurePosixPath(attachment.name.strip().lower())
    suffix = path.suffix.lstrip(".")
    return not suffix or suffix in _READABLE


def shown_name(name: str) -> str:
    """A file's name that cannot pass for markup or run on for ever; its ending stays."""
    kept = "".join(" " if char.isspace() else char for char in name)
    kept = "".join(
        char
        for char in kept
        if unicodedata.category(char)[0] != "C" and char not in '[]<>{}【】|`*“”"'
    )
    kept = " ".join(kept.split())
    return kept if len(kept) <= MAX_NAME_CHARS else f"{kept[: MAX_NAME_CHARS - 11]}…{kept[-10:]}"


# -- pieces --------------------------------------------------------------------------------------------------------------
def cut_pieces(pages: Sequence[str], *, numbered: bool) -> tuple[Piece, ...]:
    """A text in pieces that end where a paragraph, line or sentence does. No piece crosses a page."""
    pieces: list[Piece] = []
    offset = 0
    for page, text in enumerate(pages, start=1):
        start = 0
        while start < len(text):
            end = _end_of(text, start)
            if text[start:end].strip():
                pieces.append(
                    Piece(len(pieces), offset + start, page if numbered else 0, text[start:end])
                )
            start = end
        offset += len(text) + 1
    return tuple(pieces)


def _end_of(text: str, start: int) -> int:
    limit = start + PIECE_CHARS
    if len(text) <= limit:
        return len(text)
    least = start + PIECE_CHARS // 2
    for place in _BREAKS:
        ends = [match.end() for match in place.finditer(text, least, limit)]
        if ends:
            return ends[-1]
    return limit


# -- which of them -------------------------------------------------------------------------------------------------------
def speaks_of_document(question: str) -> bool:
    """Whether a question says that it is about a file."""
    return bool(_MENTIONS.search(question))


def asks_for_all(question: str) -> bool:
    """Whether a question is about a text as a whole, which passages of it cannot answer."""
    return bool(_ASKS_FOR_ALL.search(question))


def scores(question: str, pieces: Sequence[Piece]) -> list[float]:
    """How much of what a question asks about stands in each piece: 0 = nothing, 1 = every word; rare words count more."""
    query = parse(question)
    found = [find_terms(fold(piece.text), query.terms) for piece in pieces]
    counts = Counter(term for places in found for term in places)
    worth = {
        term: query.priors[term] * math.log(1 + (len(pieces) - counts[term] + 0.5) / (counts[term] + 0.5))
        for term in query.terms
    }  # fmt: skip
    whole = sum(worth.values()) or 1.0
    pages = {int(a or b) for a, b in _PAGE.findall(question)}
    return [
        sum(worth[term] for term in places) / whole + (1.0 if piece.page in pages else 0.0)
        for piece, places in zip(pieces, found, strict=True)
    ]


def order_of_use(pieces: Sequence[Piece], score: Sequence[float]) -> list[int]:
    """Indices in the order in which room is given: the head, then what bears on the question, then on from the head."""
    best = sorted((n for n in range(len(pieces)) if score[n] > 0), key=lambda n: (-score[n], n))
    return list(dict.fromkeys([*([0] if pieces else []), *best, *range(len(pieces))]))


def ranges(pages: Iterable[int]) -> str:
    """Page numbers as people write them: "1, 3–4"."""
    runs: list[list[int]] = []
    for page in sorted(set(pages)):
        if runs and page == runs[-1][1] + 1:
            runs[-1][1] = page
        else:
            runs.append([page, page])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
