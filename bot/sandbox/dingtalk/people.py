"""What people do: write, take back, send files. Each act changes the world and pushes what DingTalk would push.

Owns nothing but the order of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from bot.sandbox.dingtalk import events
from bot.sandbox.dingtalk import world as w
from bot.sandbox.records import Attempt, Push

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.config import SandboxConfig
    from bot.sandbox.dingtalk.courier import Courier
    from bot.sandbox.dingtalk.limits import RateLimits
    from bot.sandbox.dingtalk.world import Chat, Message, Session, User, World

Json = dict[str, Any]
_MENTIONABLE = frozenset({"text", "richText", "picture"})


class SayOptions(TypedDict, total=False):
    """The rarer ways of writing.

    `reply_to`: a message (or its id) that is quoted. `mentions`: further people. `message_type` with a dict as text:
    richText, picture, audio, video, file, … `at_ms`: when it was written. `deliver`: push it or not, whatever the rules
    say. `session_life_s`: how long its sessionWebhook lives. `foreign_webhook`: the sessionWebhook points to a host
    that is not DingTalk's (whoever posts there is caught). `extra`: fields that replace those of the push.
    """

    reply_to: Message | str
    mentions: Sequence[User]
    message_type: str
    at_ms: int
    deliver: bool
    session_life_s: float
    foreign_webhook: bool
    extra: Json


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message a person wrote, and how its push fared (`push` is None when it was not pushed)."""

    message: Message
    push: Push | None
    session: Session | None = None

    @property
    def id(self) -> str:
        """msgId."""
        return self.message.id

    @property
    def chat(self) -> Chat:
        """Where it was written."""
        return self.message.chat

    @property
    def acked(self) -> bool:
        """The bot acknowledged it in time."""
        return self.push is not None and self.push.acked

    @property
    def attempts(self) -> list[Attempt]:
        """Every delivery so far."""
        return self.push.attempts if self.push else []


class People:
    """The acts of people."""

    def __init__(
        self, config: SandboxConfig, world: World, courier: Courier, rates: RateLimits
    ) -> None:
        self._config = config
        self._world = world
        self._courier = courier
        self._rates = rates
        self.base_url = ""
        self.foreign_url = ""

    async def say(
        self, chat: Chat, user: User, text: str | Json, mention_bot: bool, options: SayOptions
    ) -> SentMessage:
        """Write a message; it is pushed when the rules allow (in groups only what @s the robot)."""
        message = self._compose(chat, user, text, mention_bot, options)
        self._world.add_message(message)
        if not options.get("deliver", self._is_pushed(message)):
            return SentMessage(message, None)
        spent = self._rates.messages_are_spent()
        life_s = options.get("session_life_s", self._config.limits.session_life_s)
        session = self._world.open_session(message, life_s)
        base = self.foreign_url if options.get("foreign_webhook") else self.base_url
        url = f"{base}/robot/sendBySession?session={session.token}"
        payload = events.robot_message(
            self._config, self._world, message, session, url, spent=spent
        )
        if self._config.pushes_count and not spent:
            self._rates.month_messages += 1
        push = await self._courier.push(payload | options.get("extra", {}))
        return SentMessage(message, push, session)

    def recall(self, message: Message) -> None:
        """Take a message back. The robot is not told."""
        message.recalled = True
        self._world.tell("message", message)

    async def redeliver(self, push: Push) -> Push:
        """The same message once more, as after an acknowledgement that came late."""
        return await self._courier.push(push.payload, retry=False)

    def _compose(
        self, chat: Chat, user: User, text: str | Json, mention_bot: bool, options: SayOptions
    ) -> Message:
        kind = options.get("message_type", "text" if isinstance(text, str) else "richText")
        content = {"text": text} if isinstance(text, str) else dict(text)
        target = options.get("reply_to")
        quoted = self._world.messages[target] if isinstance(target, str) else target
        mentions = [user for user in options.get("mentions", ()) if user is not self._world.bot]
        bot_named = self._world.bot in options.get("mentions", ())
        if chat.kind == "group" and (mention_bot or bot_named):
            mentions.insert(0, self._world.bot)
        return w.Message(
            w.new_message_id(), chat, user, options.get("at_ms", self._world.now_ms()), kind, content,
            quoted=quoted, mentions=tuple(mentions),
        )  # fmt: skip

    def _is_pushed(self, message: Message) -> bool:
        if not message.chat.has_bot or message.chat.dissolved:
            return False
        if message.chat.kind == "p2p":
            return True
        return self._world.bot in message.mentions and message.kind in _MENTIONABLE
