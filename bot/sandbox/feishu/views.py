"""The world as the page sees it: plain JSON objects. Pure; holds no state and leaks no secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bot.sandbox.feishu.people import named
from bot.sandbox.page.trace import answered, call_row, push_row, sealed

if TYPE_CHECKING:
    from bot.sandbox.feishu.card import Card
    from bot.sandbox.feishu.cardschema import Json
    from bot.sandbox.feishu.world import Chat, Message, World
    from bot.sandbox.records import Attempt, Call, Push

_HIDDEN = frozenset({"token", "app_secret", "tenant_access_token"})
_NO_TEXT = {
    "image": "[image]",
    "file": "[file]",
    "audio": "[audio]",
    "media": "[video]",
    "sticker": "[sticker]",
}


def state_view(world: World, notes: dict[str, Any]) -> Json:
    """GET /sandbox/state."""
    return {
        "platform": "feishu",
        "bot": {"name": world.bot.name, "open_id": world.bot.id},
        "users": [
            {"id": user.id, "name": user.name} for user in world.users.values() if not user.bot
        ],
        "chats": [chat_view(chat) for chat in world.chats.values()],
        "messages": [message_view(message) for message in world.messages.values()],
        "notes": notes,
    }


def chat_view(chat: Chat) -> Json:
    """A chat in the list; a direct chat names its person."""
    view: Json = {
        "id": chat.id,
        "name": chat.name,
        "kind": chat.kind,
        "members": [user.id for user in chat.members],
    }
    if chat.kind == "p2p":
        view["user_id"] = chat.members[0].id
    return view


def message_view(message: Message) -> Json:
    """One message as the page draws it."""
    view: Json = {
        "id": message.id,
        "chat_id": message.chat.id,
        "sender": {"id": message.sender.id, "name": message.sender.name, "bot": message.sender.bot},
        "at_ms": message.at_ms,
        "kind": {"interactive": "card", "post": "post"}.get(message.kind, "text"),
        "text": "" if message.card else _no_text(message) or named(message),
        "reply_to": message.parent_id or None,
        "thread_id": message.thread_id or None,
        "recalled": message.recalled,
        "edited": message.edits > 0,
        "reactions": reactions_view(message),
        "mentions": [
            {"key": e.key, "id": e.user.id if e.user else "all", "name": e.name}
            for e in message.mentions
        ],
    }
    if message.card is not None:
        view["card"] = card_view(message.card)
    return view


def _no_text(message: Message) -> str:
    label, name = _NO_TEXT.get(message.kind, ""), message.content.get("file_name", "")
    return f"{label} {name}".strip() if label else ""


def reactions_view(message: Message) -> list[Json]:
    """The emojis on a message, in the order they were put there, and who put them."""
    return [{"id": r.id, "emoji": r.emoji, "by": r.operator.name} for r in message.reactions]


def card_view(card: Card) -> Json:
    """A card: its components in order, whether it is growing, the chat-list preview."""
    header = card.data.get("header") or {}
    return {
        "elements": [element_view(item) for item in card.elements],
        "streaming": card.streaming,
        "summary": card.summary,
        "title": str((header.get("title") or {}).get("content", "")),
        "sequence": card.sequence,
        "streaming_config": card.data.get("config", {}).get("streaming_config", {}),
    }


def element_view(item: Json) -> Json:
    """One component. A container has its buttons in `buttons` and its other children in `elements`."""
    tag = str(item.get("tag", ""))
    view: Json = {"tag": tag, "element_id": item.get("element_id", "")}
    if tag in {"markdown", "lark_md", "plain_text"}:
        view["content"] = str(item.get("content", ""))
    elif tag == "div":
        view["text"] = str((item.get("text") or {}).get("content", ""))
    elif tag == "button":
        view |= _button_view(item)
    elif tag != "table":
        children = [
            element_view(child) for name in ("columns", "elements") for child in item.get(name, [])
        ]
        if children:
            view["buttons"] = [child for child in children if child["tag"] == "button"]
            view["elements"] = [child for child in children if child["tag"] != "button"]
    return view


def _button_view(item: Json) -> Json:
    callbacks = [b.get("value") for b in item.get("behaviors", []) if b.get("type") == "callback"]
    return {
        "text": str((item.get("text") or {}).get("content", "")),
        "type": item.get("type", "default"),
        "disabled": bool(item.get("disabled", False)),
        "value": callbacks[0] if callbacks else None,
    }


def call_trace(call: Call) -> Json:
    """An API call for the side panel."""
    title = call.api
    content = call.request.get("content")
    if call.api == "card.content" and isinstance(content, str):
        title = f"{call.api} #{call.request.get('sequence')} · {len(content)} chars"
    return call_row(call, title, _HIDDEN)


def push_trace(push: Push, attempt: Attempt, path: str) -> Json:
    """A webhook for the side panel: the sealed body's beginning, and what is inside."""
    shown = {"body": sealed(push), "decrypted": push.payload, "reply": answered(attempt)}
    return push_row(push, attempt, path, push.event_type, shown, _HIDDEN)
