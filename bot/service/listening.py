"""Groups that are listened to: what people say there, not to the bot, is kept for a time and shown where it helps.

Off unless `[chat] listen` names the group; the group is told before anything is kept. Nothing is kept of bots, of people who
may not use the bot, and of people who said /ignore me; what was kept of them goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from bot.domain.access import Role
from bot.domain.catalogue import say
from bot.domain.commands import arguments_of
from bot.domain.listening import Heard, asks_what_was_missed, kept_text, listens
from bot.domain.prompt import speaker_name
from bot.domain.records import Acceptance, TurnDraft
from bot.domain.sessions import chat_key, policy_of
from bot.domain.types import (
    ChatKind,
    InboundMessage,
    Lane,
    ReplyTarget,
    Sender,
    SessionPolicy,
    Turn,
    TurnKind,
)
from bot.errors import StoreError
from bot.service.context import Context
from engine.face import Engine
from engine.types import ModelInfo

log = structlog.get_logger()

# Of the window: beside an ordinary question, and when somebody asks what was said (older turns give way to that).
ASIDE_SHARE = 0.15
ASKED_SHARE = 0.4
# A group that could not be told is told again at its first message after so long.
TELL_AGAIN_S = 3600.0
_MAY = {Role.ADMIN, Role.MEMBER}
_ME = {"", "me", "我"}
_OFF = {"off", "取消"}


class Listening:
    """Hears, forgets, and says what was heard. Owner: the service.

    State: the groups known to have been told, and until when nothing is kept of those that could not be.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: set[tuple[str, str]] = set()
        self._deaf_until_s: dict[tuple[str, str], float] = {}

    # -- hearing -----------------------------------------------------------------------------------------------------
    async def hear(self, bot_name: str, message: InboundMessage) -> bool:
        """Keep a message that was not said to the bot, where its group is listened to. Raises StoreError."""
        settings = self._context.settings
        if message.sender.is_bot or not self.is_on_in(bot_name, message.chat_kind, message.chat_id):
            return False
        if settings.access.role(bot_name, message.sender.user_id) not in _MAY:
            return False
        text = kept_text(settings.language, message.text, message.attachments)
        place = (message.app_id, message.chat_id)
        if not text or self._deaf_until_s.get(place, 0.0) > self._context.clock.monotonic():
            return False
        await self._tell(message)
        said = Heard(message.message_id, message.sender, text, message.sent_at)
        keep = settings.chat.listen_messages
        return await self._context.store.hear(message.app_id, message.chat_id, said, keep)

    def is_on_in(self, bot_name: str, kind: ChatKind, chat_id: str) -> bool:
        """Whether a chat is a group that is listened to."""
        return kind is ChatKind.GROUP and listens(
            self._context.settings.chat.listen, bot_name, chat_id
        )

    async def _tell(self, message: InboundMessage) -> None:
        """Say in the group that it is listened to: once, before anything is kept."""
        place = (message.app_id, message.chat_id)
        if place in self._told:
            return
        settings = self._context.settings
        opaque = {**message.target.opaque, "thread": ""}
        draft = TurnDraft(
            session=chat_key(*place),
            kind=TurnKind.NOTICE,
            lane=Lane.CONTROL,
            asker=Sender(user_id=""),
            question="",
            target=ReplyTarget(message.app_id, message.chat_id, "", opaque),
            message_id="",
            chat_kind=ChatKind.GROUP,
            answer=say(
                settings.language,
                "listen.told",
                n=settings.chat.listen_messages,
                hours=f"{settings.chat.listen_hours:g}",
            ),
        )
        now = self._context.clock.now().isoformat()
        told = Acceptance(message.app_id, f"listening:{message.chat_id}:{now}", "listening", draft)
        if await self._context.store.begin_listening(*place, told):
            log.info("listening_begun", app_id=message.app_id)
            self._context.work.set()
        self._told.add(place)

    async def untold(self, turn: Turn) -> None:
        """The bot may not speak in a group, so that it was not told: nothing is kept of it, and it is told later."""
        place = (turn.session.app_id, turn.session.chat_id)
        self._told.discard(place)
        self._deaf_until_s[place] = self._context.clock.monotonic() + TELL_AGAIN_S
        try:
            await self._context.store.end_listening(*place)
        except StoreError as error:
            log.warning("untold_talk_not_erased", error=str(error))
        log.info("listening_not_told", app_id=place[0])

    # -- what was heard ----------------------------------------------------------------------------------------------
    def is_on(self, bot_name: str, message: InboundMessage) -> bool:
        """Whether the group of a message is listened to."""
        return self.is_on_in(bot_name, message.chat_kind, message.chat_id)

    async def missed(
        self, bot_name: str, place: tuple[str, str], user_id: str, before: datetime
    ) -> list[Heard]:
        """What was said in a chat (app id, chat id) since a person's last word there, else all there is. Raises StoreError."""
        store = self._context.store
        last = await store.last_said(*place, user_id, before)
        everything = await self.heard(bot_name, place)
        return [one for one in everything if last is not None and one.said_at > last] or everything

    async def heard(self, bot_name: str, place: tuple[str, str]) -> list[Heard]:
        """What is kept of a chat and may still be shown, oldest first. Raises StoreError."""
        settings = self._context.settings
        since = self._context.clock.now() - timedelta(hours=settings.chat.listen_hours)
        found = await self._context.store.heard(*place, since, settings.chat.listen_messages)
        role = settings.access.role
        return [one for one in found if role(bot_name, one.sender.user_id) in _MAY]

    # -- what goes ---------------------------------------------------------------------------------------------------
    async def sweep(self) -> None:
        """Erase what is too old, of groups that are not listened to any more, and of people who lost access.

        Raises StoreError.
        """
        context = self._context
        chats = await context.store.chats_heard()
        if not chats:  # nothing is kept of a group that was not told
            return
        since = context.clock.now() - timedelta(hours=context.settings.chat.listen_hours)
        n_old = await context.store.prune_heard(since)
        for app_id, chat_id in chats:
            adapter = context.adapter_of(app_id)
            if adapter is None or not self.is_on_in(adapter.name, ChatKind.GROUP, chat_id):
                await context.store.end_listening(app_id, chat_id)
                self._told.discard((app_id, chat_id))
                log.info("listening_ended", app_id=app_id)
        for app_id, user_id in await context.store.people_heard():
            adapter = context.adapter_of(app_id)
            if adapter and context.settings.access.role(adapter.name, user_id) not in _MAY:
                await context.store.unhear(app_id, user_id=user_id)
        if n_old:
            log.info("heard_messages_expired", n=n_old)

    async def ignore(self, turn: Turn, _bot_name: str) -> str:
        """/ignore me: keep nothing of the person who says so, and erase what there is. /ignore off takes it back."""
        language = self._context.settings.language
        wanted = arguments_of(turn.question).casefold()
        if wanted in _OFF:
            await self._context.store.exclude(
                turn.session.app_id, turn.asker.user_id, excluded=False
            )
            return say(language, "ignore.off")
        if wanted not in _ME:
            return say(language, "ignore.usage")
        n = await self._context.store.exclude(
            turn.session.app_id, turn.asker.user_id, excluded=True
        )
        return say(language, "ignore.done", n=n)


@dataclass(frozen=True, slots=True)
class Overheard:
    """Messages to show with a question. `asked`: the question is about them."""

    messages: Sequence[Heard] = ()
    asked: bool = False


class Overhearing:
    """What one question is shown of its group's talk. Holds no state but its tools."""

    def __init__(self, context: Context, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._listening = Listening(context)

    async def found(self, turn: Turn) -> Overheard:
        """What bears on a turn: in a shared conversation the newest talk, and wherever it is asked for what was missed.

        A question never fails for want of it.
        """
        context = self._context
        place = (turn.session.app_id, turn.session.chat_id)
        adapter = context.adapter_of(turn.session.app_id)
        asked = asks_what_was_missed(turn.question)
        shared = policy_of(turn.session) is SessionPolicy.SHARED
        if adapter is None or turn.chat_kind is not ChatKind.GROUP or not (asked or shared):
            return Overheard()
        if not listens(context.settings.chat.listen, adapter.name, turn.session.chat_id):
            return Overheard()
        try:
            if asked:
                user_id = turn.asker.user_id
                messages = await self._listening.missed(
                    adapter.name, place, user_id, turn.created_at
                )
            else:
                messages = await self._listening.heard(adapter.name, place)
        except StoreError as error:
            log.warning("heard_messages_not_shown", error=str(error))
            return Overheard()
        return Overheard(messages, asked)

    def room(self, overheard: Overheard, info: ModelInfo) -> int:
        """Tokens to keep free for talk that is asked about."""
        n_chars = sum(len(one.text) + 24 for one in overheard.messages)
        return min(n_chars, int(ASKED_SHARE * info.n_ctx_tokens)) if overheard.asked else 0

    async def lines(
        self, overheard: Overheard, free_tokens: int, info: ModelInfo
    ) -> tuple[str, ...]:
        """A heading and the newest messages that fit, oldest first; nothing where none does. Raises EngineError."""
        if not overheard.messages:
            return ()
        share = ASKED_SHARE if overheard.asked else ASIDE_SHARE
        room = min(free_tokens, int(share * info.n_ctx_tokens))
        heading = say(self._context.settings.language, "listen.given")
        room -= await self._engine.count(f"{heading}\n")
        kept: list[str] = []
        for one in reversed(overheard.messages):
            line = self._line(one)
            room -= await self._engine.count(f"{line}\n")
            if room < 0:
                break
            kept.append(line)
        log.info("heard_messages_shown", n=len(kept), n_found=len(overheard.messages))
        return (heading, *reversed(kept)) if kept else ()

    def _line(self, said: Heard) -> str:
        settings = self._context.settings
        when = said.said_at.astimezone(settings.zone).strftime("%H:%M")
        who = speaker_name(settings.language, said.sender)
        text = " ".join(said.text.split())
        return say(settings.language, "listen.line", who=who, when=when, text=text)
