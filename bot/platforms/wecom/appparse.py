"""From a self-built app's verified XML to our own events (wecom.md §1.3, §1.4). Pure.

Events have no id of their own: theirs is made of sender, second, event and key, so that two quick clicks are two.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.etree.ElementTree import Element

from bot.domain.types import (
    Attachment,
    BotAdded,
    ChatKind,
    InboundEvent,
    InboundMessage,
    ReplyTarget,
    Sender,
    Unreadable,
)
from bot.platforms.wecom.fields import readable, seconds

_MEDIA = {"image": "image", "voice": "audio", "video": "video", "file": "file"}


@dataclass(frozen=True, slots=True)
class AppIdentity:
    """Which app we are."""

    app_id: str
    agent_id: int


class _Missing(ValueError):
    """A field that the message cannot do without."""


def read_app_message(xml: Element, identity: AppIdentity, now: datetime) -> InboundEvent:
    """Our event for theirs."""
    event_id = _text(xml, "MsgId") or _event_id(xml)
    try:
        return _read(xml, identity, now, event_id)
    except _Missing as error:
        return Unreadable(identity.app_id, event_id, str(error))
    except Exception as error:  # noqa: BLE001 - a shape nobody foresaw: anything but a 200 may be delivered again
        reason = f"an unforeseen shape ({type(error).__name__})"
        return Unreadable(identity.app_id, event_id, reason)


def _read(xml: Element, identity: AppIdentity, now: datetime, event_id: str) -> InboundEvent:
    agent = _text(xml, "AgentID")
    if agent and agent != str(identity.agent_id):
        raise _Missing("it is for another app")
    if _text(xml, "FromUserName") == "sys":
        raise _Missing("a message of the system")
    if _text(xml, "MsgType") == "event":
        return _event(xml, identity, now)
    return _message(xml, identity, now, event_id, *_content(xml))


def _text(xml: Element, tag: str) -> str:
    return readable((xml.findtext(tag) or "").strip())


def _need(xml: Element, tag: str) -> str:
    value = _text(xml, tag)
    if not value:
        raise _Missing(f"{tag} is missing")
    return value


def _event_id(xml: Element) -> str:
    tags = ("FromUserName", "CreateTime", "Event", "EventKey")
    return "+".join(_text(xml, tag) for tag in tags)


def _message(
    xml: Element,
    identity: AppIdentity,
    now: datetime,
    event_id: str,
    text: str,
    found: tuple[Attachment, ...],
) -> InboundMessage:
    user_id = _need(xml, "FromUserName")
    return InboundMessage(
        app_id=identity.app_id,
        dedupe_key=f"{identity.app_id}:message:{event_id}",
        event_id=event_id,
        message_id=event_id,
        chat_id=user_id,
        chat_kind=ChatKind.DIRECT,
        topic_id=None,
        sender=Sender(user_id),
        text=text,
        mentions_bot=False,
        sent_at=seconds(_text(xml, "CreateTime"), now).astimezone(UTC),
        target=ReplyTarget(identity.app_id, user_id, event_id),
        attachments=found,
    )


def _event(xml: Element, identity: AppIdentity, now: datetime) -> InboundEvent:
    kind, key = _text(xml, "Event"), _text(xml, "EventKey")
    event_id, user_id = _event_id(xml), _need(xml, "FromUserName")
    if kind == "subscribe":
        target = ReplyTarget(identity.app_id, user_id, "")
        dedupe_key = f"{identity.app_id}:event:{event_id}"
        return BotAdded(identity.app_id, dedupe_key, event_id, user_id, target)
    if kind == "click" and key.startswith("/"):  # a menu of the app whose keys are our commands
        return _message(xml, identity, now, event_id, key, ())
    raise _Missing(f"event {kind[:60] or 'without a type'} is not handled")


def _content(xml: Element) -> tuple[str, tuple[Attachment, ...]]:
    kind = _need(xml, "MsgType")
    reader = _READERS.get(kind)
    if reader is not None:
        return reader(xml), ()
    media_id = _text(xml, "MediaId")
    name = _text(xml, "FileName") or ("" if kind in _MEDIA else kind[:60])
    key = json.dumps({"media_id": media_id}) if media_id else ""
    return "", (Attachment(_MEDIA.get(kind, "other"), name, key),)


def _location(xml: Element) -> str:
    place = f"{_text(xml, 'Location_X')}, {_text(xml, 'Location_Y')}"
    label = _text(xml, "Label")
    return f"{label} ({place})" if label else place


def _link(xml: Element) -> str:
    lines = (_text(xml, tag) for tag in ("Title", "Description", "Url"))
    return "\n".join(line for line in lines if line)


_READERS: dict[str, Callable[[Element], str]] = {
    "text": lambda xml: readable(xml.findtext("Content") or ""),
    "location": _location,
    "link": _link,
}
