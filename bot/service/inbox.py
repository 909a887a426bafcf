"""The inbox: every verified event is stored before its delivery is acknowledged; what it makes is decided here.

A message becomes a question, a command, one polite notice, or nothing. Nothing here calls a platform on behalf of a
refused person.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from bot.domain.catalogue import say
from bot.domain.commands import Command, UnknownCommand, clean, parse_command
from bot.domain.records import Acceptance, Accepted, TurnDraft
from bot.domain.sessions import chat_key, session_key
from bot.domain.types import (
    BotAdded,
    ChatKind,
    InboundEvent,
    InboundMessage,
    Lane,
    MessageRecalled,
    Sender,
    SessionKey,
    TurnKind,
    TurnState,
    Unreadable,
)
from bot.platforms.base import PlatformAdapter, WebhookReply
from bot.service.access import Gate, Verdict
from bot.service.buttons import Buttons
from bot.service.commands import CommandExecutor
from bot.service.context import Context
from bot.service.conversation import forget_canonical

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a message turned out to be: a kind of turn with its question or fixed answer."""

    kind: TurnKind
    question: str
    answer: str = ""
    command: Command | None = None


class Inbox:
    """Takes events of every bot. State: only the gate's."""

    def __init__(
        self, context: Context, gate: Gate, commands: CommandExecutor, buttons: Buttons
    ) -> None:
        self._context = context
        self._gate = gate
        self._commands = commands
        self._buttons = buttons

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
                    await self._recalled(event)
                case BotAdded():
                    await self._added(adapter, event)
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
        if message.sender.is_bot or not self._is_addressed(bot_name, message):
            self._count("not_addressed")
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
        draft = await self._draft(bot_name, message, meaning)
        accepted = await self._store(message, draft, verdict)
        if accepted.duplicate:
            self._gate.undo(bot_name, message.sender.user_id, verdict)
            self._count("duplicate")
            return
        await self._begin(bot_name, adapter, message, meaning, accepted)

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
        for turn_id in accepted.interrupted:
            self._context.board.stop(turn_id)
            if self._context.board.get(turn_id) is None:
                self._context.signs.clear(turn_id)
        if meaning.kind is TurnKind.CHAT:
            self._context.signs.show(accepted.turn_id, adapter, message.target)
        if meaning.command is not None:
            await self._commands.at_once(accepted.turn_id, meaning.command, bot_name)
        self._context.work.set()

    def _is_addressed(self, bot_name: str, message: InboundMessage) -> bool:
        return _is_spoken_to(message) or self._context.settings.answers_all(bot_name)

    def _meaning(self, message: InboundMessage) -> _Meaning | None:
        text = clean(message.text)
        spoken_to = _is_spoken_to(message)
        command = parse_command(text)
        if isinstance(command, Command):
            return _Meaning(TurnKind.COMMAND, f"/{command.value}", command=command)
        if isinstance(command, UnknownCommand):
            return self._notice("hint.unknown_command", word=command.word) if spoken_to else None
        if not text:
            key = "hint.attachments" if message.attachments else "hint.empty"
            return self._notice(key) if spoken_to else None
        limit = self._context.settings.chat.max_question_chars
        if len(text) > limit:
            return self._notice("hint.too_long", n_chars=len(text), max_chars=limit)
        return _Meaning(TurnKind.CHAT, text)

    def _notice(self, key: str, **values: object) -> _Meaning:
        answer = say(self._context.settings.language, key, **values)
        return _Meaning(TurnKind.NOTICE, "", answer=answer)

    async def _draft(self, bot_name: str, message: InboundMessage, meaning: _Meaning) -> TurnDraft:
        is_chat = meaning.kind is TurnKind.CHAT
        return TurnDraft(
            session=await self._session(bot_name, message),
            kind=meaning.kind,
            lane=Lane.CHAT if is_chat else Lane.CONTROL,
            asker=message.sender,
            question=meaning.question,
            target=message.target,
            message_id=message.message_id,
            chat_kind=message.chat_kind,
            while_busy=self._context.settings.while_busy,
            answer=meaning.answer,
            attachments=message.attachments if is_chat else (),
        )

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

    # -- the rest ----------------------------------------------------------------------------------------------------
    async def _recalled(self, event: MessageRecalled) -> None:
        """Cancel silently first, then remember the event: a crash between the two only repeats the cancelling."""
        store = self._context.store
        turn = await store.turn_of_message(event.app_id, event.message_id)
        if turn is not None and turn.kind is TurnKind.CHAT:
            if turn.state in {TurnState.QUEUED, TurnState.RUNNING}:
                await self._commands.cancel(turn.id, silent=True)
            else:
                await store.mark_replaced(turn.id)
                await forget_canonical(self._context, turn.session_id)
        accepted = await store.accept(Acceptance(event.app_id, event.dedupe_key, event.event_id))
        self._count("duplicate" if accepted.duplicate else "recalled")

    async def _added(self, adapter: PlatformAdapter, event: BotAdded) -> None:
        settings = self._context.settings
        draft = TurnDraft(
            session=chat_key(event.app_id, event.chat_id),
            kind=TurnKind.NOTICE,
            lane=Lane.CONTROL,
            asker=Sender(user_id=""),
            question="",
            target=event.target,
            message_id="",
            chat_kind=ChatKind.GROUP,
            answer=say(settings.language, "greeting", name=adapter.display_name),
        )
        accepted = await self._context.store.accept(
            Acceptance(
                event.app_id,
                event.dedupe_key,
                event.event_id,
                draft if settings.chat.greeting else None,
            )
        )
        self._count("duplicate" if accepted.duplicate else "added")
        self._context.work.set()

    def _count(self, what: str) -> None:
        self._context.metrics.accepted.labels(what).inc()


def _is_spoken_to(message: InboundMessage) -> bool:
    """Said to the bot itself, so that it may answer with a hint or a refusal, not only when it has something to say."""
    return message.chat_kind is ChatKind.DIRECT or message.mentions_bot
