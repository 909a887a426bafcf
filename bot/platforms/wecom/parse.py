"""From an AI bot's verified message to our own events (wecom.md §2.2, §2.7, §3.2). Pure.

Serves callbacks and the long connection. Must not verify (`receive.py`) nor answer refresh polls, which are no events
(`adapter.py`). What cannot be read becomes Unreadable: nothing is gained by having it delivered again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bot.domain.quotes import quoted
from bot.domain.types import (
    AnswerRated,
    Attachment,
    ChatEntered,
    ChatKind,
    InboundEvent,
    InboundMessage,
    Quoted,
    ReplyTarget,
    Sender,
    Unreadable,
)
from bot.platforms.wecom.fields import get, readable, same_origin, seconds, stream_id, text_of

_URL_LIFE = timedelta(minutes=59)  # documented: 1 h
_VERDICTS = {1: "good", 2: "bad", 3: "withdrawn"}
_REASONS = {1: "off_topic", 2: "incomplete", 3: "wrong", 4: "bad_analysis"}
_MEDIA = {"image": "image", "file": "file", "video": "video"}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are. `bot_id` and `name` are "" while unknown; `api_base` is where a response_url must lead."""

    app_id: str
    api_base: str
    bot_id: str = ""
    name: str = ""


class _Missing(ValueError):
    """A field that the message cannot do without."""


def read_message(
    data: dict[str, Any], identity: Identity, now: datetime, *, req_id: str = "", nonce: str = ""
) -> InboundEvent:
    """Our event for theirs. `req_id` is that of the frame it came in, over the long connection; `nonce` the callback's."""
    event_id = text_of(data, "msgid")
    try:
        _check_is_for_us(data, identity)
        if text_of(data, "msgtype") == "event":
            return _event(data, identity, {"req": req_id, "nonce": nonce})
        return _message(data, identity, now, req_id)
    except _Missing as error:
        return Unreadable(identity.app_id, event_id, str(error))
    except Exception as error:  # noqa: BLE001 - a shape nobody foresaw must not stop what comes after it
        reason = f"an unforeseen shape ({type(error).__name__})"
        return Unreadable(identity.app_id, event_id, reason)


def _check_is_for_us(data: dict[str, Any], identity: Identity) -> None:
    bot_id = text_of(data, "aibotid")
    if identity.bot_id and bot_id and bot_id != identity.bot_id:
        raise _Missing("it is for another bot")


def _need(data: object, *path: str) -> str:
    value = text_of(data, *path)
    if not value:
        raise _Missing(f"{'.'.join(path)} is missing")
    return value


def _event(data: dict[str, Any], identity: Identity, opaque: dict[str, str]) -> InboundEvent:
    """The first opening of the direct chat in a day asks for a greeting; a judgement of an answer for nothing (§2.7)."""
    kind = text_of(data, "event", "eventtype")
    if kind not in {"enter_chat", "feedback_event"}:
        raise _Missing(f"event {kind[:60] or 'without a type'} is not handled")
    event_id, user_id = _need(data, "msgid"), _need(data, "from", "userid")
    dedupe_key = f"{identity.app_id}:event:{event_id}"
    if kind == "feedback_event":
        return _rating(get(data, "event", "feedback_event"), identity, dedupe_key, event_id)
    sender = Sender(user_id, text_of(data, "from", "name"))
    target = ReplyTarget(identity.app_id, user_id, event_id, opaque)
    return ChatEntered(identity.app_id, dedupe_key, event_id, sender, target)


def _rating(detail: object, identity: Identity, dedupe_key: str, event_id: str) -> AnswerRated:
    verdict = _VERDICTS.get(get(detail, "type"))
    if verdict is None:
        raise _Missing("a judgement of an unknown kind")
    reasons = get(detail, "inaccurate_reason_list")
    known = [_REASONS[n] for n in reasons if n in _REASONS] if isinstance(reasons, list) else []
    return AnswerRated(identity.app_id, dedupe_key, event_id, verdict, tuple(known))


def _message(
    data: dict[str, Any], identity: Identity, now: datetime, req_id: str
) -> InboundMessage:
    message_id, user_id = _need(data, "msgid"), _need(data, "from", "userid")
    if user_id in {"sys", identity.bot_id}:
        raise _Missing("it is the system's or the bot's own")
    in_group = text_of(data, "chattype") == "group"
    chat_id = _need(data, "chatid") if in_group else user_id
    text, found = read_content(data)
    if in_group:
        text = without_mention(text, identity.name)
    sent_at = seconds(get(data, "create_time"), now)
    url = text_of(data, "response_url")
    usable = bool(url) and same_origin(url, identity.api_base)
    opaque = {
        "stream": stream_id(identity.app_id, message_id),
        "user": user_id,
        "group": "1" if in_group else "",
        "sent_at": now.isoformat(),
        "url": url if usable else "",
        "req": req_id,
    }
    return InboundMessage(
        app_id=identity.app_id,
        dedupe_key=f"{identity.app_id}:message:{message_id}",
        event_id=message_id,
        message_id=message_id,
        chat_id=chat_id,
        chat_kind=ChatKind.GROUP if in_group else ChatKind.DIRECT,
        topic_id=None,
        sender=Sender(user_id, text_of(data, "from", "name")),
        text=text,
        # A group's messages come only when they speak to the bot (§2.2).
        mentions_bot=in_group,
        sent_at=sent_at,
        target=ReplyTarget(
            identity.app_id, chat_id, message_id, opaque, now + _URL_LIFE if usable else None
        ),
        attachments=tuple(found),
        quoted=read_quote(get(data, "quote")),
    )


def read_content(data: dict[str, Any]) -> tuple[str, list[Attachment]]:
    """Text and attachments of a message, a quote, or an item of a mixed message."""
    kind = text_of(data, "msgtype")
    body = get(data, kind)
    if kind == "mixed":
        items = get(body, "msg_item")
        return _mixed(item for item in items if isinstance(item, dict)) if isinstance(items, list) else ("", [])  # fmt: skip
    reader = _READERS.get(kind)
    if reader is not None:
        return reader(body), []
    return "", [Attachment(_MEDIA.get(kind, "other"), _file_name(body, kind), _media_key(body))]


def _mixed(items: Iterable[dict[str, Any]]) -> tuple[str, list[Attachment]]:
    texts: list[str] = []
    found: list[Attachment] = []
    for item in items:
        text, attachments = read_content(item)
        texts += [text] if text else []
        found += attachments
    return "\n".join(texts), found


_READERS: dict[str, Callable[[Any], str]] = {
    "text": lambda body: text_of(body, "content"),
    # A voice message comes as its transcript.
    "voice": lambda body: text_of(body, "content"),
}


def _file_name(body: object, kind: str) -> str:
    name = text_of(body, "filename") or text_of(body, "name")
    return name or ("" if kind in _MEDIA else kind[:60])


def _media_key(body: object) -> str:
    """Where the bytes are and, over the long connection, the key of their own."""
    url, key = text_of(body, "url"), text_of(body, "aeskey")
    return json.dumps({"url": url, "aeskey": key}) if url else ""


def without_mention(text: str, name: str) -> str:
    """A group's text without the "@name" in front of it; every other "@" is the person's own (§2.2)."""
    bare = text.lstrip(" \u00a0\u3000\u2005\n")
    if name and bare.startswith(f"@{name}"):
        return bare[len(name) + 1 :].lstrip(" \u00a0\u3000\u2005")
    found = re.match(r"@[^\s\u2005]+(?:[ \t\u00a0\u3000\u2005]+|(?=\n)|$)", bare)
    return bare[found.end() :] if found else text


def read_quote(quote: object) -> Quoted | None:
    """What a message refers to (§2.2): told whole, but without an id. A file in it has an address like any other."""
    if not isinstance(quote, dict):
        return None
    text, found = read_content(quote)
    return quoted("", readable(text), found)
