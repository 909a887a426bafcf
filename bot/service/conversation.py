"""A turn's prompt from the store's side: which turns belong to it, what was fixed earlier, what is remembered after.

The question is fixed (stored) when the turn first runs, so that a turn that is taken up again is shown to the model in the
very same words. Before the first token the session's canonical record names the fingerprint that the reply's ids belong
to: a reply is continued from stored ids only by the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bot.domain.catalogue import Language, say
from bot.domain.prompt import (
    conversation_fingerprint,
    date_note,
    next_canonical,
    same_model,
    speaker_name,
    system_text,
    usable,
    user_text,
)
from bot.domain.records import Canonical, PastTurn
from bot.domain.sessions import is_shared
from bot.domain.types import ChatKind, Turn
from bot.service.context import Context
from bot.service.prompting import BuiltPrompt, PromptBuilder, PromptInput, messages_of
from engine.face import Engine
from engine.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt that was fixed. `continuable`: ids stored for this turn earlier may be continued under this prompt."""

    built: BuiltPrompt
    fingerprint: str
    model_fingerprint: str
    continuable: bool
    question_cut: bool


class Conversation:
    """The prompt and memory of one turn. Owned by its task."""

    def __init__(self, context: Context, turn: Turn, bot_name: str, engine: Engine) -> None:
        self._context = context
        self._turn = turn
        self._bot_name = bot_name
        self._engine = engine
        self._fixed = turn.prompt_text

    async def prepare(self, info: ModelInfo) -> Prepared:
        """The prompt for the loaded model. Raises CannotFit, EngineUnavailable."""
        chat, language = self._context.settings.chat, self._context.settings.language
        shared = self._names_speakers()
        system = system_text(language, chat.system_prompt, self._bot_name, shared=shared)
        fingerprint = conversation_fingerprint(info.fingerprint, system)
        canonical = await self._context.store.canonical(self._turn.session_id)
        past = await self._past(canonical)
        wanted = PromptInput(
            system=system,
            past=past,
            question=self._fixed,
            turn_no=self._turn.turn_no,
            fingerprint=fingerprint,
            canonical=canonical,
            max_new_tokens=chat.max_new_tokens,
            cut_marker=say(language, "prompt.cut"),
        )
        built = await self._build(PromptBuilder(self._engine, info), wanted)
        if canonical is None or canonical.fingerprint != fingerprint:
            await self._remember_fingerprint(canonical, fingerprint)
        known = canonical is not None and same_model(canonical.fingerprint, info.fingerprint)
        return Prepared(
            built=built,
            fingerprint=fingerprint,
            model_fingerprint=info.fingerprint,
            continuable=known and bool(built.plan.tokens),
            question_cut=wanted.cut_marker in self._fixed
            and wanted.cut_marker not in self._turn.question,
        )

    async def remember(self, prepared: Prepared, answer_ids: tuple[int, ...]) -> None:
        """After the answer: its ids and the canonical list for the next turn."""
        store, turn = self._context.store, self._turn
        if answer_ids:
            await store.save_answer_tokens(turn.id, prepared.model_fingerprint, answer_ids)
        plan = prepared.built.plan
        canonical = next_canonical(plan, prepared.fingerprint, turn.turn_no, answer_ids)
        await store.save_canonical(turn.session_id, canonical)

    # -- inside ------------------------------------------------------------------------------------------------------
    def _names_speakers(self) -> bool:
        return is_shared(self._turn.session) and self._turn.chat_kind is ChatKind.GROUP

    async def _past(self, canonical: Canonical | None) -> list[PastTurn]:
        first = canonical.window_from_turn_no if canonical is not None else 0
        past = await self._context.store.past_turns(self._turn.session_id, from_turn_no=first)
        return [turn for turn in usable(past) if turn.turn_no < self._turn.turn_no]

    async def _build(self, builder: PromptBuilder, wanted: PromptInput) -> BuiltPrompt:
        if self._fixed:
            return await builder.build(wanted)
        date = await self._new_date()
        built = await builder.build(replace(wanted, question=self._question(with_date=bool(date))))
        cut = bool(wanted.past) and built.plan.first_turn_no > wanted.past[0].turn_no
        if cut and not date and self._context.settings.chat.show_date:
            # The turn that told the date may be among those cut: tell it again.
            date = self._today()
            built = await builder.build(replace(wanted, question=self._question(with_date=True)))
        self._fixed = built.question
        await self._context.store.fix_prompt(self._turn.id, built.question, noted_date=date)
        return built

    def _question(self, *, with_date: bool) -> str:
        settings, turn = self._context.settings, self._turn
        language: Language = settings.language
        now = self._context.clock.now().astimezone(settings.zone)
        return user_text(
            language,
            turn.question,
            speaker=speaker_name(language, turn.asker) if self._names_speakers() else "",
            date=date_note(language, now) if with_date else "",
            attachments=turn.attachments,
        )

    def _today(self) -> str:
        return self._context.clock.now().astimezone(self._context.settings.zone).date().isoformat()

    async def _new_date(self) -> str:
        """Today, when the model of this conversation has not been told it yet."""
        if not self._context.settings.chat.show_date:
            return ""
        session = await self._context.store.session(self._turn.session)
        told = session.noted_date if session.id == self._turn.session_id else ""
        today = self._today()
        return "" if told == today else today

    async def _remember_fingerprint(self, canonical: Canonical | None, fingerprint: str) -> None:
        window = canonical.window_from_turn_no if canonical is not None else 0
        covers = canonical.covers_turn_no if canonical is not None else 0
        await self._context.store.save_canonical(
            self._turn.session_id, Canonical(fingerprint, (), (), window, covers)
        )


async def forget_canonical(context: Context, session_id: str) -> None:
    """A past turn is left out from now on: the list must be made anew; the window stays where it is."""
    canonical = await context.store.canonical(session_id)
    if canonical is not None:
        await context.store.save_canonical(
            session_id, replace(canonical, token_ids=(), boundaries=(), covers_turn_no=0)
        )


async def tokens_used(engine: Engine, canonical: Canonical | None, past: Sequence[PastTurn]) -> int:
    """What a conversation fills of its window now. Counted anew where no canonical list is kept. Raises EngineError."""
    if canonical is not None and canonical.token_ids:
        return len(canonical.token_ids)
    first = canonical.window_from_turn_no if canonical is not None else 0
    kept = [turn for turn in usable(past) if turn.turn_no >= first]
    if not kept:
        return 0
    rendered = await engine.render(messages_of(kept), add_generation_prompt=False)
    return rendered.n_tokens
