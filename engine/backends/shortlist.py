"""The few tokens that a sampler chain can choose from, found without looking at each: exact, and some times faster.

llama.cpp's chain begins with a list of every token (12 bytes each) that it then cuts down: with penalties 0.16-0.25 ms of one
core for 49,000 tokens and three times that for 152,000, for every reply in every step, while all other cores wait. But
penalties change only tokens of the last few, so what the chain would keep is among these and the best others of the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

# Groups of values whose maxima are compared first: many against the length of a shortlist, few against a vocabulary.
_GROUPS: Final = 1024


def shortlist(row: Row, n_best: int, recent: Iterable[int]) -> Ids:
    """Every token that can be among the `n_best` (>= 1) after penalties have changed some of `recent` (tokens of this
    vocabulary), each once, and perhaps some more."""
    penalized = np.array([*{*recent}], dtype=np.int64)
    least = _floor(row, n_best + len(penalized))
    best = (row >= least).nonzero()[0]
    if not len(best):  # a row of NaN: somebody must be chosen
        return np.arange(len(row))
    return np.concatenate([best, penalized[row[penalized] < least]])


def _floor(row: Row, n: int) -> np.float32:
    """A value that at least `n` of the row reach, and not many more: the n-th of the groups' maxima."""
    n_rows = len(row) // _GROUPS
    if n > _GROUPS or not n_rows:
        return np.float32(-np.inf)
    maxima = row[: n_rows * _GROUPS].reshape(n_rows, _GROUPS).max(axis=0)
    return np.float32(np.partition(maxima, _GROUPS - n)[_GROUPS - n])
