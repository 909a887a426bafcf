"""What a step brought for one reply: tokens that belong to it now, what they make visible, and why it ends with them."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.backends.base import Backend
from engine.core.job import Job
from engine.types import FinishReason


@dataclass(slots=True)
class Harvest:
    """`reason`: why the reply ends with the last token, if it does. `fault`: why no further token could be had."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    thinking: str = ""
    reason: FinishReason | None = None
    fault: Exception | None = None

    def take(self, job: Job, token: int, backend: Backend) -> bool:
        """The reply's next token. False when it ends the reply."""
        self.tokens.append(token)
        piece, self.reason = job.take(token, backend)
        self.text += piece.text
        self.thinking += piece.thinking
        return self.reason is None

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        return self.reason is not None or self.fault is not None
