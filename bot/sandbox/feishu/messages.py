"""im/v1/messages: send, reply, edit, patch, recall, read (feishu.md §4). Owns the uuids of the last hour."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from bot.sandbox.feishu import world as w
from bot.sandbox.feishu.card import Card
from bot.sandbox.feishu.content import parse_content, raw_card
from bot.sandbox.feishu.errors import ApiError, CardError

if TYPE_CHECKING:
    from bot.sandbox.feishu.cardkit import CardKit
    from bot.sandbox.feishu.cardschema import CardRules, Json
    from bot.sandbox.feishu.config import SandboxConfig
    from bot.sandbox.feishu.judge import Judge
    from bot.sandbox.feishu.limits import RateLimits
    from bot.sandbox.feishu.world import Chat, Mention, Message, User, World

_UUID_CHARS = 50
_ID_TYPES = frozenset({"open_id", "union_id", "user_id", "email", "chat_id"})
_TEXT_AT = re.compile(
    r"<at\s+user_id\s*=\s*[\"']?([^\"'>\s]+)[\"']?\s*>(.*?)</at>", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Rulebook:
    """What the calls need beside the world."""

    config: SandboxConfig
    judge: Judge
    rules: CardRules
    rates: RateLimits


class Messages:
    """The bot's side of the chat. Owner of the idempotency table."""

    def __init__(self, world: World, cardkit: CardKit, book: Rulebook) -> None:
        self._world = world
        self._cardkit = cardkit
        self._config = book.config
        self._judge = book.judge
        self._rules = book.rules
        self._rates = book.rates
        self._by_uuid: dict[str, tuple[float, Message, str]] = {}

    # -- calls -------------------------------------------------------------------------------------------------------
    def create(self, query: Json, body: Json) -> Json:
        """POST /messages?receive_id_type=…"""
        id_type, receive_id = query.get("receive_id_type"), body.get("receive_id")
        if id_type not in _ID_TYPES:
            raise ApiError(230001, "receive_id_type")
        if not isinstance(receive_id, str) or not receive_id:
            raise ApiError(230001, "receive_id is required")
        chat = self._chat(str(id_type), receive_id)
        return self._send(chat, body, lambda _message: None)

    def reply(self, message_id: str, body: Json) -> Json:
        """POST /messages/:id/reply. A reply to a topic's message always stays in the topic."""
        parent = self._world.messages.get(message_id)
        if parent is None:
            raise ApiError(230001, "message_id")
        in_thread = body.get("reply_in_thread", False)
        if not isinstance(in_thread, bool):
            raise ApiError(230001, "reply_in_thread must be a boolean")

        def place(message: Message) -> None:
            if parent.recalled:
                raise ApiError(230011)
            if in_thread and not parent.thread_id and not parent.chat.threads_allowed:
                raise ApiError(230071, "The group does not support reply in thread.")
            if in_thread and not parent.thread_id:
                parent.thread_id = w.new_thread_id()
            root = parent.root_id or parent.id
            message.answers = parent.id
            message.thread_id = parent.thread_id
            message.root_id = root
            message.parent_id = root if parent.thread_id else parent.id

        return self._send(parent.chat, body, place)

    def edit(self, message_id: str, body: Json) -> Json:
        """PUT /messages/:id: text and post only, 20 times (230072)."""
        if body.get("msg_type") not in {"text", "post"}:
            raise ApiError(230001, "msg_type must be text or post")
        message = self._own(message_id, 230071)
        if message.kind not in {"text", "post"}:
            raise ApiError(230054)
        kind, content = parse_content(body, self._config.limits)
        if message.edits >= self._config.limits.edits:
            raise ApiError(230072)
        message.edits += 1
        message.kind, message.content = kind, content
        self._look_at(message)
        return self._touched(message)

    def patch(self, message_id: str, body: Json) -> Json:
        """PATCH /messages/:id: a card sent as JSON; both old and new must state update_multi."""
        text = body.get("content")
        if not isinstance(text, str):
            raise ApiError(230001, "content must be a string")
        message = self._own(message_id, 230071)
        if message.card is None:
            raise ApiError(230001, "only a card can be patched")
        if message.card.id:
            self._judge.note("patch_of_card_entity", f"message {message_id}")
            raise ApiError(230001, "a card sent by card_id is updated by CardKit")
        if self._config.clock() * 1000 - message.at_ms >= self._config.limits.card_life_s * 1000:
            raise ApiError(230031)
        self._rates.check_patch(message_id)
        if len(text.encode()) > self._config.limits.card_bytes:
            raise ApiError(230025)
        try:
            data = msgspec.json.decode(text)
        except msgspec.DecodeError:
            raise CardError(200621).wrapped() from None
        if not isinstance(data, dict):
            raise CardError(200621).wrapped()
        raw_card(data, self._rules)
        for card in (message.card.data, data):
            if card.get("config", {}).get("update_multi") is not True:
                raise ApiError(230001, "config.update_multi must be true before and after")
        message.card.take(data, self._config.clock())
        message.content = data
        self._look_at(message)
        self._touched(message)
        return {}

    def recall(self, message_id: str) -> Json:
        """DELETE /messages/:id: the bot's own."""
        message = self._world.messages.get(message_id)
        if message is None:
            raise ApiError(230001, "message_id")
        if message.recalled:
            raise ApiError(230110)
        if message.sender is not self._world.bot:
            raise ApiError(230026)
        if self._config.clock() * 1000 - message.at_ms > self._config.limits.recall_s * 1000:
            raise ApiError(230009)
        message.recalled = True
        self._touched(message)
        return {}

    def get(self, message_id: str) -> Json:
        """GET /messages/:id."""
        message = self._world.messages.get(message_id)
        if message is None:
            raise ApiError(230001, "message_id")
        return {"items": [self.describe(message)]}

    # -- shapes ------------------------------------------------------------------------------------------------------
    def describe(self, message: Message) -> Json:
        """A message as the API returns it."""
        bot = message.sender is self._world.bot
        found: Json = {
            "message_id": message.id,
            "msg_type": message.kind,
            "create_time": str(message.at_ms),
            "update_time": str(message.updated_ms),
            "deleted": message.recalled,
            "updated": message.edits > 0,
            "chat_id": message.chat.id,
            "sender": {
                "id": self._config.app_id if bot else message.sender.id,
                "id_type": "app_id" if bot else "open_id",
                "sender_type": "app" if bot else "user",
                "tenant_key": self._config.tenant_key,
            },
            "body": {"content": msgspec.json.encode(message.content).decode()},
        }
        for name in ("root_id", "parent_id", "thread_id"):
            if getattr(message, name):
                found[name] = getattr(message, name)
        if message.mentions:
            found["mentions"] = [
                _mention(entry, self._config.tenant_key) for entry in message.mentions
            ]
        return found

    # -- inside ------------------------------------------------------------------------------------------------------
    def _chat(self, id_type: str, receive_id: str) -> Chat:
        if id_type == "chat_id":
            chat = self._world.chats.get(receive_id)
            if chat is None:
                raise ApiError(230034)
            return chat
        user = self._world.find_user(receive_id)
        if user is None or user.bot:
            raise ApiError(230034)
        return self._world.direct_chat(user)

    def _send(self, chat: Chat, body: Json, place: Any) -> Json:
        kind, content = parse_content(body, self._config.limits)
        uuid = body.get("uuid", "")
        if not isinstance(uuid, str) or len(uuid) > _UUID_CHARS:
            raise ApiError(230001, "uuid must have at most 50 characters")
        if not uuid:
            self._judge.note("message_without_uuid", f"chat {chat.id}")
        known = self._known(uuid, chat, str(body["content"]))
        if known is not None:
            return self.describe(known)
        self._may_send(chat)
        message = w.Message(
            w.new_message_id(), chat, self._world.bot, self._world.now_ms(), kind, content
        )
        if kind == "interactive":
            message.card = self._card(content)
        self._rates.check_chat(chat.id)
        place(message)
        if message.card is not None:
            message.card.message = message
        self._look_at(message)
        self._world.add_message(message)
        if uuid:
            self._by_uuid[uuid] = (self._config.clock(), message, str(body["content"]))
        return self.describe(message)

    def _known(self, uuid: str, chat: Chat, content: str) -> Message | None:
        """The message of the last hour with this uuid (feishu.md §4.1)."""
        sent_at, message, sent = self._by_uuid.get(uuid, (0.0, None, ""))
        if message is None or self._config.clock() - sent_at >= self._config.limits.uuid_life_s:
            return None
        if sent != content or message.chat is not chat:
            self._judge.note("uuid_for_other_content", f"message {message.id}")
        return message

    def _may_send(self, chat: Chat) -> None:
        if chat.dissolved:
            raise ApiError(232009)
        if not chat.has_bot:
            raise ApiError(230002)
        if chat.muted:
            raise ApiError(230035)
        if chat.kind == "p2p" and chat.members[0].blocked_bot:
            raise ApiError(230053)

    def _card(self, content: Json) -> Card:
        kind = content.get("type")
        if kind == "card":
            data = content.get("data")
            try:
                return self._cardkit.claim(data.get("card_id") if isinstance(data, dict) else None)
            except CardError as error:
                if error.code == 200740:
                    raise CardError(11310, "cardid is invalid").wrapped() from None
                raise
        if kind == "template":
            raise CardError(200380).wrapped()
        return Card("", raw_card(content, self._rules), self._config.clock())

    def _own(self, message_id: str, foreign_code: int) -> Message:
        message = self._world.messages.get(message_id)
        if message is None:
            raise ApiError(230001, "message_id")
        if message.sender is not self._world.bot:
            raise ApiError(foreign_code)
        if message.recalled:
            raise ApiError(230011)
        self._may_send(message.chat)
        return message

    def _touched(self, message: Message) -> Json:
        message.updated_ms = self._world.now_ms()
        self._world.tell("message", message)
        return self.describe(message)

    def _look_at(self, message: Message) -> None:
        """Mentions in the bot's words: turned into entries, and judged."""
        where = f"message {message.id}"
        if message.kind == "text":
            text = str(message.content["text"])
            self._judge.look_at_text(text, where)
            message.mentions = tuple(self._mentions(text))
        elif message.kind == "post":
            for inner in message.content.values():
                for node in (node for paragraph in inner["content"] for node in paragraph):
                    self._judge.look_at_text(
                        str(node.get("text", "")) if node["tag"] == "md" else "", where
                    )
        elif message.card is not None and not message.card.id:
            self._judge.look_at_text(message.card.text, where)

    def _mentions(self, text: str) -> list[Mention]:
        found: list[Mention] = []
        for match in _TEXT_AT.finditer(text):
            user: User | None = self._world.find_user(match[1])
            if user is not None or match[1] == "all":
                found.append(
                    w.Mention(f"@_user_{len(found) + 1}", user, user.name if user else "all")
                )
        return found


def _mention(entry: Mention, tenant_key: str) -> Json:
    return {
        "key": entry.key,
        "id": entry.user.id if entry.user else "all",
        "id_type": "open_id",
        "name": entry.name,
        "tenant_key": tenant_key,
    }
