"""How a slice of an answer is written for DingTalk (dingtalk.md §4.4, §4.5, §5.6), and how much fits into one message.

Cards and messages know different Markdown. In both, a single line feed is no line break: cards want `<br>`, messages two
spaces. Nothing a model writes can mention anybody: no `<a atId=…>` survives, and whom a message mentions, its `at` says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from bot.domain.cutting import carry
from bot.domain.markdown import (
    Dialect,
    Fence,
    clean,
    escape,
    fence_opened_by,
    guard,
    is_delimiter,
    may_head_table,
    plain,
    preview,
    render,
)
from bot.platforms.dingtalk.api import dumps

_ZERO_WIDTH = "\u200b"
_SHRINK = 0.6
_MIN_SCALE = 0.1
_NO_LIMIT = 1_000_000
_A_TAG = re.compile(r"<(?=\s*+(?:/\s*+)?a\b[^<>]{0,300}?atid)", re.IGNORECASE)
_LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_NUMBERED = re.compile(r"^\s*\d{1,9}[.)]\s")
_QUOTE = re.compile(r"^\s*>\s?")
_BLOCK = re.compile(r"^\s*(?:#{1,6}\s|=+\s*$)")
_RULE = re.compile(r"^\s*(?:[-*_]\s*){3,}$")
_DEEP_HEADING = re.compile(r"^(\s*)#{6,}(?=\s)")
_PIPE = re.compile(r"(?<!\\)\|")
# Code spans and links are left alone; what is left over of the pattern is a bare address.
_BARE_URL = re.compile(
    r"(?P<kept>(?<!`)(`++).{1,300}?(?<!`)\2(?!`)|!?\[[^\[\]]*\]\([^)\s]*\))|(?P<url>https?://[^\s<>()\[\]`\"'|，。；：！？、）】》]+)"
)
_URL_TAIL = ".,;:!?*_~"


@dataclass(frozen=True, slots=True)
class Room:
    """How much one message takes: characters as shown, and bytes as sent."""

    chars: int
    size_bytes: int


# In the field, cards of about 3,000 Chinese characters show blank, while 2-3K per update work (§5.2); the documents
# allow 1K per update and 1 KB per variable. A message's msgParam takes 15,000 bytes, its escapes included (§4.4).
_FIELD_CARD, _DOCUMENTED_CARD = Room(2_500, 9_000), Room(1_000, 1_000)
_MESSAGE = Room(3_700, 14_000)
# Room for the person who is mentioned, the mark of a repeat and the notice at the end.
_MARGIN = Room(120, 400)
_SMALL_MARGIN = Room(40, 120)


def card_markdown(text: str, *, final: bool) -> str:
    """A model's Markdown for the Markdown variable of an AI card."""
    return _Lines("<br>", links=True).write(_safe(text, final=final))


def message_markdown(text: str) -> str:
    """A model's Markdown for a message."""
    return _Lines("  \n", links=False).write(_safe(text, final=True))


def _safe(text: str, *, final: bool) -> str:
    shown = render(text, final=final, table_limit=_NO_LIMIT, dialect=Dialect.POST)
    return _A_TAG.sub("<" + _ZERO_WIDTH, shown)


@dataclass(slots=True)
class _Lines:
    """One pass over rendered Markdown: joins its lines as DingTalk wants them. `line_break` stands between two lines of prose."""

    line_break: str
    links: bool
    _out: list[str] = field(default_factory=list)
    _fence: Fence | None = None
    _in_table: bool = False
    _last: str = ""
    _last_kind: str = "blank"

    def write(self, text: str) -> str:
        lines = text.split("\n")
        for n, line in enumerate(lines):
            kind = self._kind(line, lines[n + 1] if n + 1 < len(lines) else "")
            self._put(self._shown(line, kind), kind)
            self._last, self._last_kind = line, kind
        if self._fence:  # a growing answer: the rest of the card must not become code
            self._out.append("\n" + self._fence.mark)
        return "".join(self._out)

    def _kind(self, line: str, following: str) -> str:
        if self._fence:
            if self._fence.closed_by(line):
                self._fence = None
            return "code"
        self._fence = fence_opened_by(line)
        if self._fence:
            self._in_table = False
            return "fence"
        heads = may_head_table(line) and is_delimiter(following)
        self._in_table = "|" in line and (self._in_table or heads)
        if self._in_table:
            return "table"
        return _kind_of_prose(line)

    def _put(self, shown: str, kind: str) -> None:
        last = self._last_kind
        if not self._out:
            self._out.append(shown)
        elif kind == last == "prose":
            self._out.append(self.line_break + shown)
        elif kind == last == "quote" and _QUOTE.sub("", shown) and _QUOTE.sub("", self._last):
            marked = self.line_break == "<br>"
            self._out.append(self.line_break + (_QUOTE.sub("", shown) if marked else shown))
        elif _stands_apart(kind, last):
            self._out.append("\n\n" + shown)
        else:
            self._out.append("\n" + shown)

    def _shown(self, line: str, kind: str) -> str:
        if kind in {"code", "fence"}:
            return line
        if kind == "table":
            bare = line.strip().removeprefix("|").removesuffix("|")
            cells = [cell.strip() for cell in _PIPE.split(bare)]
            line = f"| {' | '.join(cells)} |"
        if _RULE.match(line):
            return "***"
        line = _DEEP_HEADING.sub(r"\1#####", line)
        if not self.links:
            return line.replace("<br>", self.line_break) if kind != "table" else line
        return _BARE_URL.sub(_link, line)


def _stands_apart(kind: str, last: str) -> bool:
    """Whether an empty line must stand between two lines."""
    if kind in {"table", "fence", "numbered", "rule"}:
        return last not in {kind, "blank", "list"}
    return kind == "prose" and last in {"table", "code", "list", "numbered"}


def _kind_of_prose(line: str) -> str:
    if not line.strip():
        return "blank"
    if _QUOTE.match(line):
        return "quote"
    if _RULE.match(line):
        return "rule"
    if _BLOCK.match(line):
        return "block"
    if _NUMBERED.match(line):
        return "numbered"
    if _LIST_ITEM.match(line) or line.startswith(("  ", "\t")):
        return "list"
    return "prose"


def _link(match: re.Match[str]) -> str:
    if match["kept"] is not None:
        return match[0]
    url = match["url"].rstrip(_URL_TAIL)
    return f"[{url}]({url}){match['url'][len(url) :]}"


class Style:
    """The way one reply is written now. Owned by its driver."""

    def __init__(self, *, documented: bool) -> None:
        self._card = _DOCUMENTED_CARD if documented else _FIELD_CARD
        self._card_margin = _SMALL_MARGIN if documented else _MARGIN
        self._scale = 1.0
        self._verbatim = False

    def body(self, kind: str, text: str, start: int, end: int, *, final: bool) -> str:
        """text[start:end] as it is shown; what an earlier message left open is opened again."""
        if end <= start:
            return ""
        if kind == "text":
            return plain(text[start:end]).rstrip()
        chunk = carry(text, start) + text[start:end]
        if self._verbatim:
            return _as_code(chunk)
        shown = card_markdown(chunk, final=final) if kind == "card" else message_markdown(chunk)
        return shown.rstrip()

    def sentence(self, kind: str, text: str) -> str:
        """A sentence of our own."""
        return plain(text) if kind == "text" else escape(text, Dialect.POST)

    def title(self, text: str, start: int) -> str:
        """One line for the list of chats."""
        return preview(text[start : start + 400], 40)

    def fits(self, kind: str, text: str, start: int, end: int) -> bool:
        """Whether a slice can be shown in one message of this kind."""
        room, margin = (self._card, self._card_margin) if kind == "card" else (_MESSAGE, _MARGIN)
        if end - start > 4 * room.chars:
            return False
        body = self.body(kind, text, start, end, final=True)
        fewer_chars = len(body) <= room.chars * self._scale - margin.chars
        return fewer_chars and size_bytes(body) <= room.size_bytes * self._scale - margin.size_bytes

    def shrink(self) -> bool:
        """DingTalk says "too big": less in one message. False when it cannot get smaller."""
        self._scale *= _SHRINK
        return self._scale >= _MIN_SCALE

    def make_plain(self) -> bool:
        """DingTalk refuses the Markdown: show it as code. False when that was tried."""
        if self._verbatim:
            return False
        self._verbatim = True
        return True


def size_bytes(content: str) -> int:
    """What a text takes as a JSON string."""
    return len(dumps(content).encode("utf-8", "replace"))


def nick(name: str) -> str:
    """A person's name as harmless text."""
    bare = re.sub(r"[\s\[\]()*_`~<>#|\\!]+", " ", clean(name)).strip()
    return guard(bare)[:40]


def _as_code(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"{mark}\n{_A_TAG.sub('<' + _ZERO_WIDTH, guard(text))}\n{mark}"
