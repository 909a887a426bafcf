"""Builds the prompt of a turn: exact counts from the engine, arithmetic from `bot.domain.prompt`.

Holds no state: what must survive (the window's start, the canonical list, the fixed question) is in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bot.domain.prompt import (
    CannotFit,
    PromptPlan,
    covers,
    cut_middle,
    least_tokens,
    newest_that_may_fit,
    reserve_tokens,
    turns_to_keep,
)
from bot.domain.records import Canonical, PastTurn
from engine.face import Engine
from engine.types import ChatMessage, ModelInfo, Rendered, Role

# A question of which less than this many characters would be left is refused rather than cut.
MIN_QUESTION_CHARS = 16
# A system message that leaves fewer tokens than this leaves nobody room to ask anything.
ROOM_TO_ASK = 64


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
    # What stands for the turns before `past`: a question and an answer of its own, or nothing.
    summary: tuple[str, str] | None = None
    # Tokens that are kept free for what only this turn is shown: older turns give way to them.
    room_tokens: int = 0
    # Tokens that will stand between the prompt and the reply: an answer that goes on.
    n_behind: int = 0
    # The system message is this conversation's alone: what is computed of it goes when the conversation is forgotten.
    own_system: bool = False

    @property
    def n_head(self) -> int:
        """Messages before the past turns."""
        return 3 if self.summary else 1


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
        past, known = list(wanted.past), self._info.fingerprint
        canonical = wanted.canonical
        if canonical is not None and covers(canonical, wanted.fingerprint, past, wanted.n_head):
            built = await self._behind(wanted, canonical)
            plan = built.plan
            if plan.n_prompt_tokens <= limit:
                return built
            return await self._cut(wanted, past, (plan.boundaries, plan.n_prompt_tokens))
        # What counts stored earlier say cannot fit is not rendered only to see that.
        fits = least_tokens(past, known) <= limit
        past = past if fits else newest_that_may_fit(past, known, limit // 2)
        messages = self._messages(wanted, past, wanted.question)
        rendered = await self._engine.render(messages)
        if fits and rendered.n_tokens <= limit:
            ids = _Ids.rendered(rendered)
            return self._built(wanted, messages, rendered, ids, _first(past, wanted))
        return await self._cut(wanted, past, (rendered.starts, rendered.n_tokens))

    async def _behind(self, wanted: PromptInput, canonical: Canonical) -> BuiltPrompt:
        """The canonical list with the new question behind it: of the past only the last turn is rendered, to see how a
        question follows an answer. However long the talk is, a turn then costs its own tokens."""
        last = wanted.past[-1:]
        messages = self._messages(wanted, last, wanted.question)
        rendered = await self._engine.render(messages)
        ids = _Ids.behind(canonical, rendered)
        return self._built(wanted, messages, rendered, ids, _first(wanted.past, wanted))

    async def question_fits(self, wanted: PromptInput, question: str) -> bool:
        """Whether a question can be shown whole, if need be without any past turn. Raises EngineUnavailable."""
        rendered = await self._engine.render(self._messages(wanted, [], question))
        return rendered.n_tokens <= self._limit(wanted)

    def before_answer(
        self, wanted: PromptInput, canonical: Canonical | None, last: PastTurn
    ) -> BuiltPrompt | None:
        """The prompt of the newest answer (`wanted` is its question), as it stands in the canonical list.

        None when it does not stand there, or does not leave room to go on.
        """
        past = (*wanted.past, last)
        if canonical is None or not covers(canonical, wanted.fingerprint, past, wanted.n_head):
            return None
        n_prompt = len(canonical.token_ids) - len(last.answer_token_ids)
        tokens = canonical.token_ids[:n_prompt]
        if canonical.token_ids[n_prompt:] != last.answer_token_ids or n_prompt > self._limit(
            wanted
        ):
            return None
        room = self._info.n_ctx_tokens - n_prompt - wanted.n_behind
        plan = PromptPlan(
            tokens=tokens,
            n_prompt_tokens=n_prompt,
            max_new_tokens=min(wanted.max_new_tokens, room),
            first_turn_no=canonical.window_from_turn_no,
            boundaries=canonical.boundaries[:-1],
            n_shared_prefix=0 if wanted.own_system else canonical.boundaries[1],
            plain_tokens=tokens,
        )
        return BuiltPrompt(plan, (), wanted.question)

    def free_tokens(self, wanted: PromptInput, built: BuiltPrompt) -> int:
        """What is left beside a prompt and its reply."""
        return max(0, self._limit(wanted) - built.plan.n_prompt_tokens)

    async def with_extras(
        self, wanted: PromptInput, built: BuiltPrompt, lines: Sequence[str]
    ) -> BuiltPrompt:
        """The same prompt with what only this turn is shown before its question: a heading and what stands under it.

        From the last line on what does not fit is left out. Raises EngineUnavailable.
        """
        limit = self._limit(wanted)
        plan = built.plan
        while len(lines) > 1:
            shown = "\n".join([*lines, "", built.question])
            messages = (*built.messages[:-1], ChatMessage(role=Role.USER, content=shown))
            rendered = await self._engine.render(messages)
            # Messages before the newest stay in the very ids that the engine has in its cache.
            newest = rendered.token_ids[rendered.starts[-1] :]
            tokens = (*plan.tokens[: plan.boundaries[-1]], *newest) if plan.tokens else ()
            n_prompt = len(tokens) or rendered.n_tokens
            if n_prompt <= limit:
                plan = replace(
                    plan,
                    tokens=tokens,
                    n_prompt_tokens=n_prompt,
                    max_new_tokens=min(wanted.max_new_tokens, self._info.n_ctx_tokens - n_prompt),
                )
                return BuiltPrompt(plan, messages, built.question)
            lines = lines[:-1]
        return built

    async def _cut(
        self, wanted: PromptInput, past: list[PastTurn], size: tuple[Sequence[int], int]
    ) -> BuiltPrompt:
        """Drop the oldest turns in one block down to half the budget; then, if need be, the question's middle.

        `size`: where the messages of a prompt with these turns start, and how many tokens it has.
        """
        limit = self._limit(wanted)
        starts, n_tokens = size
        kept = turns_to_keep(starts, n_tokens, limit // 2, wanted.n_head)
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
            start = rendered.starts[wanted.n_head]
            room = max(0, limit - start)
            size = max(1, rendered.n_tokens - start)
            keep_chars = min(int(keep_chars * 0.9), int(keep_chars * room / size * 0.95))
            if keep_chars < MIN_QUESTION_CHARS:
                return await self._without_summary(wanted, room)
            question = cut_middle(wanted.question, keep_chars, wanted.cut_marker)
            messages = self._messages(wanted, [], question)
            rendered = await self._engine.render(messages)
            if rendered.n_tokens <= limit:
                ids = _Ids.rendered(rendered)
                return self._built(wanted, messages, rendered, ids, wanted.turn_no)

    async def _without_summary(self, wanted: PromptInput, room: int) -> BuiltPrompt:
        """The last resort in a very small window. `room`: what the head leaves to the question."""
        if wanted.summary is None:
            raise CannotFit(system_fills=room < ROOM_TO_ASK)
        return await self.build(replace(wanted, summary=None, past=(), canonical=None))

    def _limit(self, wanted: PromptInput) -> int:
        n_ctx = self._info.n_ctx_tokens
        reserve = reserve_tokens(wanted.max_new_tokens, n_ctx)
        return n_ctx - reserve - wanted.room_tokens - wanted.n_behind

    def _messages(
        self, wanted: PromptInput, past: Sequence[PastTurn], question: str
    ) -> tuple[ChatMessage, ...]:
        return (
            ChatMessage(role=Role.SYSTEM, content=wanted.system),
            *summary_messages(wanted.summary),
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
            max_new_tokens=min(
                wanted.max_new_tokens, self._info.n_ctx_tokens - n_prompt - wanted.n_behind
            ),
            first_turn_no=first_turn_no,
            boundaries=ids.boundaries,
            n_shared_prefix=0
            if wanted.own_system or len(rendered.starts) < 2
            else rendered.starts[1],
            plain_tokens=ids.tokens,
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
    def behind(cls, canonical: Canonical, rendered: Rendered) -> _Ids:
        """The canonical list, and what was rendered behind its last answer."""
        tail = rendered.token_ids[rendered.tail_start :]
        start = len(canonical.token_ids) + rendered.starts[-1] - rendered.tail_start
        return cls((*canonical.token_ids, *tail), (*canonical.boundaries, start))


def summary_messages(summary: tuple[str, str] | None) -> tuple[ChatMessage, ...]:
    """A summary as a turn of its own: every chat template takes that, and the shared system message stays as it is."""
    if summary is None:
        return ()
    text, acknowledgement = summary
    return (
        ChatMessage(role=Role.USER, content=text),
        ChatMessage(role=Role.ASSISTANT, content=acknowledgement),
    )


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
