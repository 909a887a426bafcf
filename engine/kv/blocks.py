"""How a conversation's tokens are cut into blocks, and how a block is named: by everything up to its end. Pure.

A cell depends on its token and on every token before it, so a block is known by the hash of all tokens from the first to
its last one; where the blocks before it were cut makes no difference.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterable, Sequence

# Small enough that little is computed again where a block matches only in part, and far below every sliding window; a block
# of a 14B model at q8_0 has 5 MB, of the demo model 0.8 MB.
BLOCK_TOKENS = 64
_DIGEST_BYTES = 12


class TokenHash:
    """The name of a beginning of a token list, which may grow."""

    def __init__(self) -> None:
        self._state = hashlib.blake2b(digest_size=_DIGEST_BYTES)

    def update(self, tokens: Sequence[int]) -> str:
        """Add tokens; returns the name of everything so far (hex)."""
        self._state.update(array("i", tokens).tobytes())
        return self._state.hexdigest()

    def with_(self, tokens: Sequence[int]) -> str:
        """The name that these tokens would lead to; nothing is added."""
        state = self._state.copy()
        state.update(array("i", tokens).tobytes())
        return state.hexdigest()


def digest_of(tokens: Sequence[int]) -> str:
    """The name of a token list."""
    return TokenHash().update(tokens)


def opaque(text: str) -> str:
    """A file name for a text that must not be readable on disk."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def cut_spans(
    start: int, end: int, marks: Iterable[int], size: int = BLOCK_TOKENS, *, whole: bool
) -> list[tuple[int, int]]:
    """[start, end) in blocks of at most `size` tokens, cut at every mark as well, where later turns may part.

    Without `whole` an unfinished block at the end is left out: it may still grow.
    """
    borders = sorted({start, end, *(mark for mark in marks if start < mark < end)})
    spans = [
        (at, min(at + size, right))
        for left, right in itertools.pairwise(borders)
        for at in range(left, right, size)
    ]
    if spans and not whole and spans[-1][1] - spans[-1][0] < size:
        spans.pop()
    return spans
