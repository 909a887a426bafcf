"""A model's Markdown as a chat platform may show it: pure functions, stable while the text grows.

Owns escaping (nobody can be mentioned by a model), fences, tables over the limit, images, list indents.
Must not know of cards, sizes or calls; the cutting of long texts is `bot.domain.cutting`.

Prefix rule (feishu.md §5.2): for t a prefix of u, `render(t, final=False)` is a prefix of `render(u, final=…)`.
Whatever is still undecided at the end of a growing text (a lone `<`, a half fence, an open backtick) is held back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

_ZERO_WIDTH = "\u200b"
_DROPPED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
# A header further right than this is not looked for: it bounds how much of a line a growing text holds back.
_PIPE_WITHIN_CHARS = 80
_CODE_SPAN_CHARS = 300

FENCE_OPEN = re.compile(r"^[ \t]*(?P<mark>`{3,}|~{3,})(?P<info>.*)$", re.DOTALL)
_FENCE_MAYBE = re.compile(r"^[ \t]*(?:`*|~*)$")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.\-]{1,40}")
# Possessive where whitespace could be shared out in many ways: a line of a thousand spaces must not stop the event loop.
_DELIMITER = re.compile(r"^[\s>]*+\|?\s*+:?-++:?\s*+(?:\|\s*+:?-++:?\s*+)*\|?\s*$")
_DELIMITER_MAYBE = re.compile(r"^[\s>|:\-]*$")
_LIST_ITEM = re.compile(
    r"^(?P<indent>[ \t]*)(?P<rest>(?:[-*+]|\d{1,9}[.)])(?:[ \t].*|))$", re.DOTALL
)
_LIST_MAYBE = re.compile(r"^[ \t]+(?:[-*+]|\d{1,9}[.)]?)?$")
_SPECIAL = re.compile(r"[<!`\\]")
_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
_BREAK_MAYBE = re.compile(r"<(?:b(?:r(?: ?/?)?)?)?$", re.IGNORECASE)
_MENTION = re.compile(r"<(?=\s*+(?:/\s*+)?(?:at|person)\b)", re.IGNORECASE)
_MENTION_MAYBE = re.compile(
    r"<\s*+(?:/\s*+)?(?:at|a|person|perso|pers|per|pe|p)?$", re.IGNORECASE
)  # fmt: skip


class Dialect(StrEnum):
    """Where the Markdown is shown. CARD knows numeric entities; the others do not, so a zero-width space breaks their tags.

    WECOM knows no tags at all: a line break is a new line there, inside a table a space.
    """

    CARD = "card"
    POST = "post"
    WECOM = "wecom"


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code fence: its marker as written, its language, and how far it was indented."""

    mark: str
    language: str
    indent: int

    @property
    def opener(self) -> str:
        """The line that opens it, at column 0 (feishu.md §5.6)."""
        return self.mark + self.language

    def closed_by(self, line: str) -> bool:
        """Whether a whole line ends this fence."""
        bare = line.strip(" \t")
        return len(bare) >= len(self.mark) and not bare.strip(self.mark[0])


def fence_opened_by(line: str) -> Fence | None:
    """The fence that a whole line opens, if it does."""
    match = FENCE_OPEN.match(line)
    if not match or (match["mark"][0] == "`" and "`" in match["info"]):
        return None
    language = _LANGUAGE.match(match["info"].strip())
    return Fence(match["mark"], language[0] if language else "", match.start("mark"))


def may_head_table(line: str) -> bool:
    """Whether a line can be the header row of a table."""
    return "|" in line[:_PIPE_WITHIN_CHARS]


def is_delimiter(line: str) -> bool:
    """Whether a line is the `|---|---|` row under a table's header."""
    return "|" in line and bool(_DELIMITER.match(line))


def clean(text: str) -> str:
    """The text without carriage returns, control characters and lone surrogates."""
    return _DROPPED.sub("", text)


def guard(text: str) -> str:
    """Code or plain text in which no platform can read a mention: a zero-width space stands behind its `<`."""
    return _MENTION.sub("<" + _ZERO_WIDTH, text)


def _guard_part(text: str, complete: bool) -> str:
    if not complete:
        open_tag = _MENTION_MAYBE.search(text)
        if open_tag:
            text = text[: open_tag.start()]
    return guard(text)


@dataclass(slots=True)
class _Renderer:
    """One pass over a text. Lives for one call; `out` is its result."""

    table_limit: int
    dialect: Dialect
    out: list[str] = field(default_factory=list)
    fence: Fence | None = None
    # "" outside tables, "shown" inside one that stays a table, "wrapped" inside one that became code.
    table: str = ""
    tables: int = 0
    indents: list[int] = field(default_factory=list)

    def line(self, line: str, following: str | None) -> None:
        """A whole line; `following` is the next one, None at the end of the text."""
        if self.fence:
            self._code_line(line)
            return
        if self.table == "wrapped":
            if "|" in line:
                self.out.append(guard(line) + "\n")
                return
            self.out.append("```\n")
        if "|" not in line:
            self.table = ""
        opened = fence_opened_by(line)
        if opened:
            self.fence, self.table, self.indents = opened, "", []
            self.out.append(opened.opener + "\n")
        elif (
            not self.table
            and may_head_table(line)
            and following is not None
            and is_delimiter(following)
        ):
            self._open_table(line)
        else:
            self.out.append(self._text(line, complete=True) + "\n")
            self._note_list(line)

    def partial(self, line: str) -> str:
        """What can already be shown of a last line that still grows."""
        if self.fence:
            bare = line.strip(" \t")
            if not bare.strip(self.fence.mark[0]):
                return ""
            return _guard_part(_dedent(line, self.fence.indent), complete=False)
        if self.table == "wrapped":
            return _guard_part(line, complete=False) if "|" in line else ""
        if _FENCE_MAYBE.match(line) or fence_opened_by(line) or _LIST_MAYBE.match(line):
            return ""
        undecided = not self.table and self.tables >= self.table_limit
        if undecided and (len(line) <= _PIPE_WITHIN_CHARS or may_head_table(line)):
            return ""
        return self._text(line, complete=False)

    def end(self) -> str:
        """What closes an unfinished fence or wrapped table; for final texts only."""
        return self.fence.mark if self.fence else "```" if self.table == "wrapped" else ""

    def waits_for(self, line: str, following: str) -> bool:
        """Whether a whole line must be held back because the growing `following` may make it a table's header."""
        if self.fence or self.table or self.tables < self.table_limit or not may_head_table(line):
            return False
        return not fence_opened_by(line) and bool(_DELIMITER_MAYBE.match(following))

    def _code_line(self, line: str) -> None:
        fence = self.fence
        if fence is None:
            return
        if fence.closed_by(line):
            self.fence = None
            self.out.append(line.strip(" \t") + "\n")
        else:
            self.out.append(guard(_dedent(line, fence.indent)) + "\n")

    def _open_table(self, header: str) -> None:
        self.tables += 1
        self.table = "shown" if self.tables <= self.table_limit else "wrapped"
        if self.table == "shown":
            self.out.append(self._text(header, complete=True) + "\n")
        else:
            self.out.append("```\n" + guard(header) + "\n")

    def _note_list(self, line: str) -> None:
        item = _LIST_ITEM.match(line)
        if item:
            self.indents = self._nested(_columns(item["indent"]))
        elif line.strip() and line[0] not in " \t":
            self.indents = []

    def _nested(self, indent: int) -> list[int]:
        kept = [column for column in self.indents if column <= indent]
        if not kept or indent >= kept[-1] + 2:
            kept.append(indent)
        return kept

    def _text(self, line: str, *, complete: bool) -> str:
        item = _LIST_ITEM.match(line)
        if item and item["indent"]:
            level = len(self._nested(_columns(item["indent"]))) - 1
            return " " * (4 * level) + _inline(item["rest"], complete, self.dialect)
        return _inline(line, complete, self.dialect)


def _columns(indent: str) -> int:
    return len(indent.expandtabs(4))


def _dedent(line: str, indent: int) -> str:
    spaces = len(line) - len(line.lstrip(" \t"))
    return line[min(spaces, indent) :]


def _inline(text: str, complete: bool, dialect: Dialect) -> str:
    """A line of prose: code spans kept, tags made harmless, images turned into links."""
    out: list[str] = []
    at = 0
    while True:
        special = _SPECIAL.search(text, at)
        if not special:
            out.append(text[at:])
            break
        out.append(text[at : special.start()])
        shown, at = _SHOW[special[0]](text, special.start(), complete, dialect)
        out.append(shown)
        if at < 0:
            break
    return "".join(out)


def _backslash(text: str, at: int, complete: bool, _dialect: Dialect) -> tuple[str, int]:
    following = text[at + 1 : at + 2]
    if not following:
        return ("\\", at + 1) if complete else ("", -1)
    if following == "<":  # an entity behind a backslash would be shown as its source
        return "", at + 1
    if following in "`!\\":
        return text[at : at + 2], at + 2
    return "\\", at + 1


def _backtick(text: str, at: int, complete: bool, _dialect: Dialect) -> tuple[str, int]:
    length = _run(text, at)
    begin = at + length
    if begin == len(text) and not complete:
        return "", -1
    close = begin
    while True:
        close = text.find("`", close)
        if close < 0 or close > begin + _CODE_SPAN_CHARS:
            break
        run = _run(text, close)
        if close + run == len(text) and not complete:
            return "", -1
        if run == length:
            mark = text[at:begin]
            return mark + guard(text[begin:close]) + mark, close + run
        close += run
    if not complete and len(text) <= begin + _CODE_SPAN_CHARS:
        return "", -1
    return text[at:begin], begin


def _exclamation(text: str, at: int, complete: bool, _dialect: Dialect) -> tuple[str, int]:
    run = _run(text, at)
    end = at + run
    before = "!" * (run - 1)
    if end == len(text):
        return (before + "!", end) if complete else (before, -1)
    if text[end] != "[":
        return before + "!", end
    if before:
        before += " "  # or dropping the last one would make a new image of the rest
    if end + 1 == len(text) and not complete:
        return before, -1
    if text[end + 1 : end + 2] == "]":
        return before + "[🖼]", end + 2
    return before + "[", end + 1


def _less_than(text: str, at: int, complete: bool, dialect: Dialect) -> tuple[str, int]:
    line_break = _BREAK.match(text, at)
    if line_break and dialect is Dialect.WECOM:
        return " " if "|" in text else "\n", line_break.end()
    if line_break:
        return "<br>", line_break.end()
    if not complete and _BREAK_MAYBE.match(text, at):
        return "", -1
    return ("&#60;" if dialect is Dialect.CARD else "<" + _ZERO_WIDTH), at + 1


_SHOW = {"\\": _backslash, "`": _backtick, "!": _exclamation, "<": _less_than}


def _run(text: str, at: int) -> int:
    mark = text[at]
    end = at
    while end < len(text) and text[end] == mark:
        end += 1
    return end - at


def render(text: str, *, final: bool, table_limit: int = 3, dialect: Dialect = Dialect.CARD) -> str:
    """A model's Markdown for a platform. `final` closes an unfinished fence; otherwise the prefix rule holds.

    At most `table_limit` tables stay tables, the rest become code (feishu.md §5.6). Tables inside fences do not count.
    """
    lines = clean(text).split("\n")
    renderer = _Renderer(table_limit, dialect)
    for n, line in enumerate(lines[:-1]):
        following = lines[n + 1]
        last = n + 2 == len(lines)
        if not final and last and renderer.waits_for(line, following):
            return "".join(renderer.out)
        renderer.line(line, following)
    if not final:
        return "".join(renderer.out) + renderer.partial(lines[-1])
    renderer.line(lines[-1], None)
    shown = "".join(renderer.out).removesuffix("\n")
    closing = renderer.end()
    if not closing:
        return shown
    return shown + ("" if shown.endswith("\n") else "\n") + closing


def plain(text: str) -> str:
    """The text for a message without Markdown: as the model wrote it, but unable to mention anybody."""
    return guard(clean(text))


def escape(text: str, dialect: Dialect = Dialect.CARD) -> str:
    """A sentence of our own (a status, a notice) with nothing in it that could be a tag."""
    return render(text, final=True, dialect=dialect)


def preview(text: str, limit_chars: int = 60) -> str:
    """One line for the list of chats: the beginning of the text without its marks."""
    bare = re.sub(r"[`*_#>|~]+|!?\[|\]\([^)]*\)", "", clean(text))
    line = " ".join(guard(bare).split())
    return line if len(line) <= limit_chars else line[: limit_chars - 1] + "…"
