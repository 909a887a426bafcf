"""What a Feishu message says: its `content` by message type, and mentions (feishu.md §1.4, §8 rows 6-10). Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bot.domain.types import Attachment

# `@_user_1` is a prefix of `@_user_10`: the digits are taken whole.
_PLACEHOLDER = re.compile(r"@_user_\d+|@_all(?![A-Za-z0-9_])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACES = "[ \u00a0\u3000]*"
_LOCALES = ("zh_cn", "en_us", "ja_jp", "zh_hk", "zh_tw")
_KEYED_FILES = {
    "image": ("image", "image_key"), "file": ("file", "file_key"), "folder": ("file", "file_key"),
    "audio": ("audio", "file_key"), "media": ("video", "file_key"), "sticker": ("sticker", "file_key"),
}  # fmt: skip


class UnreadableContent(ValueError):
    """The content is not what its type promises."""


@dataclass(frozen=True, slots=True)
class Mentions:
    """Who is mentioned: placeholder → name, and which placeholders are the bot itself."""

    names: Mapping[str, str]
    own: frozenset[str]

    @property
    def of_bot(self) -> bool:
        """The bot itself is mentioned. `@_all` is not the bot."""
        return bool(self.own)

    def put_into(self, text: str) -> str:
        """The text with the bot's own placeholder stripped and all others as @name."""
        for key in self.own:
            pattern = rf"(^|\n)?{_SPACES}{re.escape(key)}(?!\d){_SPACES}"
            text = re.sub(pattern, lambda match: " " if match[1] is None else match[1], text)
        return _PLACEHOLDER.sub(lambda match: "@" + self.names.get(match[0], "?"), text).strip()


def read_mentions(entries: object, own_open_id: str) -> Mentions:
    """From `message.mentions`. With an unknown own id nobody is the bot: fail closed (§8 row 9)."""
    names = {"@_all": "all"}
    own: set[str] = set()
    for entry in _list(entries):
        if not isinstance(entry, dict) or not _string(entry, "key"):
            continue
        key = entry["key"]
        ids = entry.get("id")
        open_id = ids.get("open_id") if isinstance(ids, dict) else ids
        name = _string(entry, "name")
        if name:
            names[key] = name
        if key != "@_all" and own_open_id and open_id == own_open_id:
            own.add(key)
    return Mentions(names, frozenset(own))


@dataclass(frozen=True, slots=True)
class Content:
    """A message's text (placeholders still in it) and what is not text."""

    text: str
    attachments: tuple[Attachment, ...] = ()


def read_content(message_type: str, content: object) -> Content:
    """Read a message's content. Raises UnreadableContent; unknown types become an attachment of kind "other"."""
    data = _decode(content)
    if message_type == "text":
        if not isinstance(data.get("text"), str):
            raise UnreadableContent("a text message without text")
        return Content(_string(data, "text"))
    if message_type == "post":
        return _read_post(data)
    if message_type == "interactive" and (card := _read_card(data)).text:
        return card
    kind, key_name = _KEYED_FILES.get(message_type, ("other", ""))
    name = _string(data, "file_name") or ("" if kind != "other" else message_type)
    return Content("", (Attachment(kind, name, _string(data, key_name)),))


def _decode(content: object) -> dict[str, Any]:
    if isinstance(content, str):
        try:
            content = json.loads(content or "{}")
        except (ValueError, RecursionError):
            # merge_forward and some system messages carry a plain sentence.
            return {}
    return content if isinstance(content, dict) else {}


def readable(text: str) -> str:
    """The text with lone surrogates (half an emoji, cut by a client) as U+FFFD: nothing else can store or send them."""
    return _SURROGATE.sub("\ufffd", text)


def _string(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return readable(value) if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _read_post(data: dict[str, Any]) -> Content:
    """Rich text: lines of nodes; also with a locale level, flat, or as `content_v2` (§1.4)."""
    data = next((data[key] for key in _LOCALES if isinstance(data.get(key), dict)), data)
    found: list[Attachment] = []
    lines = [_line(nodes, found) for nodes in _node_lines(data.get("content"))]
    if not any(lines) and not found:
        lines = [_line(nodes, found) for nodes in _node_lines(data.get("content_v2"))]
    found += [
        Attachment("file", _string(entry, "file_name"), _string(entry, "file_key"))
        for entry in _list(data.get("files"))
        if isinstance(entry, dict)
    ]
    title = _string(data, "title")
    text = "\n".join(([title] if title else []) + lines)
    return Content(text.strip("\n"), tuple(found))


def _read_card(data: dict[str, Any]) -> Content:
    """A card comes flattened to a title and lines of nodes, which are a post's (§1.4)."""
    return Content(_read_post({"title": data.get("title"), "content": data.get("elements")}).text)


def _node_lines(content: object) -> Iterable[list[dict[str, Any]]]:
    if not isinstance(content, list):
        return
    if any(isinstance(item, dict) for item in content):
        yield [item for item in content if isinstance(item, dict)]
        return
    for line in content:
        if isinstance(line, list):
            yield [item for item in line if isinstance(item, dict)]


def _line(nodes: list[dict[str, Any]], found: list[Attachment]) -> str:
    return "".join(_node(node, found) for node in nodes)


def _node(node: dict[str, Any], found: list[Attachment]) -> str:
    tag = _string(node, "tag")
    if tag in {"img", "media"}:
        kind, key = ("image", "image_key") if tag == "img" else ("video", "file_key")
        found.append(Attachment(kind, "", _string(node, key)))
        return ""
    write = _NODES.get(tag)
    return write(node) if write else _string(node, "text")


def _link(node: dict[str, Any]) -> str:
    text, href = _string(node, "text"), _string(node, "href")
    return f"[{text}]({href})" if href and href != text else text


def _at(node: dict[str, Any]) -> str:
    user = _string(node, "user_id")
    if user in {"all", "@_all"}:
        return "@_all"
    return user if _PLACEHOLDER.fullmatch(user) else "@" + (_string(node, "user_name") or "?")


def _code(node: dict[str, Any]) -> str:
    code = _string(node, "text").rstrip("\n")
    return f"```{_string(node, 'language').lower()}\n{code}\n```"


_NODES: dict[str, Callable[[dict[str, Any]], str]] = {
    "a": _link,
    "at": _at,
    "code_block": _code,
    "hr": lambda _: "---",
    "emotion": lambda node: f"[{_string(node, 'emoji_type')}]",
}
