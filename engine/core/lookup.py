"""Guessing the next tokens of a reply from text that was there before: its prompt and what it has said so far.

Pure: no model, no clock. A `Lookup` belongs to one reply. It remembers what followed every short run of tokens, takes the
place where the newest ones stood last as the source, and reads on there. Every token that the model then really chose
scores the guess, whether or not it was put into a batch: so a reply that begins to quote is noticed at no cost, and one
that repeats nothing costs a few microseconds per token. Whether a guess is worth computing is `engine.core.drafts`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Lengths of the runs that are remembered; a longer agreement is noticed while it lasts.
SHORTEST_RUN: Final = 2
LONGEST_RUN: Final = 4
# Tokens in one half of the index: when the younger half is full, the older one goes. About 400 bytes per token.
HALF_INDEX_TOKENS: Final = 8192

# How likely the next token is right after so many agreeing ones: up to 2, 3, 5, 8, 16, more. Seen in 26 replies of the demo
# model to ordinary questions: 0.47, 0.49, 0.69, 0.79, 0.89, 0.96. A little less, as larger models repeat themselves less.
_BOUNDS: Final = (2, 3, 5, 8, 16)
_FIRST_GUESS: Final = (0.35, 0.45, 0.65, 0.75, 0.87, 0.95)
_MOST_LIKELY: Final = 0.98
_WEIGHT: Final = 0.1


class NgramIndex:
    """What followed which run of tokens last. Bounded: it forgets the oldest half of what it has seen."""

    __slots__ = ("_n_young", "_old", "_young")

    def __init__(self) -> None:
        self._young: dict[tuple[int, ...], int] = {}
        self._old: dict[tuple[int, ...], int] = {}
        self._n_young = 0

    def add(self, tokens: Sequence[int], at: int) -> None:
        """The token at `at` follows the runs that end before it."""
        if self._n_young >= HALF_INDEX_TOKENS:
            self._old, self._young, self._n_young = self._young, {}, 0
        self._n_young += 1
        for n in range(SHORTEST_RUN, min(LONGEST_RUN, at) + 1):
            self._young[tuple(tokens[at - n : at])] = at

    def find(self, tokens: Sequence[int], end: int) -> tuple[int, int]:
        """For the longest known run that ends before `end`: where what followed it stands, and its length; (0, 0) = none."""
        for n in range(min(LONGEST_RUN, end), SHORTEST_RUN - 1, -1):
            run = tuple(tokens[end - n : end])
            at = self._young.get(run) or self._old.get(run)
            if at is not None:
                return at, n
        return 0, 0


class Lookup:
    """The guesses for one reply; owned by its job. The tokens are the job's: they only grow between calls."""

    __slots__ = ("_index", "_n_agreeing", "_n_seen", "_rates", "_source")

    def __init__(self) -> None:
        self._index = NgramIndex()
        self._n_seen = 0
        # Where the token is expected to come from, and how many before it agree with the end of the reply.
        self._source = 0
        self._n_agreeing = 0
        self._rates = list(_FIRST_GUESS)

    @property
    def has_guess(self) -> bool:
        """Whether the end of the reply was somewhere before."""
        return self._n_agreeing > 0

    def advance(self, tokens: Sequence[int]) -> None:
        """Take in what is new; the first time all of it, which says nothing about guesses yet."""
        first = self._n_seen == 0
        for at in range(self._n_seen or max(0, len(tokens) - 2 * HALF_INDEX_TOKENS), len(tokens)):
            if not first:
                self._score(tokens, at)
            self._index.add(tokens, at)
            if not first and self._n_agreeing < LONGEST_RUN:
                self._source, self._n_agreeing = self._index.find(tokens, at + 1)
        if first:
            self._source, self._n_agreeing = self._index.find(tokens, len(tokens))
        self._n_seen = len(tokens)

    def odds(self, n_most: int) -> list[float]:
        """For each of up to `n_most` guessed tokens: how likely it and all before it are right. Falls, never rises."""
        odds: list[float] = []
        if self.has_guess:
            likely = 1.0
            for i in range(n_most):
                likely *= self._rates[_level(self._n_agreeing + i)]
                odds.append(likely)
        return odds

    def guess(self, tokens: Sequence[int], n_tokens: int) -> list[int]:
        """The next tokens. A source that reaches the end of the reply is a loop, and goes on in itself."""
        if not self.has_guess:
            return []
        guess = list(tokens[self._source : self._source + n_tokens])
        while len(guess) < n_tokens:
            guess.append(guess[self._source + len(guess) - len(tokens)])
        return guess

    def _score(self, tokens: Sequence[int], at: int) -> None:
        if not self.has_guess:
            return
        right = tokens[self._source] == tokens[at]
        level = _level(self._n_agreeing)
        self._rates[level] += _WEIGHT * (right * _MOST_LIKELY - self._rates[level])
        self._source += 1
        self._n_agreeing = self._n_agreeing + 1 if right else 0


def _level(n_agreeing: int) -> int:
    return next((i for i, bound in enumerate(_BOUNDS) if n_agreeing <= bound), len(_BOUNDS))
