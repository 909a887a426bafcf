"""The line in front of a remote model."""

from __future__ import annotations

from engine.backends.remote.gate import Gate, Ticket


def enter(gate: Gate, owner: str = "o", priority: int = 10) -> Ticket:
    ticket = gate.enter(owner, priority)
    assert ticket is not None
    return ticket


def test_so_many_run_and_the_rest_waits_in_order() -> None:
    gate = Gate(2, 10, 10)
    tickets = [enter(gate) for _ in range(5)]
    assert [ticket.place for ticket in tickets] == [0, 0, 1, 2, 3]
    assert (gate.n_running, gate.n_waiting) == (2, 3)
    gate.leave(tickets[0])
    assert [ticket.place for ticket in tickets[2:]] == [0, 1, 2]


def test_priority_goes_first_but_never_interrupts() -> None:
    gate = Gate(1, 10, 10)
    running = enter(gate, priority=30)
    later = enter(gate, priority=30)
    person = enter(gate, priority=10)
    assert (running.place, person.place, later.place) == (0, 1, 2)
    gate.leave(running)
    assert (person.place, later.place) == (0, 1)


def test_people_take_turns_inside_a_priority() -> None:
    gate = Gate(1, 10, 10)
    enter(gate, "running")
    flood = [enter(gate, "a") for _ in range(3)]
    other = enter(gate, "b")
    assert [ticket.place for ticket in (flood[0], other, flood[1], flood[2])] == [1, 2, 3, 4]


def test_a_line_full_of_less_important_requests_is_open_to_people() -> None:
    gate = Gate(1, 2, 10)
    enter(gate, "running")
    batch = [enter(gate, "batch", priority=20) for _ in range(2)]
    assert gate.enter("batch", 20) is None
    person = enter(gate, "ann", priority=10)
    assert [ticket.place for ticket in (person, *batch)] == [1, 2, 3]


def test_the_line_and_each_owners_share_are_bounded() -> None:
    gate = Gate(1, 3, 2)
    enter(gate, "a")
    enter(gate, "a")
    enter(gate, "a")
    assert gate.enter("a", 10) is None
    enter(gate, "b")
    assert gate.enter("c", 10) is None


def test_leaving_the_line_moves_those_behind() -> None:
    gate = Gate(1, 10, 10)
    first, second, third = enter(gate), enter(gate), enter(gate)
    gate.leave(second)
    gate.leave(second)
    assert third.place == 1
    gate.leave(first)
    assert third.place == 0
    gate.leave(third)
    assert (gate.n_running, gate.n_waiting) == (0, 0)


async def test_a_waiting_ticket_hears_of_its_place() -> None:
    gate = Gate(1, 10, 10)
    first, second, third = enter(gate), enter(gate), enter(gate)
    assert await third.moved() == 2
    gate.leave(first)
    assert await third.moved() == 1
    gate.leave(second)
    assert await third.moved() == 0
