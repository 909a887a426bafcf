"""Where a long answer may be cut so that each piece stands for itself in a message: pure functions.

A cut keeps paragraphs, then lines whole; it never falls inside a character. When a fence or a table must be cut, the next
piece begins with what re-opens it (`carry`); the renderer closes the first piece (`bot.domain.markdown.render`, final).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bot.domain.markdown import Fence, fence_opened_by, is_delimiter, may_head_table

_PARAGRAPH, _LINE, _INSIDE = 3, 2, 1
_SENTENCE_ENDS = "。！？；.!?;,，、 "
# Behind these nothing can follow that belongs to them: not so behind the dot of a growing "3.1".
_PAUSES = "。！？；，、 "
# A cut this far into the room is preferred to a nicer one much earlier.
_WINDOW = 0.5


@dataclass(slots=True)
class _Scan:
    """What is open after the lines read so far."""

    fence: Fence | None = None
    table_head: str = ""
    _line_before: str = ""

    def read(self, line: str) -> None:
        if self.fence:
            if self.fence.closed_by(line):
                self.fence = None
            return
        self.fence = fence_opened_by(line)
        if self.fence or "|" not in line:
            self.table_head = ""
        elif not self.table_head and may_head_table(self._line_before) and is_delimiter(line):
            self.table_head = f"{self._line_before}\n{line}\n"
        self._line_before = "" if self.fence else line


def carry(text: str, at: int, head_chars: int = 2000) -> str:
    """What a message that begins at `text[at:]` must repeat first: an open fence's first line or a table's head.

    A head of more than `head_chars` is not repeated: it would leave no room for the rows.
    """
    if at <= 0:
        return ""
    before = text[:at].replace("\r", "")
    scan = _Scan()
    lines = before.split("\n")
    for line in lines[:-1]:
        scan.read(line)
    if scan.fence:
        return scan.fence.opener + "\n"
    follows = _line_at(text, at)
    is_inside = 0 < len(scan.table_head) <= head_chars and not lines[-1] and "|" in follows
    return scan.table_head if is_inside else ""


def _line_at(text: str, at: int) -> str:
    """The rest of the line that `at` is in, without a copy of all that follows."""
    end = text.find("\n", at)
    return text[at:] if end < 0 else text[at:end]


def _line_cuts(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(position, rank) of every line end in (start, end]."""
    scan = _Scan()
    at = 0
    while (newline := text.find("\n", at, end)) >= 0:
        line = text[at:newline].replace("\r", "")
        scan.read(line)
        at = newline + 1
        if at <= start:
            continue
        follows = _line_at(text, at)
        if scan.fence or (scan.table_head and "|" in follows):
            yield at, _INSIDE
        elif line.lstrip().startswith("#") or is_delimiter(follows):
            yield at, 0
        else:
            yield at, _LINE if line.strip() else _PARAGRAPH


def _extends(text: str, at: int) -> bool:
    """Whether text[at] belongs to the character before it (marks, joiners, skin tones, flags)."""
    char, before = text[at], text[at - 1]
    if (
        unicodedata.category(char) in {"Mn", "Mc", "Me"}
        or char in "\u200d\ufe0f"
        or before == "\u200d"
    ):
        return True
    if "\U0001f3fb" <= char <= "\U0001f3ff":
        return True
    flags = all("\U0001f1e6" <= c <= "\U0001f1ff" for c in (char, before))
    return flags or (before == "\r" and char == "\n")


def _whole_character(text: str, start: int, end: int) -> int:
    at = end
    while at > start + 1 and at < len(text) and _extends(text, at):
        at -= 1
    return at if at > start + 1 or at >= len(text) or not _extends(text, at) else end


def best_cut(text: str, start: int, end: int) -> int:
    """The nicest place in (start, end] to end a message that begins at `start`; `end` is the furthest that fits."""
    if end >= len(text):
        return len(text)
    soon = start + int((end - start) * _WINDOW)
    cuts = [cut for cut in _line_cuts(text, start, end) if cut[1] > 0]
    late = [cut for cut in cuts if cut[0] > soon]
    pool = late or [cut for cut in cuts if cut[1] >= _LINE and cut[0] > start + (soon - start) // 4]
    if pool:
        return max(pool, key=lambda cut: (cut[1], cut[0]))[0]
    for at in range(end, max(soon, start + 1), -1):
        if text[at - 1] in _SENTENCE_ENDS and not _extends(text, at):
            return at
    return _whole_character(text, start, end)


def last_pause(text: str, start: int) -> int:
    """Where a text that still grows, without a line end, may be interrupted: behind its last word or clause, else before its
    last character, which may not be whole yet."""
    for at in range(len(text), start + 1, -1):
        if text[at - 1] in _PAUSES:
            return at
    at = _whole_character(text, start, max(start, len(text) - 1))
    return at if start < at and not _extends(text, at) else len(text)


def cut_where(text: str, start: int, fits: Callable[[int], bool]) -> int | None:
    """Where a part that begins at `start` must end; None when all that is left fits. `fits(end)`: whether a part may."""
    if start >= len(text) or fits(len(text)):
        return None
    return best_cut(text, start, furthest(start, len(text), fits))


def furthest(start: int, end: int, fits: Callable[[int], bool]) -> int:
    """The largest position in [start + 1, end] for which `fits` holds (start + 1 when none does)."""
    low, high = start + 1, end
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
