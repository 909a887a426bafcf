"""Who is served next, and what goes into the next batch. Pure: no model, no clock, no I/O, invented ids in tests.

It decides and remembers nothing of tokens, sequences or text; those belong to `engine.core.core` and `engine.kv`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """The line of requests that have no sequence yet; owned by the core, used by its thread.

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


@dataclass(frozen=True, slots=True)
class Need:
    """What one running request could compute now. `n_tokens` = 1 with `is_reply` is the next token of a reply."""

    id: str
    n_tokens: int
    is_reply: bool
    priority: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What it computes in this step."""

    id: str
    n_tokens: int


def plan_batch(needs: Sequence[Need], *, n_batch: int, n_prefill: int) -> list[Grant]:
    """Next tokens of running replies first, then prompts within `n_prefill` tokens; never more than `n_batch` in all.

    Prompts of the best priority share the budget evenly, so that a short question passes a long document; less important
    ones get only what is left. `needs` is in order of admission.
    """
    replies = [need for need in needs if need.is_reply][:n_batch]
    grants = [Grant(need.id, 1) for need in replies]
    budget = min(n_prefill, n_batch - len(grants))
    prompts = [need for need in needs if not need.is_reply]
    for priority in sorted({need.priority for need in prompts}):
        shares = _share([need for need in prompts if need.priority == priority], budget)
        grants += shares
        budget -= sum(grant.n_tokens for grant in shares)
    return grants


def _share(needs: list[Need], budget: int) -> list[Grant]:
    """Split a budget evenly; what the small ones leave goes to the others."""
    grants: list[Grant] = []
    left = sorted(needs, key=lambda need: need.n_tokens)
    while left and budget > 0:
        need = left.pop(0)
        n_tokens = min(need.n_tokens, math.ceil(budget / (len(left) + 1)))
        grants.append(Grant(need.id, n_tokens))
        budget -= n_tokens
    return grants


class PrefillPace:
    """How many prompt tokens a step may compute, from measured step times; owned by the core.

    While replies are decoding, the prompt part of a step may take `WITH_REPLIES_S`, so that no running reply stalls
    visibly; otherwise `ALONE_S`, so that a cancel or a newcomer is seen soon, but never under `MIN_ALONE_TOKENS`: small
    batches are slow ones, and on a busy machine a low measured rate must not make itself lower. On a fast GPU both are a
    full batch.
    """

    WITH_REPLIES_S = 0.15
    ALONE_S = 0.6
    MIN_TOKENS = 16
    MIN_ALONE_TOKENS = 128
    _FIRST_GUESS_TOKENS_PER_S = 250.0
    _WEIGHT = 0.3

    def __init__(self, n_batch: int) -> None:
        self._n_batch = n_batch
        self._tokens_per_s = self._FIRST_GUESS_TOKENS_PER_S
        self._reply_step_s = 0.0

    def budget(self, *, replies_running: bool) -> int:
        """Prompt tokens for the next step."""
        seconds = self.WITH_REPLIES_S if replies_running else self.ALONE_S
        least = self.MIN_TOKENS if replies_running else self.MIN_ALONE_TOKENS
        return min(max(least, int(self._tokens_per_s * seconds)), self._n_batch)

    def observe(self, *, n_replies: int, n_prefill: int, elapsed_s: float) -> None:
        """Learn from a finished step."""
        if n_prefill == 0:
            self._reply_step_s += self._WEIGHT * (elapsed_s - self._reply_step_s)
        elif n_prefill >= self.MIN_TOKENS // 2:
            cost_s = elapsed_s - (self._reply_step_s if n_replies else 0.0)
            rate = n_prefill / max(cost_s, elapsed_s / 4, 1e-6)
            self._tokens_per_s += self._WEIGHT * (rate - self._tokens_per_s)
