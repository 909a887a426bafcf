"""The people, chats, messages, sessions, files and cards of the played org. `World` holds them; everything else asks it.

No HTTP here, no rules of the API.
"""

from __future__ import annotations

import base64
import secrets
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bot.sandbox.clock import Clock
    from bot.sandbox.dingtalk.card import Card

ChatKind = Literal["group", "p2p"]
Listener = Callable[[str, Any], None]


@dataclass(slots=True, eq=False)
class User:
    """A person, or the bot. `id` is the encrypted senderId; `staff_id` is "" for people outside the org."""

    id: str
    name: str
    staff_id: str
    union_id: str
    bot: bool = False
    admin: bool = False
    flow_controlled: bool = False


@dataclass(slots=True, eq=False)
class Chat:
    """A group, or a person's direct chat with the robot. `id` is the (case-sensitive) conversationId."""

    id: str
    name: str
    kind: ChatKind
    members: list[User]
    has_bot: bool = True
    dissolved: bool = False


@dataclass(frozen=True, slots=True)
class Reaction:
    """An emotion of the robot on a message."""

    emoji: str
    operator: User


@dataclass(slots=True, eq=False)
class Message:
    """A message as people see it. `content` is the parsed content; `card` is set for cards.

    `answers` is the question: known for a sessionWebhook reply, else the newest question of the chat (of the mentioned
    person where a card names one) at the moment it was sent. `by` says how the bot sent it. `pinged` are the people
    whose phones rang. `query_key` is what recalls it.
    """

    id: str
    chat: Chat
    sender: User
    at_ms: int
    kind: str
    content: dict[str, Any]
    answers: str = ""
    by: Literal["", "session", "api", "card"] = ""
    quoted: Message | None = None
    mentions: tuple[User, ...] = ()
    at_all: bool = False
    pinged: tuple[User, ...] = ()
    query_key: str = ""
    recalled: bool = False
    card: Card | None = None
    reactions: list[Reaction] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Session:
    """What a sessionWebhook stands for."""

    token: str
    message: Message
    expires_ms: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Something a person sent. `code` is the downloadCode."""

    code: str
    name: str
    data: bytes


class World:
    """Holds everything. Runs on the event loop's thread; tells listeners of each change."""

    def __init__(self, clock: Clock, bot_name: str) -> None:
        self.clock = clock
        self.users: dict[str, User] = {}
        self.chats: dict[str, Chat] = {}
        self.messages: dict[str, Message] = {}
        self.cards: dict[str, Card] = {}
        self.sessions: dict[str, Session] = {}
        self.files: dict[str, StoredFile] = {}
        self.file_urls: dict[str, tuple[StoredFile, float]] = {}
        self._by_chat: dict[str, list[Message]] = {}
        self._by_staff: dict[str, User] = {}
        self._by_query_key: dict[str, list[Message]] = {}
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

    # -- people and chats --------------------------------------------------------------------------------------------
    def add_user(self, name: str, *, bot: bool = False, outside: bool = False) -> User:
        """A new person; `outside` the org has no staffId."""
        user = User(
            f"$:LWCP_v1:${base64.b64encode(secrets.token_bytes(18)).decode()}",
            name,
            "" if outside or bot else f"staff{secrets.randbelow(10**12):012d}",
            secrets.token_urlsafe(16),
            bot,
        )
        self.users[user.id] = user
        if user.staff_id:
            self._by_staff[user.staff_id] = user
        return user

    def find_staff(self, staff_id: str) -> User | None:
        """By staffId (the org's userId)."""
        return self._by_staff.get(staff_id)

    def find_any(self, any_id: str) -> User | None:
        """By staffId or senderId."""
        return self._by_staff.get(any_id) or self.users.get(any_id)

    def add_chat(self, name: str, members: list[User], kind: ChatKind) -> Chat:
        """A new group (with the bot in it) or direct chat."""
        chat = Chat(
            f"cid{base64.b64encode(secrets.token_bytes(16)).decode()}", name, kind, list(members)
        )
        self.chats[chat.id] = chat
        self._by_chat[chat.id] = []
        self.tell("chat", chat)
        return chat

    def direct_chat(self, user: User) -> Chat:
        """The one direct chat of a person with the robot; made on first use."""
        chat = self._direct.get(user.id)
        if chat is None:
            chat = self._direct[user.id] = self.add_chat(user.name, [user], "p2p")
        return chat

    # -- messages ----------------------------------------------------------------------------------------------------
    def add_message(self, message: Message) -> Message:
        """Keep a new message."""
        self.messages[message.id] = message
        self._by_chat[message.chat.id].append(message)
        if message.query_key:
            self._by_query_key.setdefault(message.query_key, []).append(message)
        self.tell("message", message)
        return message

    def messages_of(self, chat: Chat) -> list[Message]:
        """Oldest first, recalled ones too."""
        return list(self._by_chat[chat.id])

    def sent_under(self, query_key: str) -> list[Message]:
        """The messages one send made."""
        return list(self._by_query_key.get(query_key, ()))

    def replies_to(self, message: Message) -> Iterator[Message]:
        """The bot's messages that answer this one."""
        for other in self._by_chat[message.chat.id]:
            if other.sender is self.bot and other.answers == message.id:
                yield other

    def newest_question(self, chat: Chat, asker: User | None = None) -> Message | None:
        """The last message of a person that was meant for the bot."""
        for message in reversed(self._by_chat[chat.id]):
            meant = chat.kind == "p2p" or self.bot in message.mentions
            if not message.sender.bot and meant and asker in {None, message.sender}:
                return message
        return None

    # -- sessions and files ------------------------------------------------------------------------------------------
    def open_session(self, message: Message, life_s: float) -> Session:
        """A sessionWebhook for one message."""
        session = Session(secrets.token_hex(16), message, int((self.clock() + life_s) * 1000))
        self.sessions[session.token] = session
        return session

    def add_file(self, name: str, data: bytes) -> StoredFile:
        """A file that a message can carry."""
        stored = StoredFile(base64.b64encode(secrets.token_bytes(24)).decode(), name, data)
        self.files[stored.code] = stored
        return stored


def new_message_id() -> str:
    """A msgId."""
    return f"msg{base64.b64encode(secrets.token_bytes(15)).decode()}"


def new_query_key() -> str:
    """A processQueryKey (or a card's carrierId)."""
    return base64.b64encode(uuid.uuid4().bytes + secrets.token_bytes(8)).decode()
