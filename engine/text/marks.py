"""Marks that stand for message contents while a chat template is rendered. Pure."""

from __future__ import annotations

import re

# Private-use characters: no white space to trim, no case to change, nothing that a template looks for.
_OPEN, _CLOSE, _DIGIT_ZERO = "\ue0f0", "\ue0f1", 0xE100
_MARK = re.compile(f"{_OPEN}([\ue100-\ue109]+){_CLOSE}")


class MarkLost(Exception):
    """A template dropped, repeated, changed or reordered a mark."""


def mark(index: int) -> str:
    """The mark of content `index`."""
    digits = "".join(chr(_DIGIT_ZERO + int(digit)) for digit in str(index))
    return f"{_OPEN}{digits}{_CLOSE}"


def split_at_marks(text: str, n_marks: int) -> list[str]:
    """Cut rendered text at its marks. Raises MarkLost unless marks 0 … n - 1 are there, once each, in order."""
    found = _MARK.split(text)
    if found[1::2] != [mark(index)[1:-1] for index in range(n_marks)]:
        raise MarkLost
    pieces = found[::2]
    if any(_OPEN in piece or _CLOSE in piece for piece in pieces):
        raise MarkLost
    return pieces
