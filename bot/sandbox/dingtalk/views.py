"""The world as the page sees it: plain JSON objects. Pure; holds no state and leaks no secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bot.sandbox.dingtalk.judge import MARKDOWN_KINDS, visible_text
from bot.sandbox.page.trace import answered, call_row, push_row

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.card import Button, Card
    from bot.sandbox.dingtalk.world import Chat, Message, World
    from bot.sandbox.records import Attempt, Call, Push

Json = dict[str, Any]
_HIDDEN = frozenset(
    {"accessToken", "access_token", "sessionWebhook", "apiSecret", "sign", "ticket", "clientSecret"}
)
_NO_TEXT = {"picture": "[image]", "file": "[file]", "audio": "[audio]", "video": "[video]"}


def state_view(world: World, notes: dict[str, Any]) -> Json:
    """GET /sandbox/state."""
    return {
        "platform": "dingtalk",
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
    """One message as the page draws it. The bot's Markdown is drawn like a card without buttons."""
    drawn = message.card is not None or message.kind in MARKDOWN_KINDS
    view: Json = {
        "id": message.id,
        "chat_id": message.chat.id,
        "sender": {"id": message.sender.id, "name": message.sender.name, "bot": message.sender.bot},
        "at_ms": message.at_ms,
        "kind": "card" if drawn else "text",
        "text": "" if drawn else _no_text(message) or _named(message),
        "reply_to": _quoted_id(message),
        "thread_id": None,
        "recalled": message.recalled,
        "edited": False,
        "reactions": reactions_view(message),
        "mentions": [{"key": f"@{u.name}", "id": u.id, "name": u.name} for u in message.mentions],
    }
    if message.card is not None:
        view["card"] = card_view(message.card)
    elif drawn:
        view["card"] = _plain_card(message)
    return view


def _no_text(message: Message) -> str:
    label, name = _NO_TEXT.get(message.kind, ""), message.content.get("fileName", "")
    return f"{label} {name}".strip() if label else ""


def _quoted_id(message: Message) -> str | None:
    if message.sender.bot:
        return message.answers or None
    return message.quoted.id if message.quoted else None


def _named(message: Message) -> str:
    text = visible_text(message)
    missing = [f"@{u.name}" for u in message.mentions if f"@{u.name}" not in text]
    return " ".join([*missing, text])


def reactions_view(message: Message) -> list[Json]:
    """The robot's emotions on a message."""
    return [{"id": r.emoji, "emoji": r.emoji, "by": r.operator.name} for r in message.reactions]


def _plain_card(message: Message) -> Json:
    text = str(message.content.get("text", ""))
    # A mention of the asker is shown by name.
    for user in message.mentions:
        text = text.replace(f"@{user.staff_id}", f"@{user.name}") if user.staff_id else text
    return {
        "elements": [_text("text", text)],
        "streaming": False,
        "summary": str(message.content.get("title", "")),
        "title": "",
    }


def card_view(card: Card) -> Json:
    """A card: its texts in order, its buttons, whether it is growing, the chat-list preview."""
    template = card.template
    elements = [
        *(_text(key, value) for key, value in card.others(template.shown_above)),
        _text(template.key, "" if card.is_blank else card.source),
        *(_text(key, value) for key, value in card.others(template.shown_below)),
    ]
    if card.buttons:
        columns = [
            {"tag": "column", "element_id": "", "elements": [], "buttons": [_button(b)]}
            for b in card.buttons
        ]
        elements.append(
            {"tag": "column_set", "element_id": "buttons", "elements": columns, "buttons": []}
        )
    return {
        "elements": elements,
        "streaming": card.growing,
        "summary": card.text[:60],
        "title": "",
        "failed": card.shown_state == "failed",
    }


def _text(key: str, value: str) -> Json:
    return {"tag": "markdown", "element_id": key, "content": value, "glue": True}


def _button(button: Button) -> Json:
    action = button.params.get("action") or button.action_id
    return {
        "tag": "button",
        "element_id": button.action_id,
        "text": button.text,
        "type": "danger" if action == "stop" else "default",
        "disabled": False,
        "value": {"action": action, "actionId": button.action_id, "params": button.params},
    }


def call_trace(call: Call) -> Json:
    """An API call for the side panel."""
    title = call.api
    content = call.request.get("content")
    if call.api == "card.stream" and isinstance(content, str):
        last = " · last" if call.request.get("isFinalize") is True else ""
        title = f"{call.api} · {len(content)} chars{last}"
    return call_row(call, title, _HIDDEN)


def push_trace(push: Push, attempt: Attempt, path: str) -> Json:
    """A push for the side panel: a signed POST, or a frame of the Stream gateway."""
    where = push.event_type if push.way == "stream" else path
    title = push.event_type.rsplit("/v1.0/", 1)[-1]
    shown = {"data": push.payload, "reply": answered(attempt)}
    return push_row(push, attempt, where, title, shown, _HIDDEN)
