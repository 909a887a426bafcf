"""What follows a death: start again, start smaller, or a clear state until somebody mends it. No clocks, no processes.

Every way ends: steps back by the ladder's length, everything else by deaths in a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.link.obituary import Cause, Death
from engine.link.stepback import Depth
from engine.link.watch import Backoff, Supervision
from engine.types import EngineState

if TYPE_CHECKING:
    from engine.link.stepback import Ladder


class Life(NamedTuple):
    """How long a child had been ready, and what is known from outside."""

    ready_s: float | None  # None = it died while it loaded
    unblamed: bool = False  # too many deaths in a row that no request can be blamed for
    depth: Depth = Depth()  # of the model
    when: str = ""  # for people


class Next(NamedTuple):
    """The state until the next child is ready, one sentence about it, and the wait before it is started."""

    state: EngineState
    detail: str
    wait_s: float
    event: str  # for the log


class Aftermath:
    """Owner: a supervisor. Counts what came before; moves the ladder."""

    def __init__(self, rules: Supervision, ladder: Ladder) -> None:
        self._rules = rules
        self._ladder = ladder
        self._backoff = Backoff(rules)
        self._n_load_deaths = 0

    def of(self, death: Death, life: Life) -> Next:
        """Decide. A step back waits only for a moment: each is progress, and there are few."""
        wait_s = self._backoff.next_wait_s(life.ready_s or 0.0)
        self._n_load_deaths = self._n_load_deaths + 1 if life.ready_s is None else 0
        if self._has_stepped_back(death, life):
            self._n_load_deaths = 0
            detail = f"{death.sentence}; it is started smaller"
            return Next(
                EngineState.RESTARTING, detail, self._rules.backoff_first_s, "engine_stepped_back"
            )
        fault = self._fault(death, life)
        if fault:
            return Next(EngineState.FAILED, fault, self._rules.config_retry_s, "engine_failed")
        return Next(
            EngineState.RESTARTING, f"{death.sentence}; it is started again", wait_s, "engine_died"
        )

    def _has_stepped_back(self, death: Death, life: Life) -> bool:
        if death.shortage is not None:
            return self._ladder.step_back(death.shortage, life.depth, life.when)
        if death.cause is Cause.SETTINGS:
            return self._ladder.refuse_step(life.depth, life.when)
        return False

    def _fault(self, death: Death, life: Life) -> str:
        """Why a restart would not help, in a sentence; "" = it may."""
        if death.shortage is not None:
            given_up = self._ladder.sentence
            rest = f"; nothing is left to make smaller ({given_up})" if given_up else ""
            return death.sentence + rest
        young = (life.ready_s or 0.0) < self._rules.healthy_after_s
        if death.is_load_fault or (death.cause is Cause.OTHER_CPU and young):
            return death.sentence
        # llama.cpp aborts over some damaged files: again and again.
        if self._n_load_deaths >= self._rules.max_load_deaths:
            return f"the model could not be loaded {self._n_load_deaths} times: {death.sentence}"
        if life.unblamed:
            return f"the engine dies again and again, whatever it computes: {death.sentence}"
        return ""
