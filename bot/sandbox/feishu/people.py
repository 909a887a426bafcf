"""What people do: write, recall, click, add the bot. Each act changes the world and sends the event Feishu would send.

Owns nothing but the order of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from bot.sandbox.feishu import events
from bot.sandbox.feishu import world as w
from bot.sandbox.feishu.judge import visible_text
from bot.sandbox.records import Attempt, Push

if TYPE_CHECKING:
    from bot.sandbox.feishu.cardschema import Json
    from bot.sandbox.feishu.config import SandboxConfig
    from bot.sandbox.feishu.courier import Courier
    from bot.sandbox.feishu.world import Chat, Mention, Message, User, World


class SayOptions(TypedDict, total=False):
    """The rarer ways of writing.

    `reply_to`: a message (or its id) that is answered; inside a topic the new message joins it. `in_thread`: the answer
    opens a topic. `mentions`: people to @ ("@Name" in the text becomes the placeholder, else it is put in front).
    `mention_all`: @everybody. `message_type` with a dict as text: image, file, … `at_ms`: when it was written.
    `deliver`: push it or not, whatever the scope says.
    """

    reply_to: Message | str
    in_thread: bool
    mentions: Sequence[User]
    mention_all: bool
    message_type: str
    at_ms: int
    deliver: bool


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message a person wrote, and how its event fared (`push` is None when the scope withheld it)."""

    message: Message
    push: Push | None

    @property
    def id(self) -> str:
        """message_id."""
        return self.message.id

    @property
    def chat(self) -> Chat:
        """Where it was written."""
        return self.message.chat

    @property
    def event_id(self) -> str:
        """ "" when it was not pushed."""
        return self.push.event_id if self.push else ""

    @property
    def acked(self) -> bool:
        """The bot answered 200 in time."""
        return self.push is not None and self.push.acked

    @property
    def attempts(self) -> list[Attempt]:
        """Every POST so far."""
        return self.push.attempts if self.push else []


class People:
    """The acts of people."""

    def __init__(self, config: SandboxConfig, world: World, courier: Courier) -> None:
        self._config = config
        self._world = world
        self._courier = courier

    async def say(
        self, chat: Chat, user: User, text: str | Json, mention_bot: bool, options: SayOptions
    ) -> SentMessage:
        """Write a message; its event is pushed when the scope allows."""
        message = self._compose(chat, user, text, options)
        self._mention(message, mention_bot, options)
        self._world.add_message(message)
        if not options.get("deliver", self._is_pushed(message)):
            return SentMessage(message, None)
        event = events.message_received(self._config, message)
        return SentMessage(
            message, await self._courier.push(self._envelope("im.message.receive_v1", event))
        )

    async def recall(self, message: Message) -> Push:
        """Take a message back."""
        message.recalled = True
        message.updated_ms = self._world.now_ms()
        self._world.tell("message", message)
        event = events.message_recalled(message, self._world.now_ms())
        return await self._courier.push(self._envelope("im.message.recalled_v1", event))

    async def membership(self, chat: Chat, operator: User, *, added: bool) -> Push:
        """The bot joins or leaves a group."""
        chat.has_bot = added
        name = "im.chat.member.bot.added_v1" if added else "im.chat.member.bot.deleted_v1"
        return await self._courier.push(
            self._envelope(name, events.bot_membership(self._config, chat, operator))
        )

    async def redeliver(self, push: Push, *, new_event_id: bool) -> Push:
        """The same event once more: a duplicate after a 200, or the same message under a new event_id."""
        payload = push.payload
        if new_event_id:
            key = "uuid" if "uuid" in payload else "header"
            fresh = events.new_event_id()
            payload = {
                **payload,
                key: fresh if key == "uuid" else {**payload["header"], "event_id": fresh},
            }
        return await self._courier.push(payload, retry=False)

    def _envelope(self, name: str, event: Json) -> Json:
        return events.envelope(self._config, name, event)

    def _compose(self, chat: Chat, user: User, text: str | Json, options: SayOptions) -> Message:
        kind = options.get("message_type", "text" if isinstance(text, str) else "post")
        content = {"text": text} if isinstance(text, str) else dict(text)
        at_ms = options.get("at_ms", self._world.now_ms())
        message = w.Message(w.new_message_id(), chat, user, at_ms, kind, content)
        target = options.get("reply_to")
        parent = self._world.messages[target] if isinstance(target, str) else target
        if parent is not None:
            if options.get("in_thread") and not parent.thread_id:
                parent.thread_id = w.new_thread_id()
            message.thread_id = parent.thread_id
            message.root_id = parent.root_id or parent.id
            message.parent_id = message.root_id if parent.thread_id else parent.id
        elif chat.kind == "topic":
            message.thread_id = w.new_thread_id()
        return message

    def _mention(self, message: Message, mention_bot: bool, options: SayOptions) -> None:
        wanted = list(options.get("mentions", ()))
        bot = self._world.bot
        if mention_bot and message.chat.kind != "p2p" and bot not in wanted:
            wanted.insert(0, bot)
        entries: list[Mention] = []
        for user in wanted:
            entries.append(w.Mention(f"@_user_{len(entries) + 1}", user, user.name))
        if options.get("mention_all"):
            entries.append(w.Mention("@_all", None, "所有人"))
        message.mentions = tuple(entries)
        if message.kind == "text":
            message.content["text"] = _with_placeholders(str(message.content["text"]), entries)
        elif message.kind == "post" and entries:
            nodes = [
                {"tag": "at", "user_id": e.key, "user_name": e.name, "style": []} for e in entries
            ]
            paragraphs = list(message.content.get("content", []))
            first = paragraphs[0] if paragraphs else []
            message.content["content"] = [[*nodes, *first], *paragraphs[1:]]

    def _is_pushed(self, message: Message) -> bool:
        if not message.chat.has_bot:
            return False
        granted = self._config.scopes
        if message.chat.kind == "p2p":
            return "im:message.p2p_msg:readonly" in granted
        mentioned = any(entry.user is self._world.bot for entry in message.mentions)
        if message.sender.bot:
            return mentioned and message.sender is not self._world.bot
        if self._config.group_messages == "all":
            return True
        return mentioned and "im:message.group_at_msg:readonly" in granted


def _with_placeholders(text: str, entries: Sequence[Mention]) -> str:
    front = ""
    for entry in entries:
        written = f"@{entry.name}"
        if written in text:
            text = text.replace(written, entry.key, 1)
        elif entry.key not in text:
            front += f"{entry.key} "
    return front + text


def named(message: Message) -> str:
    """The text of a message with its placeholders turned into names, longest placeholder first."""
    text = visible_text(message)
    for entry in sorted(message.mentions, key=lambda e: -len(e.key)):
        text = text.replace(entry.key, f"@{entry.name}")
    return text
