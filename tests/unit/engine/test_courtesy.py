"""How much of people's time background work takes, on invented machines."""

from __future__ import annotations

import pytest

from engine.core.courtesy import BackgroundShare
from engine.core.scheduler import Need

READING = Need("r", 1, True, 0)
ASKING = Need("p", 77, False, 0)
SUMMARY = Need("s", 1, True, 30)
WARM_UP = Need("w", 900, False, 30)


def test_it_stands_still_while_somebody_waits_for_a_first_word() -> None:
    share = BackgroundShare()
    assert share.served([SUMMARY, READING, ASKING, WARM_UP]) == [READING, ASKING]
    api = Need("api", 5, False, 20)
    assert share.served([SUMMARY, api]) == [api]
    assert share.served([SUMMARY, READING, WARM_UP]) == [SUMMARY, READING, WARM_UP]
    assert share.served([SUMMARY, WARM_UP]) == [SUMMARY, WARM_UP]
    assert share.served([]) == []


@pytest.mark.parametrize("excess_s", [0.001, 0.008, 0.016, 0.03])
def test_people_keep_four_fifths_of_their_speed(excess_s: float) -> None:
    share, alone_s, spent_s, n_joined = BackgroundShare(), 0.01, 0.0, 0
    for _ in range(1000):
        joined = WARM_UP in share.served([READING, WARM_UP])
        elapsed_s = alone_s + excess_s * joined
        share.observe(joined=joined, elapsed_s=elapsed_s, alone_s=alone_s)
        spent_s, n_joined = spent_s + elapsed_s, n_joined + joined
    assert 1000 * alone_s / spent_s >= 0.79
    # And what they leave is used: a fifth of the time, or all steps where it costs them less.
    assert n_joined * excess_s / spent_s >= min(0.15, 0.45 * excess_s / alone_s)


def test_with_nobody_there_it_owes_nothing() -> None:
    share = BackgroundShare()
    share.observe(joined=True, elapsed_s=0.04, alone_s=0.01)
    assert share.served([READING, SUMMARY]) == [READING]
    assert share.served([SUMMARY]) == [SUMMARY]
    assert share.served([READING, SUMMARY]) == [READING, SUMMARY]


def test_a_step_that_the_machine_held_up_is_soon_forgiven() -> None:
    share = BackgroundShare()
    share.observe(joined=True, elapsed_s=9.0, alone_s=0.01)
    for _ in range(16):
        assert share.served([READING, SUMMARY]) == [READING]
        share.observe(joined=False, elapsed_s=0.01, alone_s=0.01)
    assert SUMMARY in share.served([READING, SUMMARY])
