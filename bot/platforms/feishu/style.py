"""How a slice of an answer is written for each kind of message, and how that gets simpler when Feishu refuses it."""

from __future__ import annotations

import re

from bot.domain.cutting import carry
from bot.domain.markdown import Dialect, escape, guard, plain, preview, render
from bot.platforms.feishu.card import CARD_BYTES, TEXT_BYTES, size_bytes

_SHRINK = 0.6
_MIN_SCALE = 0.1
# No text grows by more than this when it is rendered and packed: a cheap "it fits" for short ones.
_WORST_BYTES_PER_CHAR = 6


class Style:
    """The way one reply is written now. Owned by its driver."""

    def __init__(self, table_limit: int) -> None:
        self._table_limit = table_limit
        self._scale = 1.0
        self._verbatim = False

    def body(self, kind: str, text: str, start: int, end: int, *, final: bool) -> str:
        """text[start:end] as it is shown; what an earlier message left open is opened again.

        Space at the end waits for what follows it: a final text has none, and must extend what was shown.
        """
        return self._body(kind, text, start, end, final=final).rstrip()

    def _body(self, kind: str, text: str, start: int, end: int, *, final: bool) -> str:
        if end <= start:
            return ""
        if kind == "text":
            return plain(text[start:end])
        chunk = carry(text, start) + text[start:end]
        if self._verbatim:
            return _as_code(chunk)
        if kind == "post":
            return render(chunk, final=final, table_limit=len(chunk), dialect=Dialect.POST)
        return render(chunk, final=final, table_limit=self._table_limit)

    def sentence(self, kind: str, text: str) -> str:
        """A sentence of our own."""
        if kind == "text":
            return plain(text)
        return escape(text, Dialect.POST if kind == "post" else Dialect.CARD)

    def preview(self, text: str, start: int) -> str:
        """One line for the list of chats."""
        return preview(text[start : start + 400])

    def fits(self, kind: str, text: str, start: int, end: int) -> bool:
        """Whether a slice can be shown in one message of this kind."""
        room = (TEXT_BYTES if kind == "text" else CARD_BYTES) * self._scale
        if (end - start) * _WORST_BYTES_PER_CHAR < room / 2:
            return True
        return size_bytes(self.body(kind, text, start, end, final=True)) <= room

    def shrink(self) -> bool:
        """Feishu says "too big": first no tables, then less in one message. False when it cannot get smaller."""
        if self._table_limit:
            self._table_limit = 0
            return True
        self._scale *= _SHRINK
        return self._scale >= _MIN_SCALE

    def make_plain(self) -> bool:
        """Feishu refuses the Markdown: show it as code. False when that was tried."""
        if self._verbatim:
            return False
        self._verbatim = True
        return True

    def make_rich(self) -> None:
        """Markdown again: it was not the Markdown that was refused."""
        self._verbatim = False


def _as_code(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"{mark}\n{guard(text)}\n{mark}"
