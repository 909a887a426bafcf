"""The people, chats, messages and cards of the played tenant. `World` holds them; everything else asks it.

No HTTP here, no rules of the API: those are in messages.py and cards.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bot.sandbox.clock import Clock
    from bot.sandbox.feishu.card import Card

ChatKind = Literal["group", "p2p", "topic"]
Listener = Callable[[str, Any], None]


@dataclass(slots=True, eq=False)
class User:
    """A person, or the bot. `id` is the open_id as this app sees it."""

    id: str
    name: str
    union_id: str
    user_id: str
    bot: bool = False
    blocked_bot: bool = False


@dataclass(slots=True, eq=False)
class Chat:
    """A group, a topic group or a direct chat with the bot."""

    id: str
    name: str
    kind: ChatKind
    members: list[User]
    has_bot: bool = True
    dissolved: bool = False
    muted: bool = False
    threads_allowed: bool = True


@dataclass(slots=True, eq=False)
class Reaction:
    """An emoji on a message."""

    id: str
    emoji: str
    operator: User
    at_ms: int


@dataclass(frozen=True, slots=True)
class Mention:
    """One entry of `mentions`: the placeholder in the text and who it is (None = everybody)."""

    key: str
    user: User | None
    name: str


@dataclass(slots=True, eq=False)
class Message:
    """A message as the platform holds it. `content` is the parsed content JSON; `card` is set for cards.

    `answers` is the message the bot named when it replied; `parent_id` says the same, except inside a topic, where the
    platform names the topic's root for all of them.
    """

    id: str
    chat: Chat
    sender: User
    at_ms: int
    kind: str
    content: dict[str, Any]
    updated_ms: int = 0
    answers: str = ""
    parent_id: str = ""
    root_id: str = ""
    thread_id: str = ""
    recalled: bool = False
    edits: int = 0
    card: Card | None = None
    mentions: tuple[Mention, ...] = ()
    reactions: list[Reaction] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Something a person uploaded. `key` goes into a message's content as file_key or image_key."""

    key: str
    name: str
    data: bytes


class World:
    """Holds every user, chat, message, file and card. Runs on the event loop's thread; tells listeners of each change."""

    def __init__(self, clock: Clock, bot_name: str, tenant_key: str) -> None:
        self.clock = clock
        self.tenant_key = tenant_key
        self.users: dict[str, User] = {}
        self.chats: dict[str, Chat] = {}
        self.messages: dict[str, Message] = {}
        self.cards: dict[str, Card] = {}
        self.files: dict[str, StoredFile] = {}
        self._any_id: dict[str, User] = {}
        self._by_chat: dict[str, list[Message]] = {}
        self._direct: dict[str, Chat] = {}
        self._listeners: list[Listener] = []
        self.bot = self.add_user(bot_name, bot=True)

    def listen(self, listener: Listener) -> None:
        """Call `listener(kind, thing)` after each change: kind is message, reaction or chat."""
        self._listeners.append(listener)

    def tell(self, kind: str, thing: Any) -> None:
        """Something changed."""
        for listener in self._listeners:
            listener(kind, thing)

    def now_ms(self) -> int:
        """The world's time."""
        return int(self.clock() * 1000)

    def add_user(self, name: str, *, bot: bool = False) -> User:
        """A new person."""
        user = User(
            f"ou_{secrets.token_hex(16)}",
            name,
            f"on_{secrets.token_hex(16)}",
            secrets.token_hex(4),
            bot,
        )
        self.users[user.id] = user
        for any_id in (user.id, user.union_id, user.user_id):
            self._any_id[any_id] = user
        return user

    def find_user(self, any_id: str) -> User | None:
        """By open_id, union_id or user_id."""
        return self._any_id.get(any_id)

    def add_chat(self, name: str, members: list[User], kind: ChatKind) -> Chat:
        """A new group (with the bot in it) or direct chat."""
        chat = Chat(f"oc_{secrets.token_hex(16)}", name, kind, list(members))
        chat.threads_allowed = kind != "p2p"
        self.chats[chat.id] = chat
        self._by_chat[chat.id] = []
        self.tell("chat", chat)
        return chat

    def direct_chat(self, user: User) -> Chat:
        """The one direct chat of a person with the bot; made on first use."""
        chat = self._direct.get(user.id)
        if chat is None:
            chat = self._direct[user.id] = self.add_chat(user.name, [user], "p2p")
        return chat

    def add_message(self, message: Message) -> Message:
        """Keep a new message."""
        message.updated_ms = message.updated_ms or message.at_ms
        self.messages[message.id] = message
        self._by_chat[message.chat.id].append(message)
        self.tell("message", message)
        return message

    def add_file(self, name: str, data: bytes, *, is_image: bool = False) -> StoredFile:
        """A new upload."""
        prefix = "img_v3" if is_image else "file_v3"
        stored = StoredFile(f"{prefix}_{secrets.token_hex(16)}", name, data)
        self.files[stored.key] = stored
        return stored

    def messages_of(self, chat: Chat) -> list[Message]:
        """Oldest first, recalled ones too."""
        return list(self._by_chat[chat.id])

    def replies_to(self, message: Message) -> Iterator[Message]:
        """The bot's messages that answer this one."""
        for other in self._by_chat[message.chat.id]:
            if other.sender is self.bot and other.answers == message.id:
                yield other


def new_message_id() -> str:
    """om_ and 32 hex digits."""
    return f"om_{secrets.token_hex(16)}"


def new_thread_id() -> str:
    """omt_ and 12 hex digits."""
    return f"omt_{secrets.token_hex(6)}"
