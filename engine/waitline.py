"""The waiting line: one order of service for everything that waits for a model, wherever it waits.

Three lines use it: the core's (requests without a sequence), the one in front of a remote server, and the bot's own in front of
an engine. Were they to differ, the fairest of them would never see what another one holds back. Pure: no clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the waiting line. `start_tag`: the owner's virtual start time, fixed on arrival."""

    id: str
    owner: str
    priority: int
    start_tag: float
    arrival: int

    @property
    def rank(self) -> tuple[int, float, int]:
        """Sort key: smaller is served first."""
        return (self.priority, self.start_tag, self.arrival)


class WaitLine:
    """A line; owned by whoever serves it, used by one thread.

    Order: priority, then turn by turn between owners, then arrival. Turn by turn is start-time fair queueing: the n-th
    request of one owner waits for about n turns of everybody else, however many it sent at once, and the virtual time
    goes on with every admission, so that newcomers cannot hold up an older request for ever.
    """

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._next_tag: dict[str, float] = {}
        self._now = 0.0
        self._n_arrived = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._tickets

    def push(self, request_id: str, owner: str, priority: int) -> None:
        """Join the line. Raises ValueError for an id that waits already."""
        if request_id in self._tickets:
            raise ValueError(f"{request_id} waits already")
        tag = max(self._now, self._next_tag.get(owner, 0.0))
        self._next_tag[owner] = tag + 1.0
        self._n_arrived += 1
        self._tickets[request_id] = Ticket(request_id, owner, priority, tag, self._n_arrived)

    def put_back(self, ticket: Ticket) -> None:
        """Return to the old place after having been admitted and displaced."""
        self._tickets[ticket.id] = ticket

    def remove(self, request_id: str) -> bool:
        """Leave the line without having been served, which costs its owner no turn. False = was not in it."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return False
        owner = ticket.owner
        last = max((t.start_tag for t in self._tickets.values() if t.owner == owner), default=None)
        # What came before it has been served or waits: the next request follows the last of those.
        after = ticket.start_tag if last is None else max(last + 1.0, ticket.start_tag)
        if self._next_tag.get(owner, 0.0) > after:
            self._next_tag[owner] = after
        return True

    def head(self) -> str | None:
        """The id that is served next."""
        if not self._tickets:
            return None
        return min(self._tickets.values(), key=lambda ticket: ticket.rank).id

    def admit(self, request_id: str) -> Ticket:
        """Leave the line to be served. Raises KeyError for an id that does not wait."""
        n_owners = len({ticket.owner for ticket in self._tickets.values()})
        ticket = self._tickets.pop(request_id)
        self._now = max(self._now, ticket.start_tag) + 1.0 / (n_owners + 1)
        self._next_tag = {owner: tag for owner, tag in self._next_tag.items() if tag > self._now}
        return ticket

    def order(self) -> list[str]:
        """All ids, next one first."""
        return [t.id for t in sorted(self._tickets.values(), key=lambda ticket: ticket.rank)]

    def n_of_owner(self, owner: str) -> int:
        """How many requests of `owner` wait."""
        return sum(ticket.owner == owner for ticket in self._tickets.values())

    def n_up_to(self, priority: int) -> int:
        """How many wait that are as important as `priority` or more so."""
        return sum(ticket.priority <= priority for ticket in self._tickets.values())
