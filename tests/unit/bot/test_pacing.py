"""Intervals, token buckets, and the month's budget: all with a clock of our own."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.domain.pacing import CEILING_S, FLOOR_S, Load, Pressure, TokenBucket, interval_s, thrift
from bot.platforms.budget import MemoryBudget, MonthCount


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    st.floats(0.5, 50), st.integers(1, 20), st.lists(st.floats(0, 0.5), min_size=1, max_size=120)
)
def test_a_bucket_never_lets_more_through_than_its_limit(
    rate: float, burst: int, pauses: list[float]
) -> None:
    bucket = TokenBucket(rate, burst)
    now, went = 0.0, []
    for pause in pauses:
        now += pause
        now += bucket.wait_s(now)
        bucket.book(now)
        went.append(now)
    for i, begin in enumerate(went):
        inside = sum(1 for at in went[i:] if at < begin + 1.0)
        assert inside <= burst + rate + 1e-6


def test_a_bucket_queues_those_who_book_together() -> None:
    bucket = TokenBucket(2.0, 1)
    waits = []
    for _ in range(3):
        waits.append(bucket.wait_s(0.0))
        bucket.book(0.0)
    assert waits == [0.0, 0.5, 1.0]
    assert not bucket.idle(1.0)
    assert bucket.idle(10.0)


def test_interval_follows_load() -> None:
    assert interval_s(1.5, Load()) == 1.5
    assert interval_s(0.1, Load()) == FLOOR_S
    assert interval_s(1.5, Load(active_replies=42)) == 3.0
    assert interval_s(1.5, Load(pressure=2.0)) == 3.0
    assert interval_s(1.5, Load(calls_left=0.25, month_left=0.5)) == 3.0
    assert interval_s(1.5, Load(calls_left=0.9, month_left=0.5)) == 1.5
    assert interval_s(50, Load(pressure=8.0)) == CEILING_S


def test_an_empty_budget_slows_but_never_stops() -> None:
    assert thrift(0.0, 0.5) == 32.0
    assert interval_s(1.5, Load(calls_left=0.0, month_left=0.5)) == 48.0


def test_pressure_fades() -> None:
    pressure = Pressure()
    assert pressure.factor(100.0) == 1.0
    pressure.hit(100.0)
    assert pressure.factor(100.0) == 2.0
    assert pressure.factor(120.0) == pytest.approx(1.5)
    for _ in range(20):
        pressure.hit(120.0)
    assert pressure.factor(120.0) == 8.0
    assert pressure.factor(400.0) < 1.01


def test_budget_rolls_over_at_midnight_in_china() -> None:
    clock = [datetime(2026, 11, 30, 15, 59, tzinfo=UTC)]
    saved: list[MonthCount] = []
    budget = MemoryBudget(
        10, saved=MonthCount("2026-11", 7), save=saved.append, now=lambda: clock[0]
    )
    budget.count()
    assert budget.used == MonthCount("2026-11", 8)
    assert budget.calls_left() == pytest.approx(0.2)
    assert budget.month_left() < 0.001
    clock[0] = datetime(2026, 11, 30, 16, 0, tzinfo=UTC)
    assert budget.calls_left() == 1.0
    assert budget.month_left() == 1.0
    budget.count()
    assert budget.used == MonthCount("2026-12", 1)
    assert saved == [MonthCount("2026-12", 1)]


def test_no_cap_means_all_is_left() -> None:
    budget = MemoryBudget(0, now=lambda: datetime(2026, 2, 14, tzinfo=UTC))
    for _ in range(100):
        budget.count()
    assert budget.calls_left() == 1.0
    assert budget.used.calls == 100
