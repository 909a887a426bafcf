"""The board: which turns this process holds, where they stand in line, and the one way to tell one to end."""

from __future__ import annotations

import asyncio
from enum import StrEnum

from bot.domain.types import Turn


class StopReason(StrEnum):
    """Why a running turn must end."""

    CANCELLED = "cancelled"  # a person stopped it: keep what was said
    SILENT = "silent"  # its question was taken back: say nothing more
    RELEASED = "released"  # this process stops or leads the bot no longer: another one goes on
    GONE = "gone"  # there is nobody to show it to


class ActiveTurn:
    """A turn held by this process. Owned by its task; `stop` may be called by anybody on the loop, the first reason
    wins — except that silence overrules an ordinary stop. `released` is set whatever came first. `place` is 0 while it runs or does not wait in a line."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.place = 0
        self.answering = False
        self.finishing = False
        self.reason: StopReason | None = None
        self.stopped = asyncio.Event()
        self.released = asyncio.Event()

    def stop(self, reason: StopReason) -> None:
        """Ask for the end."""
        if self.reason is None or (
            self.reason is StopReason.CANCELLED and reason is StopReason.SILENT
        ):
            self.reason = reason
        self.stopped.set()
        if reason is StopReason.RELEASED:
            self.released.set()


class Board:
    """Owned by the dispatcher, which adds and removes; commands and the inbox look up and stop."""

    def __init__(self) -> None:
        self._turns: dict[str, ActiveTurn] = {}

    def add(self, turn: Turn) -> ActiveTurn:
        """Put a claimed turn up."""
        active = self._turns[turn.id] = ActiveTurn(turn)
        return active

    def remove(self, turn_id: str) -> None:
        """Take a turn down."""
        self._turns.pop(turn_id, None)

    def get(self, turn_id: str) -> ActiveTurn | None:
        """A turn held here."""
        return self._turns.get(turn_id)

    def all(self) -> list[ActiveTurn]:
        """Every turn held here."""
        return list(self._turns.values())

    def stop(self, turn_id: str, *, silent: bool = False) -> None:
        """Tell a turn to end, if it is held here."""
        active = self._turns.get(turn_id)
        if active is not None:
            active.stop(StopReason.SILENT if silent else StopReason.CANCELLED)

    def __len__(self) -> int:
        return len(self._turns)
