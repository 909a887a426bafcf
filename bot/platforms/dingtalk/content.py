"""What a DingTalk message says: its content by msgtype, and what it quotes (dingtalk.md §1.2). Pure, and tolerant.

Nothing here raises: a field that is missing or of another type is read as empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bot.domain.quotes import quoted
from bot.domain.types import Attachment, Quoted

_SURROGATE = re.compile("[\ud800-\udfff]")
_FILES = {"picture": "image", "video": "video", "file": "file"}


@dataclass(frozen=True, slots=True)
class Content:
    """A message's text and what is not text."""

    text: str
    attachments: tuple[Attachment, ...] = ()


def readable(text: str) -> str:
    """The text with lone surrogates (half an emoji, cut by a client) as U+FFFD: nothing else can store or send them."""
    return _SURROGATE.sub("\ufffd", text)


def string(data: object, *path: str) -> str:
    """The string at a path, "" when there is none. Numbers are written out."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    if isinstance(data, str):
        return readable(data)
    return str(data) if isinstance(data, int) and not isinstance(data, bool) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """The object itself, or the one in a JSON string; empty for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[Any]:
    """The list, or an empty one."""
    return value if isinstance(value, list) else []


def read_content(message: Mapping[str, Any]) -> Content:
    """The content of a whole message. Unknown types become an attachment of kind "other"."""
    return _read(string(message, "msgtype"), message)


def _read(msgtype: str, message: Mapping[str, Any]) -> Content:
    content = mapping(message.get("content"))
    match msgtype:
        case "text":
            # One sample of the documents has the text itself as `content`.
            return Content(string(message, "text", "content") or string(message, "content"))
        case "richText":
            return _rich_text(content.get("richText"))
        case "audio":
            said = string(content, "recognition").strip()
            return Content(said) if said else Content("", (_file("audio", content),))
        case "picture" | "video" | "file":
            return Content("", (_file(_FILES[msgtype], content),))
        case "unknownMsgType":
            return Content("", (Attachment("other", string(content, "unknownMsgType")[:80]),))
        case _:
            return Content("", (Attachment("other", msgtype[:80]),))


def _file(kind: str, content: Mapping[str, Any]) -> Attachment:
    key = string(content, "downloadCode") or string(content, "pictureDownloadCode")
    return Attachment(kind, string(content, "fileName"), key)


def _rich_text(parts: object) -> Content:
    """Text items are joined as they are; an item may be a bare line feed, and text may stand under `content`."""
    text: list[str] = []
    files: list[Attachment] = []
    for part in items(parts):
        if not isinstance(part, Mapping):
            continue
        kind = string(part, "type") or string(part, "msgType")
        if kind == "picture" or (string(part, "downloadCode") and not string(part, "text")):
            files.append(_file("image", part))
        else:
            text.append(string(part, "text") or string(part, "content"))
    return Content("".join(text), tuple(files))


def read_quote(message: Mapping[str, Any]) -> Quoted | None:
    """The message that this one answers; None when there is none. Of a card of ours no more than its id is told."""
    text = mapping(message.get("text"))
    told = mapping(text.get("repliedMsg") or mapping(message.get("content")).get("repliedMsg"))
    message_id = string(told, "msgId") or string(message, "originalMsgId")
    content = mapping(told.get("content"))
    if content.get("richText"):
        found = _rich_text(content.get("richText"))
        return quoted(message_id, found.text, found.attachments)
    said = string(content, "text") or string(content, "content") or string(told, "content")
    files = [_file(_quoted_kind(told, content), content)] if _has_file(content) else []
    return quoted(message_id, said, files)


def _has_file(content: Mapping[str, Any]) -> bool:
    return bool(string(content, "downloadCode") or string(content, "fileName"))


def _quoted_kind(told: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    kind = string(told, "msgType")
    return _FILES.get(
        kind, "audio" if kind == "audio" else "file" if string(content, "fileName") else "other"
    )


def without_name(text: str, robot_name: str) -> str:
    """The text without the leading "@name" of the robot, which some clients leave in."""
    text = text.strip()
    if robot_name and text.startswith(f"@{robot_name}"):
        rest = text[len(robot_name) + 1 :]
        # "@Bot2" is somebody else
        if not rest or not (rest[0].isascii() and rest[0].isalnum()):
            return rest.strip()
    return text
