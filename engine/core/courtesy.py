"""Who takes part in the next step: background work makes way for people, and takes little of their time where it need not.

Pure: no model, no clock, no I/O. Measured times come in, as with `engine.core.scheduler`.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.scheduler import Need
from engine.types import Priority


class BackgroundShare:
    """How much background work (summaries, warm-ups) may lengthen the replies that people read; owned by the planner.

    While somebody waits for the first word of an answer it stands still: its tokens would lengthen every step until then.
    Beside replies that are read, what it adds to a step is a debt, and the steps without it pay it off, each with `SHARE` of
    its time. So it may take pieces that are large enough to be cheap (on a CPU two tokens cost nearly what eight do), and
    people keep 1 / (1 + SHARE) of their speed, whatever a piece or one more reply costs on this machine.
    """

    SHARE = 0.25
    # A step that the machine held up is not the background's doing: no more of it counts than so many steps of the replies.
    MOST_STEPS = 4.0

    def __init__(self) -> None:
        self._debt_s = 0.0

    def served(self, needs: Sequence[Need]) -> list[Need]:
        """Of those who could compute, who takes part in the next step."""
        people = [need for need in needs if need.priority < Priority.BACKGROUND]
        if not people:
            self._debt_s = 0.0
            return list(needs)
        somebody_waits = any(not need.is_reply for need in people)
        return people if somebody_waits or self._debt_s > 0 else list(needs)

    def observe(self, *, joined: bool, elapsed_s: float, alone_s: float) -> None:
        """A step in which people read replies has ended; `alone_s` is what their replies take without anybody else."""
        if joined:
            excess_s = max(0.0, elapsed_s - alone_s)
            self._debt_s += min(excess_s, self.MOST_STEPS * alone_s)
        else:
            # What one step paid too much is kept.
            paid_s = self.SHARE * elapsed_s
            self._debt_s = max(self._debt_s - paid_s, -paid_s)
