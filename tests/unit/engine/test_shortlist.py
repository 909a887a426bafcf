"""Nothing that a sampler chain could keep is missing from the short list."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.shortlist import shortlist


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_vocab = draw(st.sampled_from([1, 7, 999, 1024, 1025, 5000, 49152, 151_936]))
    row = rng.normal(0, draw(st.sampled_from([0.0, 0.5, 8.0])), n_vocab).astype(np.float32)
    if draw(st.booleans()):
        row[rng.integers(0, n_vocab, n_vocab // 3)] = -np.inf
    recent = rng.integers(0, n_vocab, draw(st.integers(0, 64))).tolist()
    return row, draw(st.sampled_from([1, 2, 40, 1000])), recent


@settings(max_examples=150, deadline=None)
@given(cases(), st.sampled_from([0.1, -0.1, 30.0, -30.0]))
def test_the_best_after_any_penalty_are_in_it(case, change):
    row, n_best, recent = case
    ids = shortlist(row, n_best, recent)
    assert len(set(ids.tolist())) == len(ids)
    changed = row.copy()
    changed[np.unique(np.asarray(recent, dtype=np.int64))] -= np.float32(change)
    wanted = np.sort(changed)[::-1][:n_best]
    np.testing.assert_array_equal(np.sort(changed[ids])[::-1][:n_best], wanted)


def test_it_is_short():
    row = np.random.default_rng(1).normal(0, 3, 151_936).astype(np.float32)
    assert len(shortlist(row, 40, range(64))) < 200


def test_nan_does_no_harm():
    row = np.zeros(2048, dtype=np.float32)
    row[7] = 1.0
    assert 7 in shortlist(row, 1, [3])
    row[:] = np.nan
    assert len(shortlist(row, 1, [3, 3])) == 2048
