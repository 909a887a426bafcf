"""The life of a turn as pure functions: what ends it, what a claimed turn still needs, what its outcome makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from bot.domain.types import Lane, Outcome, ReplyPart, Snapshot, Turn, TurnKind, TurnState

_OPEN = frozenset({TurnState.QUEUED, TurnState.RUNNING})
_STATE_OF = {
    Outcome.COMPLETE: TurnState.DONE,
    Outcome.LENGTH: TurnState.DONE,
    Outcome.STOPPED: TurnState.CANCELLED,
    Outcome.SILENT: TurnState.CANCELLED,
    Outcome.FAILED: TurnState.FAILED,
}


class Work(StrEnum):
    """What a claimed turn still needs."""

    DELIVER = "deliver"  # its reply is final: only show it
    CANCEL = "cancel"  # a person stopped it before it ran (again)
    EXECUTE = "execute"  # run a command
    GENERATE = "generate"  # ask the model, from the start or from the stored ids


def is_terminal(state: TurnState) -> bool:
    """Nothing follows."""
    return state not in _OPEN


def state_of(outcome: Outcome) -> TurnState:
    """The terminal state of a turn whose reply ended this way. Raises KeyError for GROWING."""
    return _STATE_OF[outcome]


def work_of(turn: Turn, snapshot: Snapshot | None) -> Work:
    """What to do with a turn just claimed: a final reply is never made again, only delivered."""
    if snapshot is not None and snapshot.final:
        return Work.DELIVER
    if turn.cancel_requested:
        return Work.CANCEL
    return Work.EXECUTE if turn.kind is TurnKind.COMMAND else Work.GENERATE


def may_replace_text(parts: tuple[ReplyPart, ...]) -> bool:
    """Whether a restarted answer may start over in place: not when earlier text already fills a closed message."""
    return len(parts) <= 1 and all(part.covers_from_chars == 0 for part in parts)


def answering(turns: Iterable[Turn]) -> list[Turn]:
    """Of unfinished chat turns those that the talk waits for: not the long work beside it."""
    return [turn for turn in turns if turn.lane is Lane.CHAT]


def may_control(turn: Turn, user_id: str, *, is_admin: bool) -> bool:
    """Only the asker or an admin may stop, regenerate or leave a turn."""
    return is_admin or turn.asker.user_id == user_id
