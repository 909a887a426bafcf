"""What a question is shown of the conversation's files: the passages that bear on it, in the room that is left.

A file that came with the question, or just before it, or that the question speaks of, is shown from its beginning on and
with what fits the question best. Of any other file of the conversation only passages that clearly bear on the question are.
Passages are shown in this turn only, word for word, in the file's order; people are told which parts were used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from bot.domain.catalogue import say
from bot.domain.documents import (
    Document,
    DocumentState,
    Piece,
    asks_for_all,
    order_of_use,
    ranges,
    scores,
    speaks_of_document,
)
from bot.domain.types import Turn
from bot.errors import StoreError
from bot.service.context import Context
from bot.service.documents import file_name, why_not_read
from engine.face import Engine
from engine.types import ModelInfo

log = structlog.get_logger()

# Room that is kept for passages of a file that came with the question: older turns give way to it.
RESERVED_SHARE = 0.25
# Of a file that the question does not speak of: at least so much of the question in a passage, and so many at most.
MIN_SCORE = 0.34
MAX_ASIDE = 3
MAX_EARLIER = 5
# Headings, marks, and what joining texts costs.
_FRAME_TOKENS = 24
# A token holds at least this much text, roughly: what cannot fit is not counted one by one.
_MAX_CHARS_PER_TOKEN = 6


@dataclass(frozen=True, slots=True)
class Shown:
    """Lines to put before the question, and the sentences that tell people of it."""

    lines: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(slots=True)
class _Chosen:
    """The passages of one document that are shown."""

    document: Document
    pieces: list[Piece] = field(default_factory=list)
    is_focus: bool = True


class DocumentQuoter:
    """Chooses passages for one turn. Holds no state but its tools."""

    def __init__(self, context: Context, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._language = context.settings.language

    def room(self, own: Sequence[Document], info: ModelInfo) -> int:
        """Tokens to keep free for files that came with the question."""
        n_chars = sum(d.n_chars for d in own if d.state is DocumentState.READ)
        return min(n_chars, int(RESERVED_SHARE * info.n_ctx_tokens))

    async def shown(
        self, turn: Turn, own: Sequence[Document], free_tokens: int, info: ModelInfo
    ) -> Shown:
        """What to show of this turn's files and of the conversation's. Raises EngineError."""
        rules = self._context.settings.config.documents
        told = [why_not_read(self._language, d, rules.max_bytes) for d in own]
        notices = [sentence for sentence in told if sentence]
        if not rules.enabled:
            return Shown()
        focus = [d for d in own if d.state is DocumentState.READ]
        try:
            aside = [] if focus else await self._earlier(turn)
            if aside and self._speaks_of(turn, aside[0]):
                focus, aside = aside[:1], []
            room = min(free_tokens, int(rules.max_share * info.n_ctx_tokens))
            chosen = await self._choose(turn, focus or aside, room, is_focus=bool(focus))
        except StoreError as error:
            log.warning("documents_not_shown", error=str(error))
            return Shown(notices=tuple(notices))
        notices += [note for one in chosen if one.is_focus and (note := self._note(one))]
        in_parts = any(one.is_focus and len(one.pieces) < one.document.n_pieces for one in chosen)
        if in_parts and asks_for_all(turn.question):
            notices.append(say(self._language, "document.read_all"))
        lines = [line for one in chosen if one.pieces for line in self._lines(one)]
        log.info("documents_shown", n_pieces=sum(len(one.pieces) for one in chosen))
        return Shown(tuple(lines), tuple(notices))

    # -- which documents ---------------------------------------------------------------------------------------------
    async def _earlier(self, turn: Turn) -> list[Document]:
        """Files of earlier turns, the newest first."""
        found = await self._context.store.documents(turn.session_id)
        usable = [d for d in found if d.state is DocumentState.READ and d.turn_no < turn.turn_no]
        return usable[::-1][:MAX_EARLIER]

    def _speaks_of(self, turn: Turn, newest: Document) -> bool:
        return newest.turn_no >= turn.turn_no - 1 or speaks_of_document(turn.question)

    # -- which passages ----------------------------------------------------------------------------------------------
    async def _choose(
        self, turn: Turn, documents: Sequence[Document], room: int, *, is_focus: bool
    ) -> list[_Chosen]:
        chosen = []
        for n, document in enumerate(documents):
            share = room // (len(documents) - n) if is_focus else room // 2
            one, n_used = await self._of_document(turn, document, share, is_focus=is_focus)
            room -= n_used
            if is_focus or one.pieces:
                chosen.append(one)
        return chosen

    async def _of_document(
        self, turn: Turn, document: Document, room: int, *, is_focus: bool
    ) -> tuple[_Chosen, int]:
        """The best passages within a number of tokens, and how many they take."""
        pieces = await self._context.store.document_pieces(document.id)
        score = await asyncio.to_thread(scores, turn.question, pieces)
        order = order_of_use(pieces, score)
        if not is_focus:
            order = [n for n in order if score[n] >= MIN_SCORE][:MAX_ASIDE]
        taken: list[Piece] = []
        n_used = _FRAME_TOKENS
        for n in order:
            piece = pieces[n]
            left = room - n_used
            if left <= 0:
                break
            if len(piece.text) > left * _MAX_CHARS_PER_TOKEN:
                continue
            n_piece = await self._engine.count(self._mark(piece) + piece.text)
            if n_piece <= left:
                taken.append(piece)
                n_used += n_piece
            elif n_piece > 2 * left:
                break
        taken.sort(key=lambda piece: piece.n)
        return _Chosen(document, taken, is_focus), n_used if taken else 0

    # -- words -------------------------------------------------------------------------------------------------------
    def _mark(self, piece: Piece) -> str:
        if piece.page:
            return "\n" + say(self._language, "prompt.document_page", page=piece.page) + "\n"
        return "\n" + say(self._language, "prompt.document_gap") + "\n"

    def _lines(self, chosen: _Chosen) -> list[str]:
        language, document = self._language, chosen.document
        whole = len(chosen.pieces) == document.n_pieces
        part = "" if whole else say(language, "prompt.document_part")
        name = file_name(language, document, pages=True)
        lines = [say(language, "prompt.document", file=name, part=part)]
        for run in _runs(chosen.pieces):
            if run[0].page or run[0].n:
                lines.append(self._mark(run[0]).strip())
            lines.append("".join(piece.text for piece in run).strip("\n"))
        return [*lines, say(language, "prompt.document_end")]

    def _note(self, chosen: _Chosen) -> str:
        """Which parts were used, where it was not all of it."""
        language, document = self._language, chosen.document
        name = file_name(language, document)
        if not chosen.pieces:
            note = say(language, "document.no_room", file=name)
        elif len(chosen.pieces) == document.n_pieces:
            if not document.is_cut:
                return ""
            note = say(language, "document.is_cut", file=name, n_chars=document.n_chars)
        elif document.n_pages:
            pages = ranges(piece.page for piece in chosen.pieces)
            note = say(language, "document.used_pages", file=name, n=document.n_pages, pages=pages)
        else:
            n_chars = sum(len(piece.text) for piece in chosen.pieces)
            percent = max(1, min(99, round(100 * n_chars / max(1, document.n_chars))))
            note = say(language, "document.used_pieces", file=name, percent=percent)
        return note[:1].upper() + note[1:]


def _runs(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Passages that follow each other on one page are one text."""
    runs: list[list[Piece]] = []
    for piece in pieces:
        last = runs[-1][-1] if runs else None
        if last is not None and piece.n == last.n + 1 and piece.page == last.page:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs
