"""Admission for a remote model: so many requests at once, the rest in line, the line bounded. Pure asyncio, no I/O.

Owns who runs and who waits. The order is that of every line here (`engine.waitline`).
"""

from __future__ import annotations

import asyncio
import itertools

from engine.waitline import WaitLine


class Ticket:
    """One request's place. Owner: its task; made by `Gate.enter` and given back by `Gate.leave`."""

    def __init__(self, number: int) -> None:
        self.id = str(number)
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
        self._waiting: dict[str, Ticket] = {}
        self._line = WaitLine()
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
        """A ticket, running or in line; None when the line up to this priority, or this owner's share of it, is full."""
        n_own = self._line.n_of_owner(owner) if owner else 0
        full = self._line.n_up_to(priority) >= self._max_waiting
        if full or n_own >= self._max_waiting_per_owner:
            return None
        ticket = Ticket(next(self._numbers))
        self._waiting[ticket.id] = ticket
        self._line.push(ticket.id, owner or ticket.id, priority)
        self._advance()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give a ticket back, wherever it stands; twice is harmless."""
        self._running.discard(ticket)
        if self._waiting.pop(ticket.id, None) is not None:
            self._line.remove(ticket.id)
        self._advance()

    def _advance(self) -> None:
        """Let the next ones run as far as there is room, then tell the others where they stand."""
        while len(self._running) < self._n_parallel and (head := self._line.head()) is not None:
            self._line.admit(head)
            admitted = self._waiting.pop(head)
            self._running.add(admitted)
            if admitted.place:
                admitted.move(0)
        for place, ticket_id in enumerate(self._line.order(), start=1):
            if self._waiting[ticket_id].place != place:
                self._waiting[ticket_id].move(place)
