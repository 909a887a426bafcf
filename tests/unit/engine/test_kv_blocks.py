"""Blocks are named by all tokens before their end, and cut where later turns may part."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.kv.blocks import BLOCK_TOKENS, TokenHash, cut_spans, digest_of, opaque

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=300)


@given(TOKENS, st.lists(st.integers(0, 300), max_size=5))
def test_the_name_does_not_depend_on_where_it_was_cut(tokens: list[int], cuts: list[int]) -> None:
    name = TokenHash()
    digest = name.update([])
    borders = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    for left, right in pairwise(borders):
        digest = name.update(tokens[left:right])
    assert digest == digest_of(tokens)


@given(TOKENS, TOKENS)
def test_other_tokens_have_another_name(a: list[int], b: list[int]) -> None:
    assert (digest_of(a) == digest_of(b)) == (a == b)


@given(
    st.integers(0, 500),
    st.integers(0, 500),
    st.lists(st.integers(0, 1000), max_size=4),
    st.booleans(),
)
def test_spans_cover_everything_in_order(
    start: int, n_tokens: int, marks: list[int], whole: bool
) -> None:
    end = start + n_tokens
    spans = cut_spans(start, end, marks, whole=whole)
    at = start
    for left, right in spans:
        assert left == at
        assert 0 < right - left <= BLOCK_TOKENS
        assert not any(left < mark < right for mark in marks)
        at = right
    assert at == end if whole else end - at < BLOCK_TOKENS


def test_what_was_said_cannot_be_read_from_a_file_name() -> None:
    assert "ou_boss" not in opaque("feishu:ou_boss")
    assert opaque("a") != opaque("b")
    assert opaque("\ud800")  # a lone surrogate from a careless client
