"""How DingTalk's cards and messages show Markdown, as far as it changes what people read (dingtalk.md §4.5, §5.6). Pure.

A single line feed is no line break. In a card `<br>` is one, and tags other than `<font>` and `<a>` vanish; in a message two
spaces before the line feed make it one. Code stays as it is.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_BLOCK = re.compile(r"^\s*(#{1,6}\s|[-*+]\s|\d+[.)]\s|>|\||(\*\s*){3,}$|(-\s*){3,}$)")
_CODE_SPAN = re.compile(r"(`+)(.+?)\1")
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9-]*)((?:\s[^<>]*)?)/?>")
_AT = re.compile(r"<a\s+[^<>]*?atId\s*=\s*[\"']?([^\"'<>\s]+)[\"']?[^<>]*>", re.IGNORECASE)
_AT_WHOLE = re.compile(
    r"<a\s+[^<>]*?atId\s*=\s*[\"']?[^\"'<>\s]+[\"']?[^<>]*>(.*?)</a>", re.IGNORECASE | re.DOTALL
)
_BR = re.compile(r"<br\s*/?>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a person reads, and what went wrong on the way there.

    `glued` are the lines that run into the one before; `mentions` the ids of `<a atId=…>`; `swallowed` the names of tags
    that vanish.
    """

    text: str
    glued: tuple[str, ...]
    mentions: tuple[str, ...]
    swallowed: tuple[str, ...]


def card_text(source: str) -> Shown:
    """Read a card's Markdown as the client does."""
    prose = [line for line, code in _lines(source) if not code]
    tags = [tag[1] for line in prose for tag in _TAG.finditer(_without_code(line))]
    text, glued = _joined(source, _inline, lambda line: _BR.search(line[-8:]) is not None)
    return Shown(
        text,
        glued,
        tuple(any_id for line in prose for any_id in _AT.findall(_without_code(line))),
        tuple(tag for tag in tags if tag.lower() not in {"br", "font", "a"}),
    )


def message_text(source: str) -> Shown:
    """Read the Markdown of a message that is no card."""
    text, glued = _joined(source, str.rstrip, lambda line: line.endswith("  "))
    return Shown(text, glued, (), ())


def _lines(source: str) -> Iterator[tuple[str, bool]]:
    """Every line, and whether it is (the fence or the inside of) code."""
    fence = ""
    for line in source.split("\n"):
        mark = _FENCE.match(line)
        yield line, bool(fence or mark)
        if not fence and mark:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not line.strip(" `~"):
            fence = ""


def _joined(
    source: str, shown: Callable[[str], str], breaks: Callable[[str], bool]
) -> tuple[str, tuple[str, ...]]:
    """The text with its lines joined where the client joins them, and the lines that it joined unasked."""
    out: list[str] = []
    glued: list[str] = []
    before = ""
    for line, code in _lines(source):
        if code:
            out.append(line)
            before = ""
            continue
        if not (_is_prose(before) and _is_prose(line)):
            out.append(shown(line))
        elif breaks(before):
            # The break stood at the end of the line before; the line feed after it is none.
            out[-1] = out[-1].removesuffix("\n")
            out.append(shown(line))
        else:
            glued.append(line)
            out[-1] += shown(line)
        before = line
    return "\n".join(out), tuple(glued)


def _is_prose(line: str) -> bool:
    return bool(line.strip()) and not _BLOCK.match(line)


def _without_code(line: str) -> str:
    return _CODE_SPAN.sub("", line)


def _inline(line: str) -> str:
    parts: list[str] = []
    end = 0
    for span in _CODE_SPAN.finditer(line):
        parts += [_prose(line[end : span.start()]), span[0]]
        end = span.end()
    return "".join([*parts, _prose(line[end:])])


def _prose(text: str) -> str:
    text = _AT_WHOLE.sub(lambda m: f"@{m[1]}", text)
    text = _BR.sub("\n", text)
    return html.unescape(_TAG.sub("", text))
