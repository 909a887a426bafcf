"""Text that runs on without end is cut, and only such text, and never inside a control text."""

from __future__ import annotations

import re
import time

import pytest

from engine.backends.longruns import MAX_RUN_CHARS, cut_long_runs

SPECIALS = ("<|im_start|>", "<|im_end|>", "|")
LONG = 5 * MAX_RUN_CHARS + 7


@pytest.mark.parametrize("char", ["a", "7", "!", "汉", "🙂", " ", "\n", "\u00a0", "\x1c", "\u2003"])
def test_no_run_is_longer_than_a_stack_bears(char: str) -> None:
    text = f"so {char * LONG}b and\n{char * LONG} {char * LONG}"
    pieces = cut_long_runs(text, SPECIALS)
    assert "".join(pieces) == text
    for run in re.findall(r"[^ \t\n\r\f\v]+|\s+", "\ue000".join(pieces).replace("\ue000", "b c")):
        assert len(run) <= MAX_RUN_CHARS + 4


def test_mixed_white_space_is_bounded_too() -> None:
    text = "a\u00a0" * LONG + "\x1c\u2003 \n" * LONG
    pieces = cut_long_runs(text, SPECIALS)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 2 * MAX_RUN_CHARS


def test_ordinary_text_is_left_whole() -> None:
    text = "a word, another one\n\n  and code(); 汉字 " * 2000 + "x" * MAX_RUN_CHARS
    assert cut_long_runs(text, SPECIALS) == [text]
    assert cut_long_runs("", SPECIALS) == [""]


def test_a_control_text_is_not_cut() -> None:
    for shift in range(-14, 15):
        text = "a" * (MAX_RUN_CHARS + shift) + "<|im_end|>" + "b" * LONG
        pieces = cut_long_runs(text, SPECIALS)
        assert "".join(pieces) == text
        assert sum(piece.count("<|im_end|>") for piece in pieces) == 1


def test_hostile_text_takes_linear_time() -> None:
    text = ("a" * MAX_RUN_CHARS + " ") * 1000
    started = time.process_time()
    assert len(cut_long_runs(text, SPECIALS)) == 1
    assert time.process_time() - started < 5, "two million characters; quadratic would take minutes"
