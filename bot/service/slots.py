"""The bot's own line in front of an engine: how many turns are with it at once, who goes next, and everybody's place.

Only some wait inside the engine, so that a crash of it has little to send again; all others wait here. Both lines have the same
order (`engine.waitline`), both are one line to a person: a place counts those who are ahead in either.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.waitline import WaitLine

# Turns with the engine beyond those it decodes: enough for it to look ahead, few enough to come late and still go first.
WAITING_WITH_ENGINE = 16


class LineFull(Exception):
    """Too many wait. `own`: too many of this person's."""

    def __init__(self, n_waiting: int, *, own: bool) -> None:
        super().__init__(f"{n_waiting} wait" + (" of one person" if own else ""))
        self.n_waiting = n_waiting
        self.own = own


class Slot:
    """One turn's place from its wish to its end. Made by `Slots.enter`; its turn tells it what the engine says."""

    def __init__(
        self, number: int, owner: str, priority: int, on_place: Callable[[int], None]
    ) -> None:
        self.id = str(number)
        self.owner = owner
        self.priority = priority
        self.turn_came = asyncio.Event()
        self.runs = False
        self.engine_place = 0
        self._on_place = on_place
        self._told = 0

    def tell(self, place: int) -> None:
        """Called by the line: 1 is next."""
        if place != self._told:
            self._told = place
            self._on_place(place)


class Slots:
    """Owned by the service, one per model; one event loop.

    A turn goes to the engine while fewer than `n_parallel` + `n_ahead` turns as important as itself (or more so) are there:
    what is less important never holds it up here, and what is there never exceeds that number per class of people.
    """

    def __init__(
        self,
        n_parallel: int,
        n_ahead: int = WAITING_WITH_ENGINE,
        *,
        max_waiting: int = 1000,
        max_waiting_per_person: int = 16,
    ) -> None:
        self._n_parallel = n_parallel
        self._limit = n_parallel + n_ahead
        self._max_waiting = max_waiting
        self._max_waiting_per_person = max_waiting_per_person
        self._line = WaitLine()
        self._outside: dict[str, Slot] = {}
        self._inside: dict[str, Slot] = {}
        self._numbers = itertools.count(1)
        self._telling: asyncio.Handle | None = None

    @property
    def n_waiting(self) -> int:
        """Turns that wait outside the engine."""
        return len(self._outside)

    @property
    def n_inside(self) -> int:
        """Turns that the engine has, or is about to be given."""
        return len(self._inside)

    @contextmanager
    def enter(self, owner: str, priority: int, on_place: Callable[[int], None]) -> Iterator[Slot]:
        """A place in line until the block is left; its turn has come when `turn_came` is set.

        `on_place` is told the place in line whenever it changes. Raises LineFull.
        """
        self._refuse_when_full(owner, priority)
        slot = Slot(next(self._numbers), owner, priority, on_place)
        self._outside[slot.id] = slot
        self._line.push(slot.id, owner, priority)
        self._advance()
        try:
            yield slot
        finally:
            self._inside.pop(slot.id, None)
            if self._outside.pop(slot.id, None) is not None:
                self._line.remove(slot.id)
            self._advance()

    def queued(self, slot: Slot, engine_place: int = 0) -> None:
        """The engine is about to get this turn's request, or has told its place there."""
        slot.runs, slot.engine_place = False, engine_place
        self._tell_soon()

    def started(self, slot: Slot) -> None:
        """The engine has begun with it."""
        slot.runs, slot.engine_place = True, 0
        self._tell_soon()

    def _refuse_when_full(self, owner: str, priority: int) -> None:
        ahead = [s for s in self._all() if s.priority <= priority]
        n_waiting = max(0, len(ahead) - self._n_parallel)
        n_own = sum(s.owner == owner and not s.runs for s in self._all())
        if n_waiting and n_own >= self._max_waiting_per_person:
            raise LineFull(n_own, own=True)
        if n_waiting >= self._max_waiting:
            raise LineFull(n_waiting, own=False)

    def _all(self) -> list[Slot]:
        return [*self._inside.values(), *self._outside.values()]

    def _advance(self) -> None:
        while (head := self._line.head()) is not None and self._has_room(self._outside[head]):
            self._line.admit(head)
            slot = self._inside[head] = self._outside.pop(head)
            slot.turn_came.set()
        self._tell_soon()

    def _has_room(self, slot: Slot) -> bool:
        return sum(s.priority <= slot.priority for s in self._inside.values()) < self._limit

    # -- places ------------------------------------------------------------------------------------------------------
    def _tell_soon(self) -> None:
        """Once per pass of the loop: the engine tells all places of its line at the same moment."""
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_soon(self._tell_places)

    def _tell_places(self) -> None:
        self._telling = None
        outside = [slot.priority for slot in self._outside.values()]
        for slot in self._inside.values():
            if slot.engine_place:
                n_passing = sum(priority < slot.priority for priority in outside)
                slot.tell(slot.engine_place + n_passing)
        n_ahead: dict[int, int] = {}
        for index, slot_id in enumerate(self._line.order(), start=1):
            slot = self._outside[slot_id]
            if slot.priority not in n_ahead:
                n_ahead[slot.priority] = self._n_ahead_inside(slot.priority)
            slot.tell(n_ahead[slot.priority] + index)

    def _n_ahead_inside(self, priority: int) -> int:
        """How many the engine begins before it gets to somebody outside, API requests included, which only it knows."""
        n_free = self._n_parallel - sum(s.runs for s in self._inside.values())
        waiting = [s for s in self._inside.values() if not s.runs and s.priority <= priority]
        return max(len(waiting) - max(0, n_free), *(s.engine_place for s in waiting), 0)
