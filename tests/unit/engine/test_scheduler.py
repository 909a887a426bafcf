"""Order of service and batch planning, with invented ids and numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.scheduler import (
    Grant,
    Need,
    PrefillPace,
    WaitLine,
    plan_batch,
)
from engine.types import Priority


def served(line: WaitLine) -> list[str]:
    order = []
    while (head := line.head()) is not None:
        line.admit(head)
        order.append(head)
    return order


def test_priority_then_turns_then_arrival() -> None:
    line = WaitLine()
    for request_id, owner, priority in [
        ("a1", "a", 10),
        ("a2", "a", 10),
        ("b1", "b", 10),
        ("low", "c", 30),
        ("high", "a", 0),
    ]:
        line.push(request_id, owner, priority)
    assert line.order() == ["high", "a1", "b1", "a2", "low"]
    assert served(line) == ["high", "a1", "b1", "a2", "low"]


def test_a_newcomer_passes_the_rest_of_a_flood() -> None:
    line = WaitLine()
    for i in range(5):
        line.push(f"flood{i}", "flood", 10)
    line.admit("flood0")
    line.push("new", "new", 10)
    assert line.head() == "new"


def test_a_stream_of_newcomers_cannot_hold_up_an_old_request_for_ever() -> None:
    line = WaitLine()
    for i in range(3):
        line.push(f"old{i}", "old", 10)
    order = []
    for i in range(60):
        line.push(f"new{i}", f"owner{i}", 10)
        head = line.head()
        assert head is not None
        line.admit(head)
        order.append(head)
    assert "old2" in order[:30]


def test_a_displaced_request_returns_to_its_place() -> None:
    line = WaitLine()
    line.push("first", "a", 30)
    ticket = line.admit("first")
    line.push("second", "b", 30)
    line.put_back(ticket)
    assert line.order() == ["first", "second"]


def test_leaving_and_unknown_ids() -> None:
    line = WaitLine()
    line.push("a", "o", 10)
    assert "a" in line
    assert line.n_of_owner("o") == 1
    assert line.remove("a")
    assert not line.remove("a")
    assert (len(line), line.head()) == (0, None)
    with pytest.raises(KeyError):
        line.admit("a")


def test_the_same_id_cannot_wait_twice() -> None:
    line = WaitLine()
    line.push("a", "o", 10)
    with pytest.raises(ValueError, match="waits already"):
        line.push("a", "o", 10)


requests = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 10, 30])), max_size=40)


@given(requests, st.data())
@settings(derandomize=True, max_examples=60)
def test_everybody_is_served_once_and_each_owner_in_order(
    arrivals: list[tuple[int, int]], data: st.DataObject
) -> None:
    line = WaitLine()
    order: list[str] = []
    for i, (owner, priority) in enumerate(arrivals):
        line.push(f"{i}", f"o{owner}", priority)
        if data.draw(st.booleans()) and (head := line.head()) is not None:
            assert head == line.order()[0]
            line.admit(head)
            order.append(head)
    order += served(line)
    assert sorted(order, key=int) == [f"{i}" for i in range(len(arrivals))]
    by_class: dict[tuple[int, int], list[int]] = {}
    for request_id in order:
        by_class.setdefault(arrivals[int(request_id)], []).append(int(request_id))
    assert all(ids == sorted(ids) for ids in by_class.values())


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
@settings(derandomize=True, max_examples=60)
def test_nobody_waits_longer_than_his_fair_turn(owners: list[int]) -> None:
    """When all are there from the start, an owner's n-th request is served after at most n of each other owner."""
    line = WaitLine()
    for i, owner in enumerate(owners):
        line.push(f"{i}", f"{owner}", 10)
    seen: dict[int, int] = {}
    for request_id in served(line):
        owner = owners[int(request_id)]
        seen[owner] = seen.get(owner, 0) + 1
        assert all(n <= seen[owner] for n in seen.values())


def need(name: str, n_tokens: int, *, reply: bool = False, priority: int = 10) -> Need:
    return Need(name, n_tokens, reply, priority)


def plan(*needs: Need, n_batch: int = 64, n_prefill: int = 32) -> dict[str, int]:
    return {g.id: g.n_tokens for g in plan_batch(needs, n_batch=n_batch, n_prefill=n_prefill)}


def test_replies_come_first_and_prompts_get_the_budget() -> None:
    grants = plan_batch(
        [need("p", 500), need("a", 1, reply=True), need("b", 1, reply=True)],
        n_batch=64,
        n_prefill=32,
    )
    assert grants == [Grant("a", 1), Grant("b", 1), Grant("p", 32)]


def test_a_short_prompt_is_not_held_up_by_a_long_one() -> None:
    assert plan(need("long", 500), need("short", 10)) == {"short": 10, "long": 22}


def test_equal_prompts_share() -> None:
    assert plan(need("a", 500), need("b", 500), n_prefill=33) == {"a": 17, "b": 16}


def test_background_gets_what_is_left() -> None:
    assert plan(need("bg", 500, priority=30), need("p", 20)) == {"p": 20, "bg": 12}
    assert plan(need("bg", 500, priority=30), need("p", 500)) == {"p": 32}


def test_the_batch_is_the_limit() -> None:
    assert plan(*[need(f"r{i}", 1, reply=True) for i in range(6)], need("p", 9), n_batch=4) == {
        f"r{i}": 1 for i in range(4)
    }
    assert plan(need("a", 1, reply=True), need("p", 9), n_batch=4) == {"a": 1, "p": 3}


def test_nothing_to_do() -> None:
    assert plan_batch([], n_batch=8, n_prefill=8) == []


needs = st.lists(
    st.tuples(st.integers(1, 300), st.booleans(), st.sampled_from([0, 10, 30])), max_size=12
)


@given(needs, st.integers(1, 128), st.integers(1, 128))
@settings(derandomize=True, max_examples=200)
def test_plans_are_within_limits_and_waste_nothing(
    wishes: list[tuple[int, bool, int]], n_batch: int, n_prefill: int
) -> None:
    all_needs = [
        Need(f"{i}", 1 if reply else n, reply, priority)
        for i, (n, reply, priority) in enumerate(wishes)
    ]
    grants = plan_batch(all_needs, n_batch=n_batch, n_prefill=n_prefill)
    by_id = {need.id: need for need in all_needs}
    assert len({grant.id for grant in grants}) == len(grants)
    assert all(1 <= grant.n_tokens <= by_id[grant.id].n_tokens for grant in grants)
    n_replies = sum(by_id[grant.id].is_reply for grant in grants)
    n_prompt = sum(g.n_tokens for g in grants if not by_id[g.id].is_reply)
    assert n_replies + n_prompt <= n_batch
    assert n_replies == min(n_batch, sum(need.is_reply for need in all_needs))
    wanted = sum(need.n_tokens for need in all_needs if not need.is_reply)
    assert n_prompt == min(wanted, n_prefill, n_batch - n_replies)


class Machine:
    """Steps whose times follow a rule: `base_s` + `reply_s` per reply + `token_s` per prompt token."""

    def __init__(self, base_s: float, reply_s: float, token_s: float, n_batch: int = 512) -> None:
        self.pace = PrefillPace(n_batch)
        self._base_s, self._reply_s, self._token_s = base_s, reply_s, token_s
        self.n_probes = 0

    def replies_s(self, n_replies: int) -> float:
        return self._base_s + n_replies * self._reply_s

    def step(self, n_replies: int, n_wanted: int = 100_000) -> int:
        """One step as the core does it; how many prompt tokens it had."""
        n_prefill = min(n_wanted, self.pace.budget(n_replies))
        self.n_probes += n_prefill == 0 < n_wanted
        elapsed_s = self.replies_s(n_replies) + n_prefill * self._token_s
        self.pace.observe(n_replies=n_replies, n_prefill=n_prefill, elapsed_s=elapsed_s)
        return n_prefill


CPU = (0.004, 0.008, 0.003)
GPU = (0.012, 0.0005, 0.00015)


@pytest.mark.parametrize("n_replies", [1, 4, 8])
def test_the_prompt_part_takes_two_steps_of_the_replies(n_replies: int) -> None:
    machine = Machine(*CPU)
    for _ in range(60):
        machine.step(n_replies)
    allowed_s = 2 * machine.replies_s(n_replies)
    while not (n_tokens := machine.step(n_replies)):
        pass
    assert n_tokens == pytest.approx(allowed_s / CPU[2], abs=1.5)


def test_a_prompt_in_the_background_takes_short_steps_for_whoever_comes() -> None:
    machine = Machine(*CPU)
    for _ in range(20):
        machine.step(0, 300)
    background = need("b", 3000, priority=30)
    assert machine.pace.budget_for([background]) * CPU[2] == pytest.approx(0.15, rel=0.1)
    slow = Machine(*CPU)
    slow.pace.observe(n_replies=0, n_prefill=10, elapsed_s=60.0)
    assert slow.pace.budget_for([background]) == PrefillPace.MIN_BACKGROUND_TOKENS


def test_the_measure_is_not_stuck_when_every_step_holds_a_prompt() -> None:
    machine = Machine(*CPU)
    for _ in range(100):
        machine.step(4)
    before = max(machine.step(4) for _ in range(3))
    machine._reply_s *= 3  # the conversations have grown long
    steps = [machine.step(4) for _ in range(PrefillPace.PROBE_EVERY * 12)]
    assert steps[-2] == pytest.approx(2 * machine.replies_s(4) / CPU[2], rel=0.1)
    assert steps[-2] > 2 * before
    assert machine.n_probes <= 1 + len(steps) // PrefillPace.PROBE_EVERY + 3


def test_another_number_of_replies_is_measured_anew_and_remembered() -> None:
    machine = Machine(*CPU)
    for _ in range(40):
        machine.step(1)
    n_probes = machine.n_probes
    assert [machine.step(6) == 0, machine.step(6) > 0] == [True, True]
    assert machine.step(6) == pytest.approx(2 * machine.replies_s(6) / CPU[2], rel=0.4)
    for n_replies in (1, 6) * 4:
        machine.step(n_replies)
    assert machine.n_probes == n_probes + 1


def test_changing_widths_leave_most_steps_to_the_prompts() -> None:
    machine = Machine(*CPU)
    for i in range(160):
        machine.step(1 + i % 40)
    assert machine.n_probes <= 160 // PrefillPace.PROBE_GAP + 1


def test_probes_that_are_never_observed_do_not_stop_the_prompts() -> None:
    # A step with guesses in its replies is no measure, and is not told to the pace.
    pace = PrefillPace(n_batch=512)
    budgets = [pace.budget(2) for _ in range(40)]
    assert budgets.count(0) == 40 / PrefillPace.PROBE_GAP


def test_a_gpu_reaches_efficient_batches_beside_replies() -> None:
    machine = Machine(*GPU)
    for _ in range(30):
        machine.step(2)
    while not (n_tokens := machine.step(2)):
        pass
    assert n_tokens == pytest.approx(2 * machine.replies_s(2) / GPU[2], rel=0.05)


def test_steps_too_short_to_be_seen_are_no_measure_of_a_stall() -> None:
    machine = Machine(0.001, 0.0005, 0.0001)
    for _ in range(30):
        machine.step(1)
    while not (n_tokens := machine.step(1)):
        pass
    assert n_tokens == pytest.approx(PrefillPace.LEAST_STALL_S / 0.0001, rel=0.05)


def test_one_step_that_was_held_up_changes_little() -> None:
    machine = Machine(*CPU)
    for _ in range(40):
        machine.step(1)
    before = max(machine.step(1) for _ in range(2))
    machine.pace.observe(n_replies=1, n_prefill=0, elapsed_s=5.0)
    assert before <= max(machine.step(1) for _ in range(2)) <= 1.5 * before


def test_alone_the_pace_follows_the_machine_with_a_floor() -> None:
    machine = Machine(0.0, 0.0, 0.01)
    for _ in range(30):
        machine.step(0)
    assert machine.step(0) == PrefillPace.MIN_ALONE_TOKENS
    machine = Machine(0.0, 0.0, 0.002)
    for _ in range(40):
        machine.step(0)
    assert machine.step(0) == pytest.approx(PrefillPace.ALONE_S / 0.002, abs=4)


def test_a_fast_machine_gets_whole_batches_and_a_slow_one_still_moves() -> None:
    fast, slow = Machine(0.001, 0.0, 0.00001), Machine(0.001, 0.0, 2.0)
    for _ in range(30):
        fast.step(1)
        slow.step(1)
    assert max(fast.step(1) for _ in range(2)) == 512
    assert max(slow.step(1) for _ in range(2)) == PrefillPace.MIN_TOKENS


def test_a_budget_never_exceeds_a_small_batch() -> None:
    pace = PrefillPace(n_batch=4)
    assert {pace.budget(1) for _ in range(10)} == {0, 4}
    assert pace.budget(0) == 4


def test_a_step_that_took_no_time_does_not_divide_by_zero() -> None:
    pace = PrefillPace(n_batch=512)
    for _ in range(3000):  # a clock that stands still
        pace.observe(n_replies=0, n_prefill=100, elapsed_s=0.0)
        pace.observe(n_replies=1, n_prefill=100, elapsed_s=0.0)
        pace.observe(n_replies=1, n_prefill=0, elapsed_s=0.0)
    assert pace.budget(1) == pace.budget(0) == 512


def test_when_more_wait_than_read_short_prompts_are_computed_at_once() -> None:
    pace = PrefillPace(512)
    reading = Need("r", 1, True, Priority.PERSON)
    short = [Need(str(n), 30, False, Priority.PERSON) for n in range(7)]
    long = Need("long", 3000, False, Priority.PERSON)
    behind = [Need(f"b{n}", 30, False, Priority.BACKGROUND) for n in range(7)]
    assert pace.budget_for([reading, *short]) == 7 * 30
    few = pace.budget_for([reading, short[0]])
    assert few < 30
    # Neither long prompts nor work that nobody waits for is a reason.
    assert pace.budget_for([reading, long, long]) <= few
    assert pace.budget_for([reading, *behind]) <= few
