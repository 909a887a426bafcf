"""A try to answer that failed: whether another may follow, and what the person is told when none does."""

from __future__ import annotations

from dataclasses import dataclass

from engine.types import Failed, FailureCode


@dataclass(frozen=True, slots=True)
class Trouble:
    """A try that failed. `notice` is the catalogue key of what the person is told when it was the last one."""

    retryable: bool
    notice: str
    detail: str
    after_s: float = 0.0


def trouble_of(event: Failed) -> Trouble:
    """What an engine's failure means to a turn."""
    notices = {
        FailureCode.TOO_LONG: "end.too_long",
        FailureCode.BUSY: "end.no_model",
        FailureCode.ENGINE_DIED: "end.no_model",
        FailureCode.UPSTREAM: "end.no_model",
        FailureCode.DEADLINE: "end.waited",
        FailureCode.POISON: "end.poison",
    }
    return Trouble(
        event.retryable,
        notices.get(event.code, "end.failed"),
        f"{event.code.value}: {event.message}",
        event.retry_after_s,
    )
