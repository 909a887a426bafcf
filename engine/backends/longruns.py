"""Cuts text where it runs on for thousands of characters without white space, or of nothing else. Pure.

llama.cpp splits text by regular expressions first, for many models (DeepSeek, Mistral, gpt-oss, Falcon, …) by std::regex, which
goes one call deeper with every character of a match: 30,000 equal letters overflow the stack and end the process. A match
never reaches over both ends of such a run, so text cut into runs of a bounded length is safe. Any list of ids that stands for
the same text is as good; ordinary text has no such runs and is not cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

MAX_RUN_CHARS: Final = 2048
# What parts words differs: a C++ expression knows the white space of ASCII, llama.cpp that of Unicode. Both are bounded. Each
# run begins where nothing of its kind stands before it, so that the search takes linear time.
_RUNS: Final = tuple(
    re.compile(rf"(?<!{kind}){kind}{{{MAX_RUN_CHARS + 1},}}") for kind in (r"[^ \t\n\r\f\v]", r"\s")
)


def cut_long_runs(text: str, specials: Sequence[str]) -> list[str]:
    """The text in pieces; none is cut inside one of `specials`, the texts of control tokens."""
    cuts = {
        _beside_specials(text, at, specials)
        for runs in _RUNS
        for run in runs.finditer(text)
        for at in range(run.start() + MAX_RUN_CHARS, run.end(), MAX_RUN_CHARS)
    }
    return [text[a:b] for a, b in pairwise((0, *sorted(cuts), len(text)))]


def _beside_specials(text: str, at: int, specials: Sequence[str]) -> int:
    for special in specials:
        found = text.find(special, max(0, at - len(special) + 1), at + len(special) - 1)
        if found >= 0:
            return found
    return at
