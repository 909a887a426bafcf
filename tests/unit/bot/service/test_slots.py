"""The bot's own line in front of an engine: who goes next, and the places told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.service.slots import LineFull, Slot, Slots

ADMIN, TIER, PERSON, BATCH = 0, 3, 10, 20


class Line:
    """A Slots and everything in it, with the places told to each."""

    def __init__(self, n_parallel: int = 1, n_ahead: int = 0, **limits: int) -> None:
        self.slots = Slots(n_parallel, n_ahead, **limits)
        self.places: dict[str, list[int]] = {}
        self._stacks: dict[str, ExitStack] = {}
        self._slots: dict[str, Slot] = {}

    def enter(self, name: str, owner: str = "", priority: int = PERSON) -> Slot:
        stack = ExitStack()
        told = self.places.setdefault(name, [])
        slot = stack.enter_context(self.slots.enter(owner or name, priority, told.append))
        self._stacks[name], self._slots[name] = stack, slot
        return slot

    def leave(self, name: str) -> None:
        self._stacks.pop(name).close()
        del self._slots[name]

    def close(self) -> None:
        for name in list(self._stacks):
            self.leave(name)

    def __getitem__(self, name: str) -> Slot:
        return self._slots[name]

    @property
    def inside(self) -> list[str]:
        return [name for name, slot in self._slots.items() if slot.turn_came.is_set()]

    def served(self) -> list[str]:
        """Everybody in the order of service, one leaving after the other."""
        order: list[str] = []
        while self._slots:
            (name,) = self.inside
            order.append(name)
            self.leave(name)
        return order


@pytest.fixture
async def make_line() -> AsyncIterator[Callable[..., Line]]:
    lines: list[Line] = []

    def make(*args: int, **limits: int) -> Line:
        lines.append(Line(*args, **limits))
        return lines[-1]

    yield make
    for line in lines:
        line.close()


async def test_admins_then_tiers_then_people_in_turn_then_the_rest(
    make_line: Callable[..., Line],
) -> None:
    line = make_line()
    line.enter("running", priority=ADMIN)
    line.enter("batch", "key", BATCH)
    for name in ("a1", "a2", "a3"):
        line.enter(name, "a")
    line.enter("b1", "b")
    line.enter("tier", "t", TIER)
    line.enter("admin", "root", ADMIN)
    assert line.served() == ["running", "admin", "tier", "a1", "b1", "a2", "a3", "batch"]


async def test_the_important_are_not_held_up_by_what_is_inside(
    make_line: Callable[..., Line],
) -> None:
    line = make_line(n_parallel=1, n_ahead=1)
    for n in range(4):
        line.enter(f"p{n}")
    assert line.inside == ["p0", "p1"]
    line.enter("admin", priority=ADMIN)
    assert line.inside == ["p0", "p1", "admin"]
    line.leave("p0")
    assert line.inside == ["p1", "admin"]
    line.leave("admin")
    assert line.inside == ["p1", "p2"]


async def test_places_go_on_behind_those_of_the_engine(make_line: Callable[..., Line]) -> None:
    line = make_line(n_parallel=1, n_ahead=2)
    for name in ("x", "y", "z", "b", "c"):
        line.enter(name)
    line.slots.started(line["x"])
    line.slots.queued(line["y"], 1)
    line.slots.queued(line["z"], 5)  # three API requests of an interactive key are before it
    await asyncio.sleep(0)
    assert line.places == {"x": [], "y": [1], "z": [5], "b": [6], "c": [7]}
    line.leave("b")
    line.slots.queued(line["z"], 4)
    await asyncio.sleep(0)
    assert line.places["c"] == [7, 5]


async def test_before_the_engine_has_spoken_those_inside_are_counted(
    make_line: Callable[..., Line],
) -> None:
    line = make_line(n_parallel=2, n_ahead=2)
    for name in "abcdef":
        line.enter(name)
    await asyncio.sleep(0)
    # Two of the four inside begin at once.
    assert (line.places["e"], line.places["f"]) == ([3], [4])


async def test_who_is_inside_hears_of_those_outside_who_go_first(
    make_line: Callable[..., Line],
) -> None:
    line = make_line(n_parallel=1, n_ahead=0)
    line.enter("person")
    line.enter(
        "admin1", priority=ADMIN
    )  # both are inside: the person does not count against the admin
    line.slots.queued(line["person"], 1)
    line.enter("admin2", priority=ADMIN)
    await asyncio.sleep(0)
    assert line.inside == ["person", "admin1"]
    assert line.places["person"] == [2]


async def test_the_same_place_is_not_told_twice_and_one_pass_tells_once(
    make_line: Callable[..., Line],
) -> None:
    line = make_line(n_parallel=1, n_ahead=1)
    for name in "abc":
        line.enter(name)
    for place in (3, 2, 1):
        line.slots.queued(line["b"], place)
    await asyncio.sleep(0)
    line.slots.queued(line["b"], 1)
    await asyncio.sleep(0)
    assert (line.places["b"], line.places["c"]) == ([1], [2])


async def test_a_waiter_that_leaves_moves_the_others_up(make_line: Callable[..., Line]) -> None:
    line = make_line()
    for name in "abc":
        line.enter(name)
    await asyncio.sleep(0)
    line.leave("b")
    await asyncio.sleep(0)
    assert line.places["c"] == [2, 1]
    line.leave("a")
    assert line.inside == ["c"]


async def test_a_turn_that_is_cancelled_just_when_it_came_leaves_its_slot_to_the_next() -> None:
    slots = Slots(1, 0)

    async def use() -> None:
        with slots.enter("o", PERSON, lambda _: None) as slot:
            await slot.turn_came.wait()
            await asyncio.sleep(3600)

    first, second, third = (asyncio.create_task(use()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert (slots.n_inside, slots.n_waiting) == (1, 0)
    third.cancel()
    await asyncio.gather(third, return_exceptions=True)
    assert (slots.n_inside, slots.n_waiting) == (0, 0)


async def test_the_line_and_each_persons_share_are_bounded(make_line: Callable[..., Line]) -> None:
    line = make_line(n_parallel=1, n_ahead=5, max_waiting=4, max_waiting_per_person=2)
    line.enter("a0", "a")
    line.slots.started(line["a0"])
    line.enter("a1", "a")
    line.enter("a2", "a")
    with pytest.raises(LineFull) as own:
        line.enter("a3", "a")
    assert (own.value.own, own.value.n_waiting) == (True, 2)
    line.enter("b")
    line.enter("c")
    with pytest.raises(LineFull) as full:
        line.enter("d")
    assert (full.value.own, full.value.n_waiting) == (False, 4)
    line.enter("boss", priority=TIER)  # a line full of others is not full for them
    line.leave("boss")
    line.leave("b")
    line.enter("d")


async def test_nobody_is_refused_while_there_is_room_to_run(make_line: Callable[..., Line]) -> None:
    line = make_line(n_parallel=4, n_ahead=2, max_waiting=1, max_waiting_per_person=1)
    for n in range(5):
        line.enter(f"a{n}", "a")
    with pytest.raises(LineFull):
        line.enter("a5", "a")


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([ADMIN, TIER, PERSON])), max_size=30))
@settings(derandomize=True, max_examples=50, deadline=None)
def test_a_better_class_is_always_served_first_and_places_come_true(
    people: list[tuple[int, int]],
) -> None:
    async def play() -> None:
        line = Line(n_parallel=1, n_ahead=0, max_waiting_per_person=100)
        line.enter("running", priority=ADMIN)
        for n, (owner, priority) in enumerate(people):
            line.enter(f"{n}", f"o{owner}", priority)
        await asyncio.sleep(0)
        line.slots.started(line["running"])
        promised = {name: line.places[name][-1] for name in map(str, range(len(people)))}
        line.leave("running")
        order = line.served()
        classes = [people[int(name)][1] for name in order]
        assert classes == sorted(classes)
        assert [promised[name] for name in order] == list(range(1, len(people) + 1))

    asyncio.run(play())
