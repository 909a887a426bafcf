"""Admission for a remote model: so many requests at once, the rest in line, the line bounded. Pure asyncio, no I/O.

Owns who runs and who waits. Order: priority first, then arrival.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools


class Ticket:
    """One request's place. Owner: its task; made by `Gate.enter` and given back by `Gate.leave`."""

    def __init__(self, owner: str, priority: int, number: int) -> None:
        self.owner = owner
        self.order = (priority, number)
        self.place = 0  # 0 = may run, 1 = next in line
        self._moved = asyncio.Event()

    def move(self, place: int) -> None:
        """Called by the gate when the place has changed."""
        self.place = place
        self._moved.set()

    async def moved(self) -> int:
        """Wait until the place changes; returns it."""
        await self._moved.wait()
        self._moved.clear()
        return self.place


class Gate:
    """Owner of the line: the event loop, through one `OpenAIEngine`."""

    def __init__(self, n_parallel: int, max_waiting: int, max_waiting_per_owner: int) -> None:
        self._n_parallel = n_parallel
        self._max_waiting = max_waiting
        self._max_waiting_per_owner = max_waiting_per_owner
        self._running: set[Ticket] = set()
        self._waiting: list[Ticket] = []
        self._numbers = itertools.count()

    @property
    def n_running(self) -> int:
        """Requests that may talk to the server now."""
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        """Requests in line."""
        return len(self._waiting)

    def enter(self, owner: str, priority: int) -> Ticket | None:
        """A ticket, running or in line; None when the line, or this owner's share of it, is full."""
        ticket = Ticket(owner, priority, next(self._numbers))
        if len(self._running) < self._n_parallel and not self._waiting:
            self._running.add(ticket)
            return ticket
        n_own = sum(other.owner == owner for other in self._waiting) if owner else 0
        if len(self._waiting) >= self._max_waiting or n_own >= self._max_waiting_per_owner:
            return None
        bisect.insort(self._waiting, ticket, key=lambda other: other.order)
        self._renumber()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give a ticket back, wherever it stands; twice is harmless."""
        self._running.discard(ticket)
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        while self._waiting and len(self._running) < self._n_parallel:
            admitted = self._waiting.pop(0)
            self._running.add(admitted)
            admitted.move(0)
        self._renumber()

    def _renumber(self) -> None:
        for place, ticket in enumerate(self._waiting, start=1):
            if ticket.place != place:
                ticket.move(place)
