"""The world as the page sees it: plain JSON objects. Pure; holds no state and leaks no secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bot.sandbox.page.trace import answered, call_row, push_row, sealed
from bot.sandbox.wecom import cards
from bot.sandbox.wecom.judge import visible_text

if TYPE_CHECKING:
    from bot.sandbox.records import Attempt, Call, Push
    from bot.sandbox.wecom.world import Chat, Message, World

Json = dict[str, Any]
_HIDDEN = frozenset({"access_token", "corpsecret", "secret", "response_code", "response_url", "aeskey", "ResponseCode"})  # fmt: skip
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_STYLES = {1: "primary", 2: "primary", 3: "danger", 4: "danger"}


def state_view(world: World, notes: Json) -> Json:
    """GET /sandbox/state."""
    return {
        "platform": "wecom",
        "bot": {"name": world.bot.name, "open_id": world.bot.id},
        "users": [{"id": user.id, "name": user.name} for user in world.users.values()],
        "chats": [chat_view(chat) for chat in world.chats.values()],
        "messages": [message_view(message) for message in world.messages.values()],
        "notes": notes,
    }


def chat_view(chat: Chat) -> Json:
    """A chat in the list; a direct chat names its person."""
    view: Json = {
        "id": chat.id,
        "name": chat.name,
        "kind": "p2p" if chat.kind == "single" else "group",
        "members": [user.id for user in chat.members],
    }
    if chat.kind == "single":
        view["user_id"] = chat.members[0].id
    return view


def message_view(message: Message) -> Json:
    """One message as the page draws it: streams and template cards are cards there."""
    is_card = message.kind in {"stream", "template_card"}
    view: Json = {
        "id": message.id,
        "chat_id": message.chat.id,
        "sender": {"id": message.sender.id, "name": message.sender.name, "bot": message.sender.bot},
        "at_ms": message.at_ms,
        "kind": "card" if is_card else "text",
        "text": "" if is_card else visible_text(message),
        "reply_to": message.quote.id if message.quote else None,
        "thread_id": None,
        "recalled": message.recalled,
        "edited": False,
        "reactions": [],
        "mentions": [],
    }
    if message.kind == "stream":
        view["card"] = _stream_view(message)
    elif message.card is not None:
        view["card"] = _template_view(message, message.card)
    return view


def _stream_view(message: Message) -> Json:
    """A bubble: what the bot thinks as a note, then the text."""
    thoughts = "\n\n".join(part.strip() for part in _THINK.findall(message.text)).strip()
    elements: list[Json] = []
    if thoughts:
        elements.append({"tag": "note", "element_id": "thinking", "content": thoughts})
    text = visible_text(message)
    elements.append({"tag": "markdown", "element_id": "answer", "content": text})
    return {
        "elements": elements,
        "streaming": message.streaming,
        "summary": text[:80],
        "title": "",
        "sequence": message.updates,
        "streaming_config": {},
    }


def _template_view(message: Message, card: Json) -> Json:
    replaced = message.data.get("replaced")
    buttons = [
        {
            "tag": "button",
            "element_id": key,
            "text": label if replaced is None else replaced,
            "type": _STYLES.get(_style(card, key), "default"),
            "disabled": replaced is not None,
            "value": key,
        }
        for key, label in cards.buttons(card)
    ]
    title = str((card.get("main_title") or {}).get("title", ""))
    text = cards.card_text({**card, "main_title": {**(card.get("main_title") or {}), "title": ""}})
    elements: list[Json] = [{"tag": "plain_text", "element_id": "text", "content": text}]
    return {
        "elements": [*(elements if text else []), *buttons],
        "streaming": False,
        "summary": title,
        "title": title,
        "sequence": message.updates,
        "streaming_config": {},
    }


def _style(card: Json, key: str) -> int:
    styles = {b.get("key"): b.get("style", 1) for b in card.get("button_list", [])}
    style = styles.get(key, 0)
    return style if isinstance(style, int) else 0


def call_trace(call: Call) -> Json:
    """An API call or a frame of the bot for the side panel."""
    title = call.api
    stream = call.request.get("stream")
    if isinstance(stream, dict):
        end = " · final" if stream.get("finish") else ""
        title = f"{call.api} · {len(str(stream.get('content', '')))} chars{end}"
    return call_row(call, title, _HIDDEN)


def push_trace(push: Push, attempt: Attempt, path: str, opened: str) -> Json:
    """A callback for the side panel: the sealed body's beginning, what is inside, and the reply `opened`."""
    title = "refresh poll" if push.event_type == "stream" else push.event_type
    reply = opened or answered(attempt)
    shown = {"body": sealed(push), "decrypted": push.payload, "reply": reply}
    return push_row(push, attempt, path, title, shown, _HIDDEN)
