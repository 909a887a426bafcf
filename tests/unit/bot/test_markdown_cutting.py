"""Long answers over several messages: nothing is lost, nothing is broken at the seams."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bot.domain.cutting import best_cut, carry, furthest
from bot.domain.markdown import render

PIECES = [
    "word ", "你好，世界。", "👩‍👩‍👧", "👍🏽", "🇨🇳🇩🇪", "é́", "\n", "\n\n", "# head\n", "- item\n", "\r\n", "x" * 30,
    "\n```py\nprint(1)\nprint(2)\n```\n", "\n```\n" + "code\n" * 12, "\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\n", "~~~\n",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=30).map("".join)


def pieces(text: str, room: int) -> list[str]:
    """Cut a text the way a driver does: slices whose concatenation must be the text."""
    slices, start = [], 0
    while start < len(text):
        at = start

        def fits(end: int, begin: int = at) -> bool:
            return len(carry(text, begin) + text[begin:end]) <= room

        end = (
            len(text)
            if fits(len(text))
            else best_cut(text, start, furthest(start, len(text), fits))
        )
        slices.append(text[start:end])
        start = end
    return slices


@settings(max_examples=300, derandomize=True, deadline=None)
@given(texts, st.integers(20, 200))
def test_no_character_is_lost_and_every_cut_advances(text: str, room: int) -> None:
    slices = pieces(text, room)
    assert "".join(slices) == text
    assert all(slices)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(texts, st.integers(40, 200))
def test_each_piece_closes_its_fence(text: str, room: int) -> None:
    start = 0
    for piece in pieces(text, room):
        shown = render(carry(text, start) + piece, final=True)
        fence = ""
        for line in shown.split("\n"):
            bare = line.strip()
            if not fence and bare[:3] in {"```", "~~~"}:
                fence = bare[:3]
            elif fence and bare == fence:
                fence = ""
        assert not fence
        start += len(piece)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    st.lists(st.sampled_from(["👩‍👩‍👧", "👍🏽", "é", "字"]), min_size=5, max_size=60).map("".join),
    st.integers(12, 40),
)
def test_no_cut_inside_a_character(text: str, room: int) -> None:
    for piece in pieces(text, room):
        assert piece[0] not in "\u200d\u0301\U0001f3fd"
        assert piece[-1] != "\u200d"


def test_paragraphs_are_kept_whole() -> None:
    text = "first paragraph.\n\n" + "second paragraph is here.\n\n" + "third one"
    assert pieces(text, 50) == ["first paragraph.\n\nsecond paragraph is here.\n\n", "third one"]


def test_a_heading_is_not_left_alone_at_the_end() -> None:
    text = "some words here\n\n# Heading\nthe text under the heading goes on and on"
    assert pieces(text, 40)[0] == "some words here\n\n"


def test_a_long_fence_is_reopened_with_its_language() -> None:
    text = "```python\n" + "".join(f"line_{i} = {i}\n" for i in range(20)) + "```\nafter"
    first, second = pieces(text, 200)[:2]
    assert carry(text, len(first)) == "```python\n"
    assert first.endswith("\n")
    assert second.startswith("line_")


def test_a_long_table_repeats_its_head() -> None:
    text = "| k | v |\n|---|---|\n" + "".join(f"| {i} | value |\n" for i in range(30))
    first = pieces(text, 200)[0]
    assert first.endswith("|\n")
    assert carry(text, len(first)) == "| k | v |\n|---|---|\n"
    assert carry("text\n\nmore", 6) == ""
