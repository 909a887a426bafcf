"""The buttons under a reply: stop, regenerate, continue, new topic. Only the asker or an admin may press; a toast says the rest."""

from __future__ import annotations

from bot.domain.access import Role
from bot.domain.catalogue import say
from bot.domain.commands import Command
from bot.domain.records import Acceptance, TurnDraft
from bot.domain.turns import is_terminal, may_control
from bot.domain.types import ButtonPressed, Lane, Sender, Turn, TurnKind
from bot.platforms.base import PlatformAdapter, WebhookReply
from bot.service.access import Gate, Verdict
from bot.service.commands import CommandExecutor
from bot.service.context import Context
from bot.service.continuing import continuation


class Buttons:
    """Answers presses. Holds no state: a repeated delivery finds the turn already stopped, asked again or renewed."""

    def __init__(self, context: Context, gate: Gate, commands: CommandExecutor) -> None:
        self._context = context
        self._gate = gate
        self._commands = commands

    async def pressed(
        self, bot_name: str, adapter: PlatformAdapter, event: ButtonPressed
    ) -> WebhookReply:
        """Do what the button says and answer with a toast; raises StoreError when it could not be stored."""
        key, kind = await self._press(bot_name, event)
        return adapter.button_reply(say(self._context.settings.language, key), kind=kind)

    async def _press(self, bot_name: str, event: ButtonPressed) -> tuple[str, str]:
        """The toast's key and kind."""
        role = self._gate.role(bot_name, event.operator_id)
        if role in {Role.DENIED, Role.STRANGER}:
            return "toast.refused", "error"
        turn = await self._context.store.turn(event.turn_id)
        if turn is None or turn.session.app_id != event.app_id:
            return "toast.gone", "warning"
        if not may_control(turn, event.operator_id, is_admin=role is Role.ADMIN):
            return "toast.not_yours", "warning"
        match event.action:
            case "stop":
                return await self._stop(turn)
            case "regenerate":
                return await self._regenerate(bot_name, turn, event)
            case "continue":
                return await self._continue(bot_name, turn, event)
            case "new_topic":
                return await self._new_topic(bot_name, turn, event)
            case _:
                return "toast.unknown", "warning"

    async def _stop(self, turn: Turn) -> tuple[str, str]:
        if is_terminal(turn.state) or not await self._commands.cancel(turn.id):
            return "toast.not_running", "info"
        return "toast.stopping", "info"

    async def _regenerate(self, bot_name: str, turn: Turn, event: ButtonPressed) -> tuple[str, str]:
        if turn.kind is not TurnKind.CHAT:
            return "toast.unknown", "warning"
        if not is_terminal(turn.state):
            return "toast.still_running", "warning"
        if self._gate.check(bot_name, event.operator_id, counts=True) is not Verdict.PASS:
            return "toast.rate", "warning"
        question = turn.target.reply_to or next(iter(turn.message_ids), "")
        await self._commands.ask_again(turn, event_id=event.event_id, message_id=question)
        return "toast.regenerating", "success"

    async def _continue(self, bot_name: str, turn: Turn, event: ButtonPressed) -> tuple[str, str]:
        """Once per answer: a second press finds it asked for already."""
        wanted = await continuation(self._context, turn.session)
        if wanted is None or wanted.continues != turn.id:
            return "toast.cannot_continue", "warning"
        if self._gate.check(bot_name, event.operator_id, counts=True) is not Verdict.PASS:
            return "toast.rate", "warning"
        draft = TurnDraft(
            session=turn.session,
            kind=TurnKind.CHAT,
            lane=Lane.CHAT,
            asker=turn.asker,
            question=wanted.question,
            target=turn.target,
            message_id="",
            chat_kind=turn.chat_kind,
            continues=turn.id,
        )
        await self._context.store.accept(
            Acceptance(event.app_id, f"continue:{turn.id}", event.event_id, draft)
        )
        self._context.work.set()
        return "toast.continuing", "success"

    async def _new_topic(self, bot_name: str, turn: Turn, event: ButtonPressed) -> tuple[str, str]:
        draft = TurnDraft(
            session=turn.session,
            kind=TurnKind.COMMAND,
            lane=Lane.CONTROL,
            asker=Sender(user_id=event.operator_id),
            question=f"/{Command.NEW.value}",
            target=turn.target,
            message_id="",
            chat_kind=turn.chat_kind,
        )
        accepted = await self._context.store.accept(
            Acceptance(event.app_id, event.dedupe_key, event.event_id, draft)
        )
        if not accepted.duplicate:
            await self._commands.at_once(accepted.turn_id, Command.NEW, bot_name)
            self._context.work.set()
        return "toast.new_topic", "success"
