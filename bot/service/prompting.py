"""Builds the prompt of a turn: exact counts from the engine, arithmetic from `bot.domain.prompt`.

Holds no state: what must survive (the window's start, the canonical list, the fixed question) is in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bot.domain.prompt import (
    CannotFit,
    PromptPlan,
    covers,
    cut_middle,
    reserve_tokens,
    turns_to_keep,
)
from bot.domain.records import Canonical, PastTurn
from engine.face import Engine
from engine.types import ChatMessage, ModelInfo, Rendered, Role

# A question of which less than this many characters would be left is refused rather than cut.
MIN_QUESTION_CHARS = 16


@dataclass(frozen=True, slots=True)
class PromptInput:
    """What a prompt is made of. `past` are the usable turns from the window's start on, oldest first."""

    system: str
    past: Sequence[PastTurn]
    question: str
    turn_no: int
    fingerprint: str
    canonical: Canonical | None
    max_new_tokens: int
    cut_marker: str


@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """A plan with the messages and the question it was made of (the question may have been cut)."""

    plan: PromptPlan
    messages: tuple[ChatMessage, ...]
    question: str


class PromptBuilder:
    """Makes prompts for one engine whose model is loaded."""

    def __init__(self, engine: Engine, info: ModelInfo) -> None:
        self._engine = engine
        self._info = info

    async def build(self, wanted: PromptInput) -> BuiltPrompt:
        """A prompt that leaves room for the reply. Raises CannotFit; EngineUnavailable while the model is away."""
        limit = self._limit(wanted)
        past = list(wanted.past)
        messages = self._messages(wanted, past, wanted.question)
        rendered = await self._engine.render(messages)
        ids = _Ids.of(wanted, rendered)
        if (len(ids.tokens) or rendered.n_tokens) <= limit:
            return self._built(wanted, messages, rendered, ids, _first(past, wanted))
        return await self._cut(wanted, rendered, limit)

    async def _cut(self, wanted: PromptInput, rendered: Rendered, limit: int) -> BuiltPrompt:
        """Drop the oldest turns in one block down to half the budget; then, if need be, the question's middle."""
        past = list(wanted.past)
        kept = turns_to_keep(rendered.starts, rendered.n_tokens, limit // 2)
        while True:
            past = past[len(past) - kept :]
            messages = self._messages(wanted, past, wanted.question)
            rendered = await self._engine.render(messages)
            if rendered.n_tokens <= limit:
                ids = _Ids.rendered(rendered)
                return self._built(wanted, messages, rendered, ids, _first(past, wanted))
            if not past:
                return await self._cut_question(wanted, rendered, limit)
            kept = len(past) - 1

    async def _cut_question(
        self, wanted: PromptInput, rendered: Rendered, limit: int
    ) -> BuiltPrompt:
        question = wanted.question
        keep_chars = len(question)
        while True:
            # The share of the question that has to go, and a little more; it shrinks with every round, so it ends.
            room = max(0, limit - rendered.starts[1])
            size = max(1, rendered.n_tokens - rendered.starts[1])
            keep_chars = min(int(keep_chars * 0.9), int(keep_chars * room / size * 0.95))
            if keep_chars < MIN_QUESTION_CHARS:
                raise CannotFit
            question = cut_middle(wanted.question, keep_chars, wanted.cut_marker)
            messages = self._messages(wanted, [], question)
            rendered = await self._engine.render(messages)
            if rendered.n_tokens <= limit:
                ids = _Ids.rendered(rendered)
                return self._built(wanted, messages, rendered, ids, wanted.turn_no)

    def _limit(self, wanted: PromptInput) -> int:
        n_ctx = self._info.n_ctx_tokens
        return n_ctx - reserve_tokens(wanted.max_new_tokens, n_ctx)

    def _messages(
        self, wanted: PromptInput, past: Sequence[PastTurn], question: str
    ) -> tuple[ChatMessage, ...]:
        return (
            ChatMessage(role=Role.SYSTEM, content=wanted.system),
            *messages_of(past, self._info.fingerprint),
            ChatMessage(role=Role.USER, content=question),
        )

    def _built(
        self,
        wanted: PromptInput,
        messages: tuple[ChatMessage, ...],
        rendered: Rendered,
        ids: _Ids,
        first_turn_no: int,
    ) -> BuiltPrompt:
        n_prompt = len(ids.tokens) or rendered.n_tokens
        plan = PromptPlan(
            tokens=ids.tokens,
            n_prompt_tokens=n_prompt,
            max_new_tokens=min(wanted.max_new_tokens, self._info.n_ctx_tokens - n_prompt),
            first_turn_no=first_turn_no,
            boundaries=ids.boundaries,
            n_shared_prefix=rendered.starts[1] if len(rendered.starts) > 1 else 0,
            thinking_open=rendered.thinking_open,
            exact=rendered.exact,
        )
        return BuiltPrompt(plan, messages, messages[-1].content)


@dataclass(frozen=True, slots=True)
class _Ids:
    """A prompt's ids and the offsets of its messages."""

    tokens: tuple[int, ...]
    boundaries: tuple[int, ...]

    @classmethod
    def rendered(cls, rendered: Rendered) -> _Ids:
        return cls(rendered.token_ids, rendered.starts)

    @classmethod
    def of(cls, wanted: PromptInput, rendered: Rendered) -> _Ids:
        """The canonical list and the new tail where the list covers the past, else what was rendered."""
        canonical = wanted.canonical
        if canonical is None or not covers(canonical, wanted.fingerprint, wanted.past):
            return cls.rendered(rendered)
        tail = rendered.token_ids[rendered.tail_start :]
        start = len(canonical.token_ids) + rendered.starts[-1] - rendered.tail_start
        return cls((*canonical.token_ids, *tail), (*canonical.boundaries, start))


def messages_of(past: Sequence[PastTurn], model_fingerprint: str = "") -> tuple[ChatMessage, ...]:
    """Past turns for the chat template; answers by their ids where these are the named model's own."""
    messages = []
    for turn in past:
        known = bool(model_fingerprint) and turn.fingerprint == model_fingerprint
        ids = turn.answer_token_ids if known else ()
        messages.append(ChatMessage(role=Role.USER, content=turn.prompt_text))
        messages.append(ChatMessage(role=Role.ASSISTANT, content=turn.answer, token_ids=ids))
    return tuple(messages)


def _first(past: Sequence[PastTurn], wanted: PromptInput) -> int:
    return past[0].turn_no if past else wanted.turn_no
