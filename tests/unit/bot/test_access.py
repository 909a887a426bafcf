"""Roles, the token bucket and the once-per-window rule, with a clock in the test's hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.domain.access import AccessList, OncePer, RateLimiter, Role


class Hand:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({}, Role.MEMBER),
        ({"admins": ["feishu:u"]}, Role.ADMIN),
        ({"admins": ["ding:u"]}, Role.MEMBER),
        ({"admins": ["*:u"]}, Role.ADMIN),
        ({"deny": ["feishu:u"]}, Role.DENIED),
        ({"deny": ["feishu:*"]}, Role.DENIED),
        ({"deny": ["*:*"], "admins": ["feishu:u"]}, Role.ADMIN),
        ({"allow": ["feishu:v"]}, Role.STRANGER),
        ({"allow": ["feishu:u"]}, Role.MEMBER),
        ({"allow": ["feishu:*"]}, Role.MEMBER),
        ({"allow": ["ding:*"]}, Role.STRANGER),
        ({"allow": ["feishu:u"], "deny": ["*:u"]}, Role.DENIED),
        ({"admins": ["feishu:with:colon"]}, Role.MEMBER),
    ],
)
def test_roles(lists, expected):
    whole = {"admins": (), "allow": (), "deny": (), **lists}
    assert AccessList.parse(**whole).role("feishu", "u") is expected


def test_a_user_id_may_contain_a_colon():
    access = AccessList.parse(admins=["feishu:a:b"], allow=(), deny=())
    assert access.role("feishu", "a:b") is Role.ADMIN


def test_the_first_tier_that_names_a_person_counts():
    tiers = (("feishu:boss",), ("feishu:sales", "ding:*"), ("*:boss",))
    access = AccessList.parse(admins=(), allow=(), deny=(), tiers=tiers)
    assert access.tier("feishu", "boss") == 0
    assert access.tier("feishu", "sales") == access.tier("ding", "anybody") == 1
    assert access.tier("wecom", "boss") == 2
    assert access.tier("feishu", "other") is None
    assert access.role("feishu", "boss") is Role.MEMBER


def test_the_bucket_refills_evenly():
    hand = Hand()
    rate = RateLimiter(hand)
    assert [rate.take("u", 3) for _ in range(4)] == [True, True, True, False]
    hand.now = 19.9
    assert not rate.take("u", 3)
    hand.now = 40
    assert rate.take("u", 3)


def test_people_do_not_share_a_bucket_and_zero_is_no_limit():
    rate = RateLimiter(Hand())
    assert rate.take("u", 1)
    assert not rate.take("u", 1)
    assert rate.take("v", 1)
    assert all(rate.take("w", 0) for _ in range(100))


def test_what_is_given_back_can_be_taken_again():
    rate = RateLimiter(Hand())
    assert rate.take("u", 1)
    rate.give_back("u")
    assert rate.take("u", 1)


def test_idle_people_are_forgotten():
    hand = Hand()
    rate = RateLimiter(hand)
    for n in range(1000):
        rate.take(f"u{n}", 5)
    hand.now = 61
    rate.take("v", 5)
    assert len(rate) == 1


@given(st.lists(st.floats(0, 30), min_size=1, max_size=60), st.integers(1, 20))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_never_more_than_a_burst_and_the_rate(gaps, per_minute):
    hand = Hand()
    rate = RateLimiter(hand)
    granted = 0
    for gap in gaps:
        hand.now += gap
        granted += rate.take("u", per_minute)
    assert granted <= per_minute + per_minute * hand.now / 60 + 1e-6


def test_once_per_window():
    hand = Hand()
    once = OncePer(hand, 60)
    assert once.first("u")
    assert not once.first("u")
    assert once.first("v")
    hand.now = 59
    assert not once.first("u")
    hand.now = 60
    assert once.first("u")
    once.forget("u")
    assert once.first("u")
