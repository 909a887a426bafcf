"""How an answer is written for a self-built app (wecom.md §4.2): plain text by default, counted in bytes. Pure.

`text` messages show no Markdown but do show `<a href>`; `markdown` messages know headings, bold, links, inline code and
quotes, but no lists, tables or fences. What is not known is written as people would write it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bot.domain.cutting import best_cut, carry, furthest
from bot.domain.markdown import Fence, clean, fence_opened_by, is_delimiter
from bot.platforms.wecom.style import clip, seen, size_bytes

MESSAGE_BYTES = 2048
# "(12/15)\n", a mark that it may be a repeat, and two line feeds.
_RESERVED_BYTES = 96
# Most characters are shown, in a byte at least: what is further away need not be looked at.
_WINDOW_CHARS = 4 * MESSAGE_BYTES
_HEAD_SHARE = 12
# No pattern may take more than a few steps per character, whatever a model writes: it is the event loop that waits. So
# whitespace is possessive, and what stands between two marks is bounded.
_TAG = re.compile(r"<(?=\s*+(?:@|(?:/\s*+)?(?:a|font|think|at|person)\b))", re.IGNORECASE)
_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
_HEADING = re.compile(r"^ {0,3}#{1,6}\s++(?P<title>.*)$")
_RULE = re.compile(r"^\s*(?:-\s*){3,}$|^\s*(?:\*\s*){3,}$|^\s*(?:_\s*){3,}$")
_BULLET = re.compile(r"^(?P<indent>\s*)[-*+]\s+(?P<rest>.*)$")
_CODE_SPAN = re.compile(r"(?<!`)(?P<mark>`++)(?P<code>.{1,300}?)(?<!`)(?P=mark)(?!`)")
_LINK = re.compile(r"!?\[(?P<text>[^\[\]\n]*)\]\((?P<url>[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+\"[^\"\n]*\")?\)")  # fmt: skip
_STRONG = re.compile(r"(?P<mark>\*\*|__|~~)(?=\S)(?P<text>.{1,300}?)(?<=\S)(?P=mark)")
_EMPHASIS = re.compile(r"(?<![\w*])\*(?=[^\s*])(?P<text>[^*\n]+?)(?<=[^\s*])\*(?![\w*])")


def shield(text: str) -> str:
    """Nothing in it is a link with a hidden target, a mention or a tag."""
    return _TAG.sub("<\u200b", text)


def _link(match: re.Match[str]) -> str:
    text, url = match["text"].strip(), match["url"]
    return url if not text or text == url else f"{text} ({url})"


def _plain_line(text: str) -> str:
    text = _LINK.sub(_link, _BREAK.sub("\n", text))
    text = _STRONG.sub(lambda match: match["text"], text)
    return _EMPHASIS.sub(lambda match: match["text"], text)


def _outside_code(text: str, change: Callable[[str], str], *, keep_marks: bool) -> str:
    """A line with everything but its code spans changed."""
    out, at = [], 0
    for span in _CODE_SPAN.finditer(text):
        out += [change(text[at : span.start()]), span[0] if keep_marks else span["code"].strip()]
        at = span.end()
    return "".join([*out, change(text[at:])])


def _title(text: str) -> str:
    """A heading without the marks that may close it; those of "C#" are its own."""
    bare = text.rstrip()
    open_end = bare.rstrip("#")
    return open_end.rstrip() if open_end[-1:].isspace() else bare


def _line(line: str, *, markdown: bool) -> str:
    heading = _HEADING.match(line)
    if heading and not markdown:
        line = _title(heading["title"])
    elif _RULE.match(line):
        return "———"
    bullet = _BULLET.match(line)
    if bullet:
        line = f"{bullet['indent']}• {bullet['rest']}"
    if line.lstrip().startswith("|") and line.rstrip().endswith("|"):
        cells = [cell.strip() for cell in _BREAK.sub(" ", line).strip().strip("|").split("|")]
        line = " | ".join(cells)
    if markdown:
        return _outside_code(line, lambda text: _BREAK.sub("\n", text).replace("![", "["), keep_marks=True)  # fmt: skip
    return _outside_code(line, _plain_line, keep_marks=False)


def render(text: str, *, markdown: bool) -> str:
    """A model's Markdown as an app's message."""
    out: list[str] = []
    fence: Fence | None = None
    for line in clean(text).split("\n"):
        if fence:
            if fence.closed_by(line):
                fence = None
            else:
                out.append(line)
            continue
        fence = fence_opened_by(line)
        if not fence and not is_delimiter(line):
            out.append(_line(line, markdown=markdown))
    return shield("\n".join(out))


def piece(text: str, start: int, end: int, *, markdown: bool) -> str:
    """text[start:end] as it is shown in a message of its own."""
    return _shown(_head(text, start), text[start:end], markdown) if end > start else ""


def cuts(text: str, *, markdown: bool) -> list[tuple[int, int]]:
    """Where the messages of an answer begin and end: between paragraphs if possible, never inside a character."""

    found: list[tuple[int, int]] = []
    start = 0
    while start < len(text):
        end = _end(text, start, markdown)
        found.append((start, end))
        start = end
    return found


def _end(text: str, start: int, markdown: bool) -> int:
    """Where the message that begins at `start` ends."""
    head = _head(text, start)

    def fits(end: int) -> bool:
        shown = _shown(head, text[start:end], markdown)
        return size_bytes(shown) <= MESSAGE_BYTES - _RESERVED_BYTES

    end = min(len(text), start + _WINDOW_CHARS)
    return best_cut(text, start, end if fits(end) else furthest(start, end, fits))


def _head(text: str, start: int) -> str:
    return carry(text, start, MESSAGE_BYTES // _HEAD_SHARE)


def _shown(head: str, text: str, markdown: bool) -> str:
    return seen(render(head + text, markdown=markdown).strip("\n").rstrip())


def message(content: str, *, number: int, total: int, mark: str = "") -> str:
    """A message with its number where there are several, and the mark of a possible repeat."""
    tag = f"({number}/{total})\n" if total > 1 else ""
    head = f"{mark}\n" if mark else ""
    return clip(f"{head}{tag}{content}", MESSAGE_BYTES)
