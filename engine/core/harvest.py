"""What a step brought for one reply: tokens that belong to it now, what they make visible, and why it ends with them."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.backends.base import Backend
from engine.core.job import Job
from engine.types import FinishReason


@dataclass(slots=True)
class Harvest:
    """`reason`: why the reply ends with the last token, if it does. `fault`: why no further token could be had.

    A token is known before its text: `add` leaves that to `catch_up` where nothing in it can end the reply, as the text of
    several at once costs less.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    thinking: str = ""
    reason: FinishReason | None = None
    fault: Exception | None = None
    _n_taken: int = 0
    _ends: bool = False

    def add(self, job: Job, token: int, backend: Backend) -> None:
        """The reply's next token."""
        self.tokens.append(token)
        if job.has_stops:
            self.catch_up(job, backend)
        else:
            n_tokens = len(job.tokens) + len(self.tokens) - self._n_taken
            self._ends = n_tokens >= job.n_limit or backend.is_eog(token)

    def catch_up(self, job: Job, backend: Backend) -> None:
        """Let the reply take every token that it has not taken yet."""
        while self.reason is None and self._n_taken < len(self.tokens):
            piece, self.reason = job.take(self.tokens[self._n_taken], backend)
            self._n_taken += 1
            self.text += piece.text
            self.thinking += piece.thinking

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        return self._ends or self.reason is not None or self.fault is not None
