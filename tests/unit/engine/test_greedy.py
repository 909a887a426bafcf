"""The greedy choice under penalties is the best of all values after llama.cpp's formula, whatever was said before."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.greedy import Greedy


def penalized(row, said, repeat, presence):
    """llama_sampler_penalties_apply, word by word."""
    changed = row.copy()
    for token in set(said):
        if changed[token] <= 0:
            changed[token] *= np.float32(repeat)
        else:
            changed[token] /= np.float32(repeat)
        changed[token] -= np.float32(presence)
    return changed


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_vocab=st.sampled_from([1, 2, 7, 1000]),
    n_recent=st.sampled_from([0, 1, 3, 64]),
    n_accepted=st.integers(0, 80),
    repeat=st.sampled_from([1.0, 1.05, 2.0, 50.0]),
    presence=st.sampled_from([0.0, 0.5, 30.0]),
    shift=st.sampled_from([-20.0, 0.0, 20.0]),
)
def test_it_is_the_best_after_penalties(
    seed, n_vocab, n_recent, n_accepted, repeat, presence, shift
):
    rng = np.random.default_rng(seed)
    said = rng.integers(0, n_vocab, n_accepted).tolist()
    greedy = Greedy(n_recent=n_recent, repeat=repeat, presence=presence, accepted=said)
    for _ in range(12):
        row = (rng.normal(0, 3, n_vocab) + shift).astype(np.float32)
        if rng.random() < 0.2:
            row[rng.integers(0, n_vocab, n_vocab // 2)] = -np.inf
        before = row.copy()
        chosen = greedy.choose(row)
        np.testing.assert_array_equal(row, before)
        recent = said[len(said) - min(n_recent, len(said)) :]
        changed = penalized(row, recent, repeat, presence)
        assert changed[chosen] == changed.max()
        said.append(chosen)


def test_of_equal_ones_the_first():
    row = np.array([0.0, 1.0, 1.0], dtype=np.float32)
    assert Greedy(n_recent=0, repeat=1.0, presence=0.0, accepted=()).choose(row) == 1
    for said in ((2,), (1, 2), (2, 1), (2, 2, 1)):
        assert Greedy(n_recent=4, repeat=1.0, presence=0.0, accepted=said).choose(row) == 1


def test_what_was_said_long_ago_counts_no_more():
    row = np.array([1.0, 3.0, 2.9], dtype=np.float32)
    greedy = Greedy(n_recent=2, repeat=2.0, presence=0.0, accepted=(1, 0, 0))
    assert [greedy.choose(row) for _ in range(4)] == [1, 2, 1, 1]


def test_nan_does_no_harm():
    row = np.full(8, np.nan, dtype=np.float32)
    greedy = Greedy(n_recent=4, repeat=1.1, presence=0.0, accepted=(0, 1))
    assert all(0 <= greedy.choose(row) < 8 for _ in range(3))
