"""The inbox: every verified event is stored before its delivery is acknowledged; what it makes is decided here.

A message becomes a question, a command, one polite notice, or nothing. Nothing here calls a platform on behalf of a
refused person.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, timedelta

import structlog

from bot.domain.catalogue import say
from bot.domain.commands import Command, UnknownCommand, clean, command_text, parse_command
from bot.domain.records import Acceptance, Accepted, TurnDraft
from bot.domain.sessions import session_key
from bot.domain.types import (
    AnswerRated,
    BotAdded,
    ChatEntered,
    ChatKind,
    InboundEvent,
    InboundMessage,
    Lane,
    MessageRecalled,
    SessionKey,
    TurnKind,
    TurnState,
    Unreadable,
    WhileBusy,
)
from bot.platforms.base import PlatformAdapter, WebhookReply
from bot.service.access import Gate, Verdict
from bot.service.arrivals import Arrivals
from bot.service.buttons import Buttons
from bot.service.commands import CommandExecutor
from bot.service.context import Context
from bot.service.continuing import continuation
from bot.service.listening import Listening
from bot.service.pastes import LATE_AFTER_S, LATE_S, PART_CHARS

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a message turned out to be: a kind of turn with its question or fixed answer."""

    kind: TurnKind
    question: str
    answer: str = ""
    command: Command | None = None
    continues: str = ""
    lane: Lane = Lane.CHAT


class Inbox:
    """Takes events of every bot. State: only the gate's."""

    def __init__(
        self,
        context: Context,
        gate: Gate,
        commands: CommandExecutor,
        buttons: Buttons,
        listening: Listening,
    ) -> None:
        self._context = context
        self._gate = gate
        self._commands = commands
        self._buttons = buttons
        self._listening = listening
        self._arrivals = Arrivals(context, gate, commands)

    async def accept(
        self, bot_name: str, adapter: PlatformAdapter, events: tuple[InboundEvent, ...]
    ) -> WebhookReply | None:
        """Store what came in; returns after the commit. A toast for a pressed button, else None.

        Raises StoreError when an event could not be stored: it must then not be acknowledged.
        """
        reply: WebhookReply | None = None
        for event in events:
            match event:
                case InboundMessage():
                    await self._message(bot_name, adapter, event)
                case MessageRecalled():
                    await self._arrivals.recalled(event)
                case BotAdded():
                    await self._arrivals.added(adapter, event)
                case ChatEntered():
                    reply = await self._arrivals.entered(bot_name, adapter, event)
                case AnswerRated():
                    await self._arrivals.rated(bot_name, event)
                case Unreadable():
                    self._count("unreadable")
                    log.info("event_not_read", bot=bot_name, reason=event.reason)
                case _:
                    reply = await self._buttons.pressed(bot_name, adapter, event)
                    self._count("button")
        return reply

    # -- messages ----------------------------------------------------------------------------------------------------
    async def _message(
        self, bot_name: str, adapter: PlatformAdapter, message: InboundMessage
    ) -> None:
        if message.sender.is_bot or not (
            self._is_addressed(bot_name, message) or await self._goes_on_late(bot_name, message)
        ):
            heard = await self._listening.hear(bot_name, message)
            self._count("heard" if heard else "not_addressed")
            return
        meaning = self._meaning(message)
        if meaning is None:
            return
        counts = meaning.command is not Command.STOP
        verdict = self._gate.check(bot_name, message.sender.user_id, counts=counts)
        if verdict is not Verdict.PASS and not _is_spoken_to(message):
            self._count("refused")
            return
        match verdict:
            case Verdict.SILENCE:
                self._count("refused")
                return
            case Verdict.NOTICE_STRANGER:
                person = f"{bot_name}:{message.sender.user_id}"
                meaning = self._notice("refused.stranger", person=person)
            case Verdict.NOTICE_RATE:
                per_minute = self._context.settings.config.access.per_user_per_minute
                meaning = self._notice("refused.rate", per_minute=per_minute)
            case Verdict.DROP_RATE:
                await self._store(message, None, verdict)
                self._count("over_rate")
                return
            case Verdict.PASS:
                pass
        meaning, accepted = await self._put(bot_name, message, meaning, verdict)
        if accepted.duplicate:
            self._gate.undo(bot_name, message.sender.user_id, verdict)
            self._count("duplicate")
            return
        await self._begin(bot_name, adapter, message, meaning, accepted)

    async def _put(
        self, bot_name: str, message: InboundMessage, meaning: _Meaning, verdict: Verdict
    ) -> tuple[_Meaning, Accepted]:
        """Store a message that was let in. One that could not be stored comes again, and is judged anew then."""
        try:
            meaning, draft = await self._draft(bot_name, message, meaning)
            return meaning, await self._store(message, draft, verdict)
        except BaseException:  # a cancellation, too: a long connection waits for two seconds only
            self._gate.undo(bot_name, message.sender.user_id, verdict, unstored=True)
            raise

    async def _begin(
        self,
        bot_name: str,
        adapter: PlatformAdapter,
        message: InboundMessage,
        meaning: _Meaning,
        accepted: Accepted,
    ) -> None:
        """After the commit: everything from here on may be lost in a crash and is made up for by the dispatcher."""
        self._count("merged" if accepted.merged else meaning.kind.value)
        if meaning.kind is TurnKind.CHAT:
            self._context.pastes.note(message, self._hold_s(meaning), meaning.lane)
        for turn_id in accepted.interrupted:
            self._context.board.stop(turn_id)
            if self._context.board.get(turn_id) is None:
                self._context.signs.clear(turn_id)
        if meaning.kind is TurnKind.CHAT:
            self._context.signs.show(accepted.turn_id, adapter, message.target)
            self._context.documents.begin(accepted.turn_id, message, adapter)
        if meaning.command is not None:
            await self._commands.at_once(accepted.turn_id, meaning.command, bot_name)
        self._context.work.set()

    def _is_addressed(self, bot_name: str, message: InboundMessage) -> bool:
        """The further parts of a paste mention nobody: they belong to the first."""
        return (
            _is_spoken_to(message)
            or self._context.settings.answers_all(bot_name)
            or self._context.pastes.goes_on(message)
        )

    async def _goes_on_late(self, bot_name: str, message: InboundMessage) -> bool:
        """Whether a message is the next part of a paste that nobody waits for any more: it was kept from us by a crash or a
        slow database, and came again. Raises StoreError."""
        context = self._context
        window_s = context.settings.chat.paste_window_s
        late_s = (context.clock.now() - message.sent_at).total_seconds()
        if not window_s or late_s <= max(window_s, LATE_AFTER_S):
            return False
        until = message.sent_at + timedelta(seconds=LATE_S)
        last = await context.store.last_said(
            message.app_id, message.chat_id, message.sender.user_id, until
        )
        if last is None or (message.sent_at - last).total_seconds() > window_s + LATE_S:
            return False
        session = await context.store.session(await self._session(bot_name, message))
        turn = await context.store.last_chat_turn(session.id)
        is_theirs = turn is not None and turn.asker.user_id == message.sender.user_id
        return is_theirs and turn is not None and len(turn.question) >= PART_CHARS

    def _meaning(self, message: InboundMessage) -> _Meaning | None:
        text = clean(message.text)
        spoken_to = _is_spoken_to(message)
        command = parse_command(text)
        if isinstance(command, Command):
            return self._ordered(command, text)
        if isinstance(command, UnknownCommand) and not self._context.pastes.goes_on(message):
            return self._notice("hint.unknown_command", word=command.word) if spoken_to else None
        if not text:
            if not spoken_to:
                return None
            if self._context.documents.are_in(message) or message.quoted is not None:
                return _Meaning(TurnKind.CHAT, "")
            return self._notice(self._hint(message))
        return self._too_long(text) or _Meaning(TurnKind.CHAT, text)

    def _ordered(self, command: Command, text: str) -> _Meaning:
        """A command; a summary is a turn of the talk, made beside it."""
        question = command_text(command, text)
        if command is not Command.SUMMARY:
            return _Meaning(TurnKind.COMMAND, question, command=command)
        return self._too_long(text) or _Meaning(TurnKind.CHAT, question, lane=Lane.BACKGROUND)

    def _too_long(self, text: str) -> _Meaning | None:
        limit = self._context.settings.chat.max_question_chars
        if len(text) <= limit:
            return None
        return self._notice("hint.too_long", n_chars=len(text), max_chars=limit)

    def _hint(self, message: InboundMessage) -> str:
        if not message.attachments:
            return "hint.empty"
        reads = self._context.settings.config.documents.enabled
        return "hint.attachments_other" if reads else "hint.attachments"

    def _notice(self, key: str, **values: object) -> _Meaning:
        answer = say(self._context.settings.language, key, **values)
        return _Meaning(TurnKind.NOTICE, "", answer=answer)

    async def _draft(
        self, bot_name: str, message: InboundMessage, meaning: _Meaning
    ) -> tuple[_Meaning, TurnDraft]:
        """What is stored of a message: its meaning, or a notice where one more question is one too many."""
        session = await self._session(bot_name, message)
        if meaning.command is Command.CONTINUE:
            meaning = await self._continuation(session)
        elif meaning.command is Command.MISSED:
            meaning = await self._missed(bot_name, message)
        if meaning.lane is Lane.BACKGROUND and await self._is_digesting(session):
            meaning = self._notice("digest.running")
        if meaning.kind is TurnKind.CHAT and meaning.lane is Lane.CHAT and not meaning.continues:
            meaning = replace(meaning, lane=self._context.pastes.lane(message))
        draft = self._draft_of(session, message, meaning)
        if n_waiting := await self._n_too_many(bot_name, draft):
            meaning = self._notice("end.too_many_own", n=n_waiting)
            draft = self._draft_of(session, message, meaning)
        elif per_day := await self._used_up(bot_name, draft):
            meaning = self._notice("refused.day", per_day=per_day)
            draft = self._draft_of(session, message, meaning)
        return meaning, draft

    async def _used_up(self, bot_name: str, draft: TurnDraft) -> int:
        """The questions that somebody has a day, where they are used up; else 0. Counted in the store: a restart changes
        nothing, and midnight needs nobody who sets it back."""
        context, settings = self._context, self._context.settings
        limit, user_id = settings.config.access.per_user_per_day, draft.asker.user_id
        if not limit or draft.kind is not TurnKind.CHAT or self._gate.is_admin(bot_name, user_id):
            return 0
        today = context.clock.now().astimezone(settings.zone).replace(hour=0, minute=0, second=0, microsecond=0)  # fmt: skip
        n_asked = await context.store.n_asked(draft.session.app_id, user_id, today.astimezone(UTC))
        return limit if n_asked >= limit else 0

    async def _continuation(self, session: SessionKey) -> _Meaning:
        wanted = await continuation(self._context, session)
        if wanted is None:
            return self._notice("continue.nothing")
        return _Meaning(TurnKind.CHAT, wanted.question, continues=wanted.continues)

    async def _is_digesting(self, key: SessionKey) -> bool:
        session = await self._context.store.session(key)
        unfinished = await self._context.store.unfinished_turns(session.id)
        return any(turn.lane is Lane.BACKGROUND for turn in unfinished)

    async def _missed(self, bot_name: str, message: InboundMessage) -> _Meaning:
        """A question like any other: its words say that it is about the group's talk."""
        if not self._listening.is_on(bot_name, message):
            return self._notice("missed.off")
        place = (message.app_id, message.chat_id)
        now = self._context.clock.now()
        if not await self._listening.missed(bot_name, place, message.sender.user_id, now):
            return self._notice("missed.nothing")
        return _Meaning(TurnKind.CHAT, say(self._context.settings.language, "missed.ask"))

    def _draft_of(
        self, session: SessionKey, message: InboundMessage, meaning: _Meaning
    ) -> TurnDraft:
        is_chat = meaning.kind is TurnKind.CHAT
        is_question = is_chat and meaning.lane is Lane.CHAT and not meaning.continues
        return TurnDraft(
            session=session,
            kind=meaning.kind,
            lane=meaning.lane if is_chat else Lane.CONTROL,
            asker=message.sender,
            question=meaning.question,
            target=message.target,
            message_id=message.message_id,
            chat_kind=message.chat_kind,
            while_busy=self._context.settings.while_busy if is_question else WhileBusy.QUEUE,
            answer=meaning.answer,
            attachments=message.attachments if is_chat else (),
            continues=meaning.continues,
            quotes=(message.quoted,) if is_chat and message.quoted is not None else (),
            hold_s=self._hold_s(meaning),
            joins_paste=is_chat and not meaning.continues,
        )

    def _hold_s(self, meaning: _Meaning) -> float:
        """How long a question is held for what may be the rest of it."""
        long = meaning.kind is TurnKind.CHAT and len(meaning.question) >= PART_CHARS
        return self._context.settings.chat.paste_window_s if long and not meaning.continues else 0.0

    async def _n_too_many(self, bot_name: str, draft: TurnDraft) -> int:
        """How many questions of this person wait in the session already, where that is the most there may be; else 0.

        Only with `while_busy = "queue"`: otherwise a further message joins the one that waits, or ends it.
        """
        if draft.kind is not TurnKind.CHAT or draft.while_busy is not WhileBusy.QUEUE:
            return 0
        context = self._context
        session = await context.store.session(draft.session)
        n_waiting = sum(
            turn.state is TurnState.QUEUED and turn.asker.user_id == draft.asker.user_id
            for turn in await context.store.unfinished_turns(session.id)
        )
        model = context.settings.config.models[context.model_of(bot_name)]
        return n_waiting if n_waiting >= model.max_waiting_per_person else 0

    async def _session(self, bot_name: str, message: InboundMessage) -> SessionKey:
        """By the policy set for the chat, else the configured one (a change counts from the next message on)."""
        policy = None
        if message.chat_kind is ChatKind.GROUP:
            policy = await self._context.store.chat_policy(message.app_id, message.chat_id)
        if policy is None:
            policy = self._context.settings.policy(bot_name, message.chat_id)
        return session_key(message, policy)

    async def _store(
        self, message: InboundMessage, draft: TurnDraft | None, verdict: Verdict
    ) -> Accepted:
        key = message.dedupe_key
        if verdict is Verdict.NOTICE_STRANGER:
            # One notice a day, also across restarts; the message itself may be answered once its sender is allowed.
            today = self._context.clock.now().date().isoformat()
            key = f"stranger:{message.sender.user_id}:{today}"
        return await self._context.store.accept(
            Acceptance(message.app_id, key, message.event_id, draft)
        )

    def _count(self, what: str) -> None:
        self._context.metrics.accepted.labels(what).inc()


def _is_spoken_to(message: InboundMessage) -> bool:
    """Said to the bot itself, so that it may answer with a hint or a refusal, not only when it has something to say."""
    return message.chat_kind is ChatKind.DIRECT or message.mentions_bot
