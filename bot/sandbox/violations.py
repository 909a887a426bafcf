"""What a platform lets pass and a strict reading of its documents frowns on: the list that every platform's judge keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# Two texts that begin alike over so many characters are one answer, given twice.
_COMPARE_CHARS = 40


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault of the bot: which rule, and about what."""

    at: float
    rule: str
    detail: str


class Violations:
    """Owner of what was noted when it happened. `clock`: seconds, as in the platform's records."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._noted: list[Violation] = []

    @property
    def noted(self) -> Sequence[Violation]:
        """In the order in which it happened."""
        return self._noted

    def note(self, rule: str, detail: str) -> None:
        """Something happened that a strict platform would frown on; noted once for the same detail."""
        if all(known.rule != rule or known.detail != detail for known in self._noted):
            self._noted.append(self.found(rule, detail))

    def clear(self) -> None:
        """Forget what was noted so far."""
        self._noted.clear()

    def found(self, rule: str, detail: str) -> Violation:
        """A violation that is seen now."""
        return Violation(self._clock(), rule, detail)

    def two_answers(self, answers: Mapping[str, Sequence[str]]) -> list[Violation]:
        """The questions that were answered twice; `answers` are the visible texts of the answers by question."""
        return [
            self.found("two_answers", f"question {question}")
            for question, texts in answers.items()
            if any(_same_start(a, b) for i, a in enumerate(texts) for b in texts[:i])
        ]


def _same_start(a: str, b: str) -> bool:
    size = min(len(a), len(b), _COMPARE_CHARS)
    return size > 0 and a[:size] == b[:size]
