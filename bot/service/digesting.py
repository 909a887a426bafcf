"""Map and reduce: a text of any length through one model's window, part by part, then the parts' summaries through it.

Every request is counted by rendering it, has the lowest priority, and gives way to people between two steps of the engine.
Whatever a weak model returns there is a summary in the end: of what it wrote, or of the text's own sentences. Each pass over
summaries at least halves their number, so that it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import structlog

from bot.domain.catalogue import Language, say
from bot.domain.digest import Part, extract, halves, joined, worth_keeping
from bot.domain.documents import Piece
from bot.domain.prompt import CannotFit, reserve_tokens
from engine.errors import EngineUnavailable
from engine.face import Engine
from engine.types import (
    ChatMessage,
    Delta,
    EngineEvent,
    EngineRequest,
    Failed,
    Finished,
    FinishReason,
    Priority,
    Rendered,
    Role,
    Sampling,
)

log = structlog.get_logger()

# A model does better with some pages at a time, and a restart loses less; larger windows are not filled.
MOST_PART_TOKENS = 3000
MOST_NOTE_TOKENS = 256
# Longer texts are summarized as far as this goes, and people are told so.
MOST_PARTS = 64
READY_S = 600.0
_LEAST_ROOM = 48
_SAMPLING = Sampling(temperature=0.2, top_p=0.9, repeat_penalty=1.1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be summarized and how. `what` names the text, `wish` is the person's own ("" = none).

    `id` names the work for the engine, `owner` whose turn it takes there.
    """

    what: str
    wish: str
    language: Language
    max_new_tokens: int
    id: str
    owner: str


@dataclass(frozen=True, slots=True)
class Note:
    """What a part came to, under the heading that tells which part ("" = several)."""

    label: str
    text: str


class Digester:
    """Reads one text with one engine. Holds nothing but a number for its requests.

    Every method raises EngineUnavailable while the engine is away; the same call may then be made again.
    """

    def __init__(self, engine: Engine, wanted: Wanted) -> None:
        self._engine = engine
        self._wanted = wanted
        self._n_requests = 0

    async def parts(self, pieces: Sequence[Piece], most: int) -> list[Part]:
        """The text in parts of which each fits the window beside its instruction; at most `most` of them.

        Raises CannotFit for a window that is too small for anything.
        """
        window = await self._window()
        n_frame = (await self._rendered(self._part_text(""))).n_tokens
        room = min(self._room(window) - n_frame, MOST_PART_TOKENS)
        if room < _LEAST_ROOM:
            raise CannotFit
        left = [(piece, await self._engine.count(piece.text)) for piece in reversed(pieces)]
        parts: list[Part] = []
        while left and len(parts) < most:
            parts.append(await self._next_part(left, room, n_frame))
        return parts

    async def part(self, part: Part) -> tuple[str, str]:
        """What one part comes to, and how it was made."""
        window = await self._window()
        n_most = self._note_tokens(window)
        return await self._summarized(self._part_text(part.text), part.text, n_most)

    async def whole(self, part: Part) -> tuple[str, str]:
        """The summary of a text that is one part."""
        text = self._request_text(
            "digest.ask_whole", "digest.text", part.text, await self._n_final()
        )
        return await self._summarized(text, part.text, await self._n_final())

    async def together(self, notes: Sequence[Note]) -> tuple[str, str]:
        """One summary of the parts' summaries."""
        n_most = await self._n_final()
        window = await self._window()
        notes = list(notes)
        while True:
            text = self._request_text("digest.ask_joined", "digest.notes", _shown(notes), n_most)
            n_asked = (await self._rendered(text)).n_tokens
            if len(notes) == 1 or n_asked + n_most + _thinking(window) <= window:
                return await self._summarized(text, _said(notes), n_most, may_be_long=True)
            notes = await self._fewer(notes)

    # -- sizes -------------------------------------------------------------------------------------------------------
    async def _window(self) -> int:
        return (await self._engine.wait_ready(READY_S)).n_ctx_tokens

    def _note_tokens(self, window: int) -> int:
        """The longest summary of a part: so many that several of them fit the window."""
        return max(24, min(MOST_NOTE_TOKENS, window // 12))

    def _room(self, window: int) -> int:
        """For a part and its instruction."""
        return window - self._note_tokens(window) - _thinking(window)

    async def _n_final(self) -> int:
        return reserve_tokens(self._wanted.max_new_tokens, await self._window())

    async def _next_part(self, left: list[tuple[Piece, int]], room: int, n_frame: int) -> Part:
        """Take as many pieces from the end of `left` as fit by an exact count."""
        taken: list[tuple[Piece, int]] = []
        n_taken = 0
        while left and (not taken or n_taken + left[-1][1] <= room):
            piece, n_tokens = left.pop()
            if n_tokens > room and len(piece.text) > 1:
                if taken:
                    left.append((piece, n_tokens))
                    break
                first, second = halves(piece)
                left.append((second, await self._engine.count(second.text)))
                left.append((first, await self._engine.count(first.text)))
                continue
            taken.append((piece, n_tokens))
            n_taken += n_tokens
        while len(taken) > 1 and await self._overflows(taken, room + n_frame):
            left.append(taken.pop())
        return Part(tuple(piece for piece, _ in taken))

    async def _overflows(self, taken: Sequence[tuple[Piece, int]], limit: int) -> bool:
        text = joined(piece for piece, _ in taken)
        return (await self._rendered(self._part_text(text))).n_tokens > limit

    async def _fewer(self, notes: Sequence[Note]) -> list[Note]:
        """Summaries of neighbouring summaries: at most half as many."""
        window = await self._window()
        limit, n_most = self._room(window), self._note_tokens(window)
        fewer: list[Note] = []
        left = list(notes)
        while left:
            group = [left.pop(0)]
            while left:
                text = self._part_text(_shown([*group, left[0]]))
                if len(group) >= 2 and (await self._rendered(text)).n_tokens > limit:
                    break
                group.append(left.pop(0))
            asked = self._part_text(_shown(group))
            made, _ = await self._summarized(asked, _said(group), n_most, may_be_long=True)
            fewer.append(Note("", made))
        return fewer

    # -- words -------------------------------------------------------------------------------------------------------
    def _part_text(self, text: str) -> str:
        info = self._engine.info
        n_most = self._note_tokens(info.n_ctx_tokens) if info else MOST_NOTE_TOKENS
        return self._request_text("digest.ask_part", "digest.text", text, n_most)

    def _request_text(self, ask: str, heading: str, text: str, n_most: int) -> str:
        language, wanted = self._wanted.language, self._wanted
        lines = [say(language, ask, what=wanted.what, n=n_most // 2)]
        if wanted.wish:
            lines.append(say(language, "digest.wish", wish=wanted.wish))
        lines += ["", say(language, heading), text, "", say(language, "digest.now")]
        return "\n".join(lines)

    async def _rendered(self, text: str) -> Rendered:
        return await self._engine.render((ChatMessage(role=Role.USER, content=text),))

    # -- asking ------------------------------------------------------------------------------------------------------
    async def _summarized(
        self, asked: str, source: str, n_most: int, *, may_be_long: bool = False
    ) -> tuple[str, str]:
        """The model's summary where it is worth keeping, else the source's own best sentences. At most `n_most` tokens."""
        answer, was_cut = await self._ask(asked, n_most)
        text = worth_keeping(answer, source, n_most, was_cut=was_cut, may_be_long=may_be_long)
        if text:
            return text, "model"
        per_char = max(0.05, await self._engine.count(source) / max(1, len(source)))
        size = n_most
        while True:
            text = await asyncio.to_thread(extract, source, size, lambda t: len(t) * per_char)
            if await self._engine.count(text) <= n_most or size <= 1:
                return text, "extract"
            size = size * 3 // 4

    async def _ask(self, asked: str, n_most: int) -> tuple[str, bool]:
        """What the model answers without its thinking, and whether it was cut; "" where it cannot answer this at all."""
        info = await self._engine.wait_ready(READY_S)
        rendered = await self._rendered(asked)
        room = info.n_ctx_tokens - rendered.n_tokens
        if room < 1:
            return "", False
        self._n_requests += 1
        request = EngineRequest(
            id=f"{self._wanted.id}.{self._n_requests}",
            prompt_tokens=rendered.token_ids,
            messages=() if rendered.token_ids else (ChatMessage(role=Role.USER, content=asked),),
            max_new_tokens=min(n_most + _thinking(info.n_ctx_tokens), room),
            sampling=_SAMPLING,
            scope="summarizer",
            owner=self._wanted.owner,
            priority=Priority.BACKGROUND,
            thinking_open=rendered.thinking_open,
        )
        return await _collect(self._engine.submit(request), n_most)


def _shown(notes: Sequence[Note]) -> str:
    return "\n\n".join("\n".join(filter(None, [note.label, note.text])) for note in notes)


def _said(notes: Sequence[Note]) -> str:
    """What the notes say, without the labels, which no summary should take over."""
    return "\n".join(note.text for note in notes)


def _thinking(window: int) -> int:
    """Room for what a model thinks before it answers."""
    return window // 8


async def _collect(events: AsyncIterator[EngineEvent], n_most: int) -> tuple[str, bool]:
    """A request's text, ended after `n_most` tokens, and whether it was cut there.

    Raises EngineUnavailable where the same request may be sent again.
    """
    text: list[str] = []
    n_said = 0
    try:
        async for event in events:
            if isinstance(event, Delta) and event.text:
                text.append(event.text)
                n_said += len(event.token_ids)
                if n_said > n_most:
                    return "".join(text), True
            elif isinstance(event, Failed):
                log.info("digest_request_failed", code=event.code.value)
                if event.retryable:
                    raise EngineUnavailable(event.message)
                return "", False
            elif isinstance(event, Finished):
                return "".join(text), event.reason is FinishReason.LENGTH
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
    raise EngineUnavailable("the engine's stream ended without a terminal event")
