"""How a client reads Markdown of the bot: thinking blocks, mentions, what the app's small dialect does not know. Pure."""

from __future__ import annotations

import re

from bot.sandbox.feishu.markdown import split_code

_THINK = re.compile(r"<think>.*?</think>", re.DOTALL)
_OPEN_THINK = re.compile(r"<think>(?!.*</think>)", re.DOTALL)
_MENTION = re.compile(r"<@([^>\s]{1,64})>")
_BEYOND_APP = (
    ("fenced code", re.compile(r"^\s*(```|~~~)", re.MULTILINE)),
    ("a table", re.compile(r"^\s*\|.*\|\s*\n\s*\|[\s:|-]+\|", re.MULTILINE)),
    ("a list", re.compile(r"^\s*([-*+]|\d+\.)\s+\S", re.MULTILINE)),
)


def readable(content: str) -> str:
    """What a person reads: without the thinking blocks."""
    return _THINK.sub("", content).strip()


def leaves_think_open(content: str) -> bool:
    """The last <think> outside code is not closed."""
    prose, _ = split_code(content)
    return bool(_OPEN_THINK.search(prose))


def mentions(content: str) -> list[str]:
    """The ids in <@…> outside code."""
    return _MENTION.findall(split_code(content)[0]) if "<@" in content else []


def beyond_app_markdown(content: str) -> list[str]:
    """The constructs that message/send's Markdown shows as raw characters (wecom.md §4.2)."""
    return [name for name, pattern in _BEYOND_APP if pattern.search(content)]


def cut_bytes(text: str, size: int) -> str:
    """The first `size` bytes, without half a character."""
    return text.encode()[:size].decode(errors="ignore")
