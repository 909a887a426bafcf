"""Events that are no message: a message taken back, the bot in a new chat, a chat that was opened, an answer that was judged.

Each is remembered by its dedupe key, so that what comes twice has its effect once.
"""

from __future__ import annotations

import structlog

from bot.domain.access import Role
from bot.domain.catalogue import say
from bot.domain.records import Acceptance, TurnDraft
from bot.domain.sessions import chat_key
from bot.domain.types import (
    AnswerRated,
    BotAdded,
    ChatEntered,
    ChatKind,
    Lane,
    MessageRecalled,
    Sender,
    TurnKind,
    TurnState,
)
from bot.platforms.base import PlatformAdapter, WebhookReply
from bot.service.access import Gate
from bot.service.commands import CommandExecutor
from bot.service.context import Context
from bot.service.conversation import forget_canonical

log = structlog.get_logger()


class Arrivals:
    """Used by the inbox alone. Every method raises StoreError when the event could not be stored."""

    def __init__(self, context: Context, gate: Gate, commands: CommandExecutor) -> None:
        self._context = context
        self._gate = gate
        self._commands = commands

    async def recalled(self, event: MessageRecalled) -> None:
        """Its answer ends in silence; other messages that became one question with it are answered without it. An answer
        that had ended is left out of later prompts, whatever else was in its question.

        The event is remembered last: a crash before that only repeats the rest.
        """
        store = self._context.store
        await store.unhear(event.app_id, message_id=event.message_id)
        taken = await store.take_back(event.app_id, event.message_id)
        if taken is not None and not taken.goes_on:
            turn = taken.turn
            if turn.state in {TurnState.QUEUED, TurnState.RUNNING}:
                await self._commands.cancel(turn.id, silent=True)
            else:
                await store.mark_replaced(turn.id)
                await forget_canonical(self._context, turn.session_id)
        accepted = await store.accept(Acceptance(event.app_id, event.dedupe_key, event.event_id))
        self._count("duplicate" if accepted.duplicate else "recalled")

    async def added(self, adapter: PlatformAdapter, event: BotAdded) -> None:
        """Greet a chat."""
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

    async def entered(
        self, bot_name: str, adapter: PlatformAdapter, event: ChatEntered
    ) -> WebhookReply | None:
        """Greet who may use the bot, once per event. Nothing is on record: a greeting that is lost is lost."""
        settings = self._context.settings
        accepted = await self._context.store.accept(
            Acceptance(event.app_id, event.dedupe_key, event.event_id)
        )
        self._count("duplicate" if accepted.duplicate else "entered")
        may = self._gate.role(bot_name, event.sender.user_id) in {Role.ADMIN, Role.MEMBER}
        if accepted.duplicate or not may or not settings.chat.greeting:
            return None
        text = say(settings.language, "greeting.direct", name=adapter.display_name)
        return await adapter.welcome(event.target, text)

    async def rated(self, bot_name: str, event: AnswerRated) -> None:
        """Count it."""
        accepted = await self._context.store.accept(
            Acceptance(event.app_id, event.dedupe_key, event.event_id)
        )
        self._count("duplicate" if accepted.duplicate else "rated")
        if not accepted.duplicate:
            self._context.metrics.ratings.labels(event.verdict).inc()
            log.info("answer_rated", bot=bot_name, verdict=event.verdict, reasons=event.reasons)

    def _count(self, what: str) -> None:
        self._context.metrics.accepted.labels(what).inc()
