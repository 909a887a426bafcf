"""A turn's prompt from the store's side: which turns belong to it, what was fixed earlier, what is remembered after.

The question is fixed (stored) when the turn first runs, so that a turn that is taken up again is shown to the model in the
very same words. Before the first token the session's canonical record names the fingerprint that the reply's ids belong
to: a reply is continued from stored ids only by the same model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bot.domain.catalogue import Language, say
from bot.domain.documents import Document, DocumentState, source_of
from bot.domain.prompt import (
    CannotFit,
    conversation_fingerprint,
    date_note,
    next_canonical,
    same_model,
    speaker_name,
    system_text,
    usable,
    user_text,
)
from bot.domain.quotes import quote_text
from bot.domain.records import Canonical, PastTurn, Summary
from bot.domain.sessions import is_shared
from bot.domain.turns import answering
from bot.domain.types import Attachment, ChatKind, Quoted, Turn
from bot.service.context import Context
from bot.service.docquotes import DocumentQuoter, Shown
from bot.service.documents import acknowledgement, file_name
from bot.service.listening import Overheard, Overhearing
from bot.service.longtext import PASTE_CHARS, edges, keep_paste, source_of_paste
from bot.service.prompting import (
    BuiltPrompt,
    PromptBuilder,
    PromptInput,
    messages_of,
    summary_messages,
)
from bot.service.recall import Recaller
from engine.errors import EngineError
from engine.face import Engine
from engine.types import ChatMessage, ModelInfo, Role


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt that was fixed. `continuable`: ids stored for this turn earlier may be continued under this prompt."""

    built: BuiltPrompt
    fingerprint: str
    model_fingerprint: str
    continuable: bool
    question_cut: bool
    cache_key: str
    # The ids of the cut answer that this turn goes on with.
    begun_ids: tuple[int, ...] = ()
    # The catalogue's key of what people are told once: older turns are no longer shown as they were said. From which on.
    note: str = ""
    told_from_turn_no: int = 0
    # Sentences about files: which parts were used, which could not be read.
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Begun:
    """The prompt of a cut answer, and the answer's ids."""

    built: BuiltPrompt
    ids: tuple[int, ...]


class Conversation:
    """The prompt and memory of one turn. Owned by its task."""

    def __init__(self, context: Context, turn: Turn, bot_name: str, engine: Engine) -> None:
        self._context = context
        self._turn = turn
        self._bot_name = bot_name
        self._engine = engine
        self._fixed = turn.prompt_text
        self._recaller = Recaller(context, engine)
        self._quoter = DocumentQuoter(context, engine)
        self._overhearing = Overhearing(context, engine)
        # What this turn refers to, and the files that came with it: set before `prepare`.
        self.quotes: tuple[Quoted, ...] = ()
        self.documents: tuple[Document, ...] = ()

    def files(self) -> tuple[Attachment, ...]:
        """What came with this turn and with what it refers to."""
        return (*self._turn.attachments, *(a for q in self.quotes for a in q.attachments))

    async def prepare(self, info: ModelInfo) -> Prepared:
        """The prompt for the loaded model. Raises CannotFit, EngineUnavailable."""
        chat, language = self._context.settings.chat, self._context.settings.language
        system = await session_system(self._context, self._turn, self._bot_name)
        summary = await self._context.store.summary(self._turn.session_id)
        fingerprint = conversation_fingerprint(
            info.fingerprint, system, summary.text if summary else ""
        )
        canonical = await self._context.store.canonical(self._turn.session_id)
        past = await self._past(canonical, summary)
        wanted = PromptInput(
            system=system,
            past=past,
            question=self._fixed,
            turn_no=self._turn.turn_no,
            fingerprint=fingerprint,
            canonical=canonical,
            max_new_tokens=chat.max_new_tokens,
            cut_marker=say(language, "prompt.cut"),
            summary=summary_pair(language, summary),
            own_system=not is_common(self._context, self._turn, self._bot_name, system),
        )
        builder = PromptBuilder(self._engine, info)
        fresh = not self._fixed
        await self._set_paste_aside(builder, wanted)
        begun = await self._begun(builder, wanted, info) if fresh else None
        heard = await self._overhearing.found(self._turn) if begun is None else Overheard()
        room = self._overhearing.room(heard, info)
        built = begun.built if begun else await self._build_beside(builder, wanted, info, room)
        shown = Shown()
        if begun is None:
            shown = await self._beside(builder.free_tokens(wanted, built), built, heard, info)
            built = await builder.with_extras(wanted, built, shown.lines)
        if canonical is None or canonical.fingerprint != fingerprint:
            await self._remember_fingerprint(canonical, fingerprint)
        known = canonical is not None and same_model(canonical.fingerprint, info.fingerprint)
        if self._turn.continues and fresh and begun is None:
            known = (
                False  # what there is of the reply went on with ids; it is asked for in words now
            )
        note, told_from = await self._note(past, summary, built)
        return Prepared(
            built=built,
            fingerprint=fingerprint,
            model_fingerprint=info.fingerprint,
            continuable=known and bool(built.plan.tokens),
            question_cut=wanted.cut_marker in self._fixed
            and wanted.cut_marker not in self._turn.question,
            cache_key=cache_key(self._turn.session_id, summary),
            begun_ids=begun.ids if begun else (),
            note=note,
            told_from_turn_no=told_from,
            notices=shown.notices,
        )

    async def remember(
        self, prepared: Prepared, answer_ids: tuple[int, ...], *, has_thinking: bool
    ) -> None:
        """After the answer: its ids and the canonical list for the next turn. Where the engine holds something that later
        prompts do not contain (thinking, recalled quotes), the rest is computed anew in the background.

        `answer_ids` of an answer that went on are those of the whole answer; its own are what was added.
        """
        store, turn = self._context.store, self._turn
        own_ids = answer_ids[len(prepared.begun_ids) :]
        if own_ids:
            n_question = prepared.built.plan.n_question
            await store.save_answer_tokens(turn.id, prepared.model_fingerprint, own_ids, n_question)
        if prepared.told_from_turn_no:
            await store.note_told_from(turn.session_id, prepared.told_from_turn_no)
        plan = prepared.built.plan
        canonical = next_canonical(plan, prepared.fingerprint, turn.turn_no, answer_ids)
        await store.save_canonical(turn.session_id, canonical)
        if canonical.token_ids and (plan.has_extras or has_thinking):
            await self._engine.warm(
                prepared.cache_key, self._turn.session.app_id, canonical.token_ids
            )

    # -- inside ------------------------------------------------------------------------------------------------------
    async def _set_paste_aside(self, builder: PromptBuilder, wanted: PromptInput) -> None:
        """A message longer than the window has room for becomes a text kept in pieces, and its edges stand for it."""
        turn, settings = self._turn, self._context.settings
        text = turn.question
        if turn.continues or len(text) < PASTE_CHARS or not settings.config.documents.enabled:
            return
        store, source = self._context.store, source_of_paste(text)
        if self._fixed:
            kept = None if text in self._fixed else await store.document(turn.session_id, source)
        elif await builder.question_fits(wanted, self._question(with_date=True)):
            kept = None
        else:
            kept = await keep_paste(self._context, turn, text)
        if kept is not None:
            self.documents = (*self.documents, kept)
            self._turn = replace(turn, question=edges(settings.language, text))

    def _names_speakers(self) -> bool:
        return is_shared(self._turn.session) and self._turn.chat_kind is ChatKind.GROUP

    async def _past(self, canonical: Canonical | None, summary: Summary | None) -> list[PastTurn]:
        first = first_verbatim(canonical, summary)
        past = await self._context.store.past_turns(self._turn.session_id, from_turn_no=first)
        return [turn for turn in usable(past) if turn.turn_no < self._turn.turn_no]

    async def _begun(
        self, builder: PromptBuilder, wanted: PromptInput, info: ModelInfo
    ) -> _Begun | None:
        """Where this turn goes on with the answer just before it: that answer's prompt and ids.

        Both turns then are one question and one answer for every later prompt and for the canonical list (two in what
        people read again, as they saw them): to the model nothing happened between. None where the ids are missing, are
        another model's, or no longer the end of the talk: then the model is asked in words, in a turn like any other.
        """
        last = wanted.past[-1] if wanted.past else None
        if last is None or last.last_turn_id != self._turn.continues or not self._turn.continues:
            return None
        ids = last.answer_token_ids
        if not ids or last.fingerprint != info.fingerprint:
            return None
        canonical = wanted.canonical
        wanted = replace(
            wanted,
            past=wanted.past[:-1],
            question=last.prompt_text,
            turn_no=last.turn_no,
            canonical=None,
            n_behind=len(ids),
        )
        if built := builder.before_answer(wanted, canonical, last):
            return _Begun(built, ids)
        try:
            built = await builder.build(wanted)
        except CannotFit:
            return None
        whole = built.question == last.prompt_text and bool(built.plan.tokens)
        return _Begun(built, ids) if whole and not built.plan.thinking_open else None

    async def _note(
        self, past: Sequence[PastTurn], summary: Summary | None, built: BuiltPrompt
    ) -> tuple[str, int]:
        """What people are to be told about older turns, once in a talk, and from which turn on all is shown."""
        first, note = 0, ""
        if summary is not None and summary.text:
            first, note = summary.covers_turn_no + 1, "note.summarized"
        if past and built.plan.first_turn_no > past[0].turn_no:
            first, note = built.plan.first_turn_no, "note.dropped"
        if not note:
            return "", 0
        session = await self._context.store.session(self._turn.session)
        if session.id != self._turn.session_id or session.told_from_turn_no:
            return "", 0
        return note, first

    async def _beside(
        self, free: int, built: BuiltPrompt, heard: Overheard, info: ModelInfo
    ) -> Shown:
        """What only this turn is shown: of files or of earlier turns, and the group's talk. Talk that is asked for comes
        first, else it takes what is left."""
        talk: tuple[str, ...] = ()
        if heard.asked:
            talk = await self._overhearing.lines(heard, free, info)
            free -= await self._count(talk)
        shown = await self._quoter.shown(self._turn, self.documents, free, info)
        lines = shown.lines or await self._recaller.quotes(
            self._turn, built.plan.first_turn_no, info
        )
        if not heard.asked:
            talk = await self._overhearing.lines(heard, free - await self._count(lines), info)
        return replace(shown, lines=(*talk, *lines))

    async def _count(self, lines: Sequence[str]) -> int:
        return await self._engine.count("\n".join(lines)) if lines else 0

    async def _build_beside(
        self, builder: PromptBuilder, wanted: PromptInput, info: ModelInfo, for_talk: int
    ) -> BuiltPrompt:
        """A prompt that leaves room for the files that came with the question and for talk that it asks about, where the
        window is large enough."""
        if room := max(self._quoter.room(self.documents, info), for_talk):
            try:
                return await self._build(builder, replace(wanted, room_tokens=room))
            except CannotFit:
                pass
        return await self._build(builder, wanted)

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
        read = {d.source: d for d in self.documents if d.state is DocumentState.READ}
        text = user_text(
            language,
            turn.question or (say(language, "prompt.quote_alone") if self.quotes else ""),
            speaker=speaker_name(language, turn.asker) if self._names_speakers() else "",
            date=date_note(language, now) if with_date else "",
            attachments=[a for a in turn.attachments if source_of(a) not in read],
            documents=[file_name(language, d, pages=True) for d in read.values()],
        )
        referred_to = quote_text(language, self.quotes)
        return f"{referred_to}\n\n{text}" if referred_to else text

    async def acknowledge(self) -> str:
        """The answer to files that came without a question; later prompts show both."""
        settings = self._context.settings
        if not self.documents:
            return say(settings.language, "hint.attachments")
        await self._context.store.fix_prompt(self._turn.id, self._question(with_date=False).strip())
        max_bytes = settings.config.documents.max_bytes
        return acknowledgement(settings.language, self.documents, max_bytes)

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


async def session_system(context: Context, turn: Turn, display_name: str) -> str:
    """The system message of a conversation: the configured text, and what was set for it alone."""
    own = await context.store.session_system(turn.session)
    return _system(context, turn, display_name, own)


def is_common(context: Context, turn: Turn, display_name: str, system: str) -> bool:
    """Whether a system message is everybody's: only then may its computed state be kept for everybody, beyond `/forget`."""
    return system == _system(context, turn, display_name, "")


def _system(context: Context, turn: Turn, display_name: str, own: str) -> str:
    settings = context.settings
    prompt = "\n".join(filter(None, [settings.chat.system_prompt.strip(), own]))
    shared = is_shared(turn.session) and turn.chat_kind is ChatKind.GROUP
    return system_text(settings.language, prompt, display_name, shared=shared)


async def warm_with(
    context: Context, turn: Turn, bot_name: str, question: str, answer: str
) -> None:
    """Have the talk computed with a turn that ends beside it, so that the next question need not wait for that.

    Not while somebody is answered in it: that turn's own state is the newer one.
    """
    engine, store = context.engines[context.model_of(bot_name)], context.store
    info = engine.info
    if info is None or answering(await store.unfinished_turns(turn.session_id)):
        return
    summary = await store.summary(turn.session_id)
    first = first_verbatim(await store.canonical(turn.session_id), summary)
    past = usable(await store.past_turns(turn.session_id, from_turn_no=first))
    name = context.adapters[bot_name].display_name
    messages = (
        ChatMessage(role=Role.SYSTEM, content=await session_system(context, turn, name)),
        *summary_messages(summary_pair(context.settings.language, summary)),
        *messages_of(past, info.fingerprint),
        ChatMessage(role=Role.USER, content=question),
        ChatMessage(role=Role.ASSISTANT, content=answer),
    )
    with contextlib.suppress(EngineError):  # the next turn computes it, then
        rendered = await engine.render(messages, add_generation_prompt=False)
        if rendered.token_ids and rendered.n_tokens <= info.n_ctx_tokens:
            tokens = rendered.token_ids[: rendered.tail_start]
            await engine.warm(cache_key(turn.session_id, summary), turn.session.app_id, tokens)


def summary_pair(language: Language, summary: Summary | None) -> tuple[str, str] | None:
    """A summary as the question and answer that stand for the turns it covers."""
    if summary is None or not summary.text:
        return None
    return say(language, "summary.given", text=summary.text), say(language, "summary.taken")


def first_verbatim(canonical: Canonical | None, summary: Summary | None) -> int:
    """The first turn that a prompt shows as it was said."""
    window = canonical.window_from_turn_no if canonical is not None else 0
    return max(window, summary.covers_turn_no + 1 if summary is not None else 0)


def cache_key(session_id: str, summary: Summary | None) -> str:
    """What the engine knows the conversation by. A new summary begins a new one, which is computed while the old still
    serves."""
    return f"{session_id}.{summary.rev}" if summary is not None else session_id


def cache_keys(session_id: str, summary: Summary | None) -> tuple[str, ...]:
    """Every key under which the engine may know something of a conversation: of every summary there was (a crash may have
    come before the engine was told that one is over), of one that is just written, of a few where none is on record."""
    rev = summary.rev if summary is not None else 2
    return (session_id, *(f"{session_id}.{n}" for n in range(1, max(rev, 2) + 2)))


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
