"""From Feishu's verified envelope to our own events (feishu.md §1.3-1.6). Pure.

Must not verify: `receive.py` has done that. A missing envelope field raises Rejected(400); a content that we cannot read
or do not know becomes Unreadable, because anything but a 200 would be delivered again for seven hours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from bot.domain.quotes import quoted
from bot.domain.types import (
    BotAdded,
    ButtonPressed,
    ChatKind,
    InboundEvent,
    InboundMessage,
    MessageRecalled,
    Quoted,
    ReplyTarget,
    Sender,
    Unreadable,
)
from bot.errors import Rejected
from bot.platforms.feishu.content import UnreadableContent, read_content, read_mentions, readable
from bot.platforms.feishu.names import Names

_ACTIONS = {"stop", "regenerate", "continue", "new_topic"}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are: the app, our open_id as this app sees it, and the name people see ("" while unknown)."""

    app_id: str
    open_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Envelope:
    """An event out of its envelope, schema 2.0 or 1.0."""

    event_id: str
    event_type: str
    token: str
    app_id: str
    event: dict[str, Any]


def open_envelope(data: dict[str, Any]) -> Envelope:
    """Read an envelope of either schema. Raises Rejected(400) when a field of it is missing."""
    event = data.get("event")
    header = data.get("header")
    if isinstance(header, dict):
        fields = (header.get("event_id"), header.get("event_type"), header.get("token"))
        app_id = header.get("app_id")
    else:
        kind = event.get("type") if isinstance(event, dict) else None
        fields = (data.get("uuid"), kind, data.get("token"))
        app_id = event.get("app_id") if isinstance(event, dict) else None
    event_id, event_type, token = (
        readable(field) if isinstance(field, str) else "" for field in fields
    )
    if not event_id or not event_type or not isinstance(event, dict):
        raise Rejected(400, "the event's envelope is incomplete")
    return Envelope(event_id, event_type, token, app_id if isinstance(app_id, str) else "", event)


def read_event(
    envelope: Envelope, identity: Identity, now: datetime, names: Names | None = None
) -> InboundEvent:
    """Our event for theirs; Unreadable when there is none. Raises Rejected(503) to have it delivered again.

    `names`: learns whom it mentions, and tells who wrote.
    """
    reader = _READERS.get(envelope.event_type)
    if envelope.app_id and envelope.app_id != identity.app_id:
        return _unreadable(envelope, identity, "it is for another app")
    if reader is None:
        return _unreadable(
            envelope, identity, f"event type {envelope.event_type[:60]} is not handled"
        )
    try:
        event = reader(envelope, identity, now)
    except (_Missing, UnreadableContent) as error:
        return _unreadable(envelope, identity, str(error))
    except Rejected:
        raise
    except Exception as error:  # noqa: BLE001 - a shape nobody foresaw: a 500 would bring it back for seven hours
        return _unreadable(envelope, identity, f"an unforeseen shape ({type(error).__name__})")
    if names is not None and isinstance(event, InboundMessage):
        names.learn(_get(envelope.event, "message", "mentions"))
        return replace(event, sender=replace(event.sender, name=names.of(event.sender.user_id)))
    return event


class _Missing(ValueError):
    """A field that the event cannot do without."""


def _unreadable(envelope: Envelope, identity: Identity, reason: str) -> Unreadable:
    return Unreadable(identity.app_id, envelope.event_id, reason)


def _get(data: object, *path: str) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _text(data: object, *path: str) -> str:
    value = _get(data, *path)
    return readable(value) if isinstance(value, str) else ""


def _need(data: object, *path: str) -> str:
    value = _text(data, *path)
    if not value:
        raise _Missing(f"{'.'.join(path)} is missing")
    return value


def _event_key(envelope: Envelope, identity: Identity) -> str:
    return f"{identity.app_id}:event:{envelope.event_id}"


def _time(value: object, now: datetime) -> datetime:
    """Milliseconds since 1970 as a string."""
    try:
        return datetime.fromtimestamp(int(str(value)) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return now


def _message(envelope: Envelope, identity: Identity, now: datetime) -> InboundEvent:
    event = envelope.event
    user_id = _need(event, "sender", "sender_id", "open_id")
    if _text(event, "sender", "sender_type") in {"bot", "app"} or user_id == identity.open_id:
        return _unreadable(envelope, identity, "from a bot")
    message = event.get("message")
    message_id, chat_id = _need(message, "message_id"), _need(message, "chat_id")
    kind = ChatKind.DIRECT if _text(message, "chat_type") == "p2p" else ChatKind.GROUP
    entries = _get(message, "mentions")
    if kind is ChatKind.GROUP and entries and not identity.open_id:
        raise Rejected(503, "the bot's own identity is not known yet; Feishu delivers this again")
    mentions = read_mentions(entries, identity.open_id)
    content = read_content(_text(message, "message_type"), _get(message, "content"))
    topic_id = _text(message, "thread_id") or None
    sent_at = _time(_get(message, "create_time"), now)
    opaque = {"thread": "1" if topic_id else "", "sent_at": sent_at.isoformat()}
    return InboundMessage(
        app_id=identity.app_id,
        dedupe_key=f"{identity.app_id}:message:{message_id}",
        event_id=envelope.event_id,
        message_id=message_id,
        chat_id=chat_id,
        chat_kind=kind,
        topic_id=topic_id,
        sender=Sender(user_id),
        text=mentions.put_into(content.text),
        mentions_bot=mentions.of_bot,
        sent_at=sent_at,
        target=ReplyTarget(identity.app_id, chat_id, message_id, opaque),
        attachments=content.attachments,
        # Inside a topic every message answers its first (§1.4).
        quoted=quoted(_text(message, "parent_id"), "", is_topic_root=topic_id is not None),
    )


def read_quoted(item: dict[str, Any], chat_id: str, identity: Identity) -> Quoted | None:
    """A message that GET messages/:id returned, as somebody refers to it; None for one that was taken back, is of another
    chat, or cannot be read."""
    if _get(item, "deleted") is True or _text(item, "chat_id") not in {"", chat_id}:
        return None
    try:
        content = read_content(_text(item, "msg_type"), _get(item, "body", "content"))
    except UnreadableContent:
        return None
    mentions = read_mentions(_get(item, "mentions"), identity.open_id)
    return quoted(_text(item, "message_id"), mentions.put_into(content.text), content.attachments)


def _recalled(envelope: Envelope, identity: Identity, _now: datetime) -> InboundEvent:
    return MessageRecalled(
        identity.app_id,
        _event_key(envelope, identity),
        envelope.event_id,
        _need(envelope.event, "message_id"),
        _text(envelope.event, "chat_id"),
    )


def _added(envelope: Envelope, identity: Identity, now: datetime) -> InboundEvent:
    chat_id = _need(envelope.event, "chat_id")
    target = ReplyTarget(identity.app_id, chat_id, "", {"thread": "", "sent_at": now.isoformat()})
    return BotAdded(
        identity.app_id, _event_key(envelope, identity), envelope.event_id, chat_id, target
    )


def _button(envelope: Envelope, identity: Identity, _now: datetime) -> InboundEvent:
    event = envelope.event
    value = _get(event, "action", "value")
    if isinstance(value, str):  # some clients send the object as a string
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = {"action": value}
    action = _text(value, "action")
    if action not in _ACTIONS:
        raise _Missing("the button is not one of ours")
    return ButtonPressed(
        app_id=identity.app_id,
        dedupe_key=_event_key(envelope, identity),
        event_id=envelope.event_id,
        chat_id=_text(event, "context", "open_chat_id"),
        message_id=_text(event, "context", "open_message_id"),
        operator_id=_need(event, "operator", "open_id"),
        action=action,
        turn_id=_need(value, "turn_id"),
    )


_READERS: dict[str, Callable[[Envelope, Identity, datetime], InboundEvent]] = {
    "im.message.receive_v1": _message,
    "im.message.recalled_v1": _recalled,
    "im.chat.member.bot.added_v1": _added,
    "card.action.trigger": _button,
}
