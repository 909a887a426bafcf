"""The people, chats and messages of the played company. `World` holds them; everything else asks it.

No HTTP here, no rules of the API.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bot.sandbox.clock import Clock

ChatKind = Literal["group", "single"]
Listener = Callable[[str, Any], None]


@dataclass(slots=True, eq=False)
class User:
    """A person, or the bot. `id` is the userid."""

    id: str
    name: str
    bot: bool = False


@dataclass(slots=True, eq=False)
class Chat:
    """A group, or the direct chat of one person with the bot, whose id is the userid. `spoken`: somebody wrote to the bot."""

    id: str
    name: str
    kind: ChatKind
    members: list[User]
    has_bot: bool = True
    spoken: bool = False


@dataclass(slots=True, eq=False)
class Message:
    """A message as people see it.

    `text` is Markdown (or plain text) as sent; `data` the payload by kind. `answers` is the msgid of the question; `linked`
    is False where WeCom knows no such link and the newest question of the chat was taken. `streaming`: more may come.
    `failed`: WeCom has put its own words about a failure there.
    """

    id: str
    chat: Chat
    sender: User
    at_ms: int
    kind: str
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    answers: str = ""
    linked: bool = True
    quote: Message | None = None
    streaming: bool = False
    failed: bool = False
    recalled: bool = False
    stream_id: str = ""
    updates: int = 0
    updated_ms: int = 0
    card: dict[str, Any] | None = None
    feedback_id: str = ""


class World:
    """Holds every user, chat and message. Runs on the event loop's thread; tells listeners of each change."""

    def __init__(self, clock: Clock, bot_name: str) -> None:
        self.clock = clock
        self.users: dict[str, User] = {}
        self.chats: dict[str, Chat] = {}
        self.messages: dict[str, Message] = {}
        self._by_chat: dict[str, list[Message]] = {}
        self._last_question: dict[str, Message] = {}
        self._listeners: list[Listener] = []
        self.bot = User("bot", bot_name, bot=True)

    def listen(self, listener: Listener) -> None:
        """Call `listener(kind, thing)` after each change: kind is message or chat."""
        self._listeners.append(listener)

    def tell(self, kind: str, thing: Any) -> None:
        """Something changed."""
        for listener in self._listeners:
            listener(kind, thing)

    def now_ms(self) -> int:
        """The world's time."""
        return int(self.clock() * 1000)

    def add_user(self, name: str, userid: str = "") -> User:
        """A new person."""
        user = User(userid or f"u{secrets.token_hex(6)}", name)
        self.users[user.id] = user
        return user

    def add_group(self, name: str, members: list[User]) -> Chat:
        """A new group with the bot in it. Its id is case-sensitive, as the real ones are."""
        return self._keep(Chat(f"wr{secrets.token_urlsafe(18)}Aa", name, "group", list(members)))

    def direct_chat(self, user: User) -> Chat:
        """The one direct chat of a person with the bot; made on first use."""
        chat = self.chats.get(user.id)
        return chat or self._keep(Chat(user.id, user.name, "single", [user]))

    def _keep(self, chat: Chat) -> Chat:
        self.chats[chat.id] = chat
        self._by_chat[chat.id] = []
        self.tell("chat", chat)
        return chat

    def add_message(self, message: Message) -> Message:
        """Keep a new message. One of the bot that answers nothing by name belongs to the newest question of its chat."""
        if message.sender is self.bot and not message.answers:
            question = self._last_question.get(message.chat.id)
            message.answers, message.linked = (question.id if question else ""), False
        elif message.sender is not self.bot:
            self._last_question[message.chat.id] = message
        message.updated_ms = message.at_ms
        self.messages[message.id] = message
        self._by_chat[message.chat.id].append(message)
        self.tell("message", message)
        return message

    def changed(self, message: Message) -> None:
        """A message has another face now."""
        message.updated_ms = self.now_ms()
        self.tell("message", message)

    def messages_of(self, chat: Chat) -> list[Message]:
        """Oldest first, recalled ones too."""
        return list(self._by_chat[chat.id])

    def replies_to(self, message: Message) -> list[Message]:
        """The bot's messages that answer this one."""
        return [
            other
            for other in self._by_chat[message.chat.id]
            if other.sender is self.bot and other.answers == message.id
        ]


def new_id() -> str:
    """An opaque id as WeCom's msgids look."""
    return secrets.token_urlsafe(18)


def new_number() -> str:
    """The 64-bit number of an app's message."""
    return str(7_000_000_000_000_000_000 + secrets.randbelow(1_000_000_000_000_000_000))
