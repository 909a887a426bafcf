"""Guesses from earlier text: what is found, how likely it is held to be, and that the memory is bounded."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import lookup
from engine.core.lookup import LONGEST_RUN, SHORTEST_RUN, Lookup, NgramIndex


def after(tokens: list[int]) -> Lookup:
    found = Lookup()
    found.advance(tokens)
    return found


def test_the_longest_run_wins_and_of_equal_ones_the_newest() -> None:
    longest = [1, 2, 3, 4, 50, 9, 3, 4, 60, 0, 1, 2, 3, 4]
    assert after(longest).guess(longest, 1) == [50]
    newest = [3, 4, 50, 51, 3, 4, 60, 61, 3, 4]
    assert after(newest).guess(newest, 2) == [60, 61]


def test_without_a_run_of_two_there_is_no_guess() -> None:
    for tokens in ([], [1], [1, 1], [1, 2, 3, 1]):
        found = after(tokens)
        assert not found.has_guess
        assert found.guess(tokens, 4) == []
        assert found.odds(4) == []


def test_a_guess_that_reaches_the_end_goes_on_in_the_loop() -> None:
    tokens = [9, 1, 2, 3, 1, 2, 3]
    assert after(tokens).guess(tokens, 7) == [1, 2, 3, 1, 2, 3, 1]
    same = [5, 5, 5]
    assert after(same).guess(same, 5) == [5] * 5


def test_a_source_that_proves_right_is_followed_however_often_its_runs_occur() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 4, 5, 6, 99]
    found = after(text)
    for token in range(1, 7):
        text.append(token)
        found.advance(text)
    # 3 4 5 6 was followed by 99 last; but what was followed before it agrees with two more.
    assert found.guess(text, 3) == [7, 8, 9]
    text += [99]
    found.advance(text)
    assert found.guess(text, 3) == [1, 2, 3]


def test_agreement_makes_a_guess_likelier_and_misses_less() -> None:
    text = list(range(200))
    found = after(text)
    odds_at = []
    for token in range(40):
        text.append(token)
        found.advance(text)
        odds_at.append(found.odds(1))
    assert odds_at[0] == []
    assert odds_at[1][0] < odds_at[4][0] < odds_at[10][0] < odds_at[39][0] < 1.0
    deceived = Lookup()
    tokens = [1, 2, 3]
    deceived.advance(tokens)
    before: list[float] = []
    for token in range(10, 60):
        tokens += [1, 2]
        deceived.advance(tokens)
        before = deceived.odds(3)
        tokens.append(token)
        deceived.advance(tokens)
    assert before[0] < 0.02
    assert before == sorted(before, reverse=True)


def test_several_tokens_at_once_are_as_good_as_one_by_one() -> None:
    rng = random.Random(5)
    text = [rng.randrange(6) for _ in range(300)]
    slow, fast = after(text[:100]), after(text[:100])
    at = 100
    while at < len(text):
        end = min(len(text), at + rng.randrange(1, 9))
        for i in range(at, end):
            slow.advance(text[: i + 1])
        fast.advance(text[:end])
        at = end
        assert slow.odds(8) == fast.odds(8)
        assert slow.guess(text[:at], 8) == fast.guess(text[:at], 8)


def test_the_index_forgets_its_oldest_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "HALF_INDEX_TOKENS", 100)
    index = NgramIndex()
    tokens = list(range(1000))
    for at in range(len(tokens)):
        index.add(tokens, at)
        assert len(index._young) + len(index._old) <= 200 * LONGEST_RUN
    assert index.find([*tokens, 10, 11, 12], 1003) == (0, 0)
    assert index.find([*tokens, 950, 951, 952], 1003) == (953, 3)
    again = [*tokens, 960, 961, 962, 5, 960, 961, 962]
    for at in range(1000, len(again)):
        index.add(again, at)
    assert index.find(again, len(again)) == (1003, 3)  # the younger half knows it, too
    long = Lookup()
    long.advance([*tokens, 10, 11, 12])
    assert not long.has_guess
    long.advance([*tokens, 10, 11, 12, 990, 991, 992])
    assert long.guess([*tokens, 10, 11, 12, 990, 991, 992], 2) == [993, 994]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 12))
def test_a_guess_is_what_followed_the_longest_run(tokens: list[int], n_tokens: int) -> None:
    found = after(tokens)
    guess = found.guess(tokens, n_tokens)
    best = 0
    for n in range(SHORTEST_RUN, LONGEST_RUN + 1):
        if any(tokens[i : i + n] == tokens[-n:] for i in range(len(tokens) - n)):
            best = n
    assert found.has_guess == (best > 0)
    if best:
        assert len(guess) == len(found.odds(n_tokens)) == n_tokens
        end = tokens[-best:]
        starts = [i for i in range(len(tokens) - best) if tokens[i : i + best] == end]
        text = [*tokens, *guess]
        assert guess == text[starts[-1] + best :][:n_tokens]
