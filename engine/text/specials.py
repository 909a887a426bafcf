"""Finds the texts of control tokens ("<|im_end|>") inside what people typed. Pure; knows no token ids.

Fast on hostile input too: a text of n characters costs at most n times the number of distinct lengths of such texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

# Breaks a control text in two without being seen.
ZERO_WIDTH_SPACE = "\u200b"


class SpecialTexts:
    """The control texts of one vocabulary; immutable."""

    __slots__ = ("_first", "_lengths", "_texts", "longest_chars")

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(text for text in texts if text)
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: tuple(sorted(sizes)) for first, sizes in lengths.items()}
        firsts = "".join(re.escape(first) for first in sorted(lengths))
        self._first = re.compile(f"[{firsts}]") if firsts else None
        self.longest_chars = max(map(len, self._texts), default=0)

    def __contains__(self, text: object) -> bool:
        return text in self._texts

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, end) of every occurrence, overlapping ones too, by start."""
        if self._first is None:
            return
        for match in self._first.finditer(text):
            start = match.start()
            for n_chars in self._lengths[match.group()]:
                if text[start : start + n_chars] in self._texts:
                    yield start, start + n_chars

    def touch(self, before: str, content: str, after: str) -> bool:
        """Whether a control text lies in `content` or is completed by it together with what stands around it."""
        margin = max(0, self.longest_chars - 1)
        head = before[len(before) - margin :] if margin < len(before) else before
        window = head + content + after[:margin]
        content_end = len(head) + len(content)
        return any(start < content_end and end > len(head) for start, end in self.spans(window))

    def neutralise(self, text: str) -> str:
        """`text` with every control text broken by a zero-width space behind its first character."""
        breaks = {start + 1 for start, end in self.spans(text) if end - start > 1}
        if not breaks:
            return text
        cuts = [0, *sorted(breaks), len(text)]
        return ZERO_WIDTH_SPACE.join(text[a:b] for a, b in pairwise(cuts))
