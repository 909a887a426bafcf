"""How WeCom's texts look: golden files, bytes, cuts, and that no model can mention anybody or open a thinking block."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.platforms.wecom import apptext, style

GOLDEN = Path(__file__).parent / "golden" / "wecom"
ANSWER = (GOLDEN / "answer.md").read_text(encoding="utf-8")
PIECES = [
    "a", "你好", "👩‍👩‍👧", " ", "\n", "\n\n", "`", "```", "```py\n", "~~~", "<", ">", "@", "<@", "<@all>", "< @", "think", "<think>", "</think>",
    "< / think>", "<THINK", "\\", "\\<", "<a href=x>", "</a>", "<at id=all>", "<br>", "<br/>", "|", "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "- ", "# ", "> ", "**", "[", "](", "x)", "!", "\r", "\x00", "\ud83d", "&lt;", "\u200b",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)
MENTION = re.compile(r"<\s*@|<\s*/?\s*think\b", re.IGNORECASE)
APP_TAG = re.compile(r"<\s*@|<\s*/?\s*(?:a|font|think|at|person)\b", re.IGNORECASE)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("bot.md", style.body(ANSWER, 0, len(ANSWER))),
        ("app.txt", apptext.render(ANSWER, markdown=False)),
        ("app.md", apptext.render(ANSWER, markdown=True)),
    ],
)
def test_golden(name: str, made: str) -> None:
    """To accept a change: write `made` into the file and read the diff."""
    assert made.rstrip("\n") == (GOLDEN / name).read_text(encoding="utf-8").rstrip("\n")


@settings(max_examples=400, derandomize=True, deadline=None)
@given(texts)
def test_nobody_can_be_mentioned(text: str) -> None:
    for end in {len(text), len(text) // 2}:
        assert not MENTION.search(style.body(text, 0, end))
    assert not MENTION.search(style.sentence(text))
    for markdown in (True, False):
        assert not APP_TAG.search(apptext.render(text, markdown=markdown))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(texts, st.integers(1, 40))
def test_messages_of_an_app_fit_and_lose_nothing(text: str, times: int) -> None:
    text = f"{text}字word。\n" * times
    for markdown in (True, False):
        cuts = apptext.cuts(text, markdown=markdown)
        assert cuts[0][0] == 0
        assert cuts[-1][1] == len(text)
        assert all(one[1] == two[0] and one[0] < one[1] for one, two in pairwise(cuts))
        for start, end in cuts:
            piece = apptext.piece(text, start, end, markdown=markdown)
            assert len(piece.encode("utf-8", "replace")) <= 2048 - 96
            piece.encode()


@pytest.mark.parametrize("unit", ["👩‍👩‍👧‍👦", "e\u0301", "🇨🇳", "字", "x"])
def test_no_character_is_broken(unit: str) -> None:
    text = unit * 3000
    pieces = [apptext.piece(text, *cut, markdown=False) for cut in apptext.cuts(text, markdown=False)]  # fmt: skip
    assert len(pieces) > 1
    assert all(set(piece.split(unit)) == {""} for piece in pieces)


def test_a_table_that_is_cut_repeats_its_head() -> None:
    rows = "".join(f"| {n} | {'值' * 20} |\n" for n in range(60))
    text = f"intro\n\n| h1 | h2 |\n|---|---|\n{rows}\nend"
    pieces = [apptext.piece(text, *cut, markdown=False) for cut in apptext.cuts(text, markdown=False)]  # fmt: skip
    assert len(pieces) > 2
    assert all("h1 | h2" in piece for piece in pieces[1:-1])
    assert all(line.count("|") in {0, 1} for piece in pieces for line in piece.splitlines())


def test_code_that_is_cut_stays_code() -> None:
    text = "```py\n" + "".join(f"x_{n} = '**not bold**'\n" for n in range(300)) + "```\n**bold**"
    pieces = [apptext.piece(text, *cut, markdown=False) for cut in apptext.cuts(text, markdown=False)]  # fmt: skip
    whole = "\n".join(pieces)
    assert whole.count("'**not bold**'") == 300
    assert whole.endswith("\nbold")


@pytest.mark.parametrize("text", ["\u200b", " \u200d\n\ufeff", "<br>"])
def test_an_invisible_answer_is_none(text: str) -> None:
    assert style.body(text, 0, len(text)) == ""
    assert apptext.piece(text, 0, len(text), markdown=False) == ""


def test_a_stream_is_counted_in_bytes() -> None:
    text = "字" * 10_000
    end = style.cut(text, 0)
    assert end is not None
    assert 19_000 < len(style.body(text, 0, end).encode()) <= 20_480
    assert style.cut(text, end) is None
    assert style.clip("字字", 5) == "字"
    assert len(style.sentence("字" * 500).encode()) <= 400


HOSTILE = [
    "# a" + " " * 30_000 + "b", "<" + " " * 30_000, "< / " * 2_000 + " " * 8_000, "[" * 8_000, "![" * 4_000, " **a" * 1_500, "``a`" * 1_500,
    " ".join("`" * n for n in range(1, 200)), "-" + " " * 20_000 + "|x", " " * 20_000 + "|x", "[a](u" + " " * 20_000,
    "```\n<" + " " * 30_000 + "\n```", "- line\n" * 1_500,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:8])
def test_no_text_of_a_model_stops_the_event_loop(text: str) -> None:
    """Each of these took minutes to write or to cut: a pattern or a scan with more than a few steps per character."""
    for markdown in (True, False):
        assert apptext.cuts(text, markdown=markdown)[-1][1] == len(text)
    assert style.body(text, 0, len(text))


def test_a_head_of_a_table_that_would_fill_the_message_is_not_repeated() -> None:
    head = (
        "| "
        + " | ".join(f"第{n}列的名字很长很长" for n in range(60))
        + " |\n|"
        + "---|" * 60
        + "\n"
    )
    text = head + "".join("| " + " | ".join(str(n) for _ in range(60)) + " |\n" for n in range(30))
    assert len(head.encode()) > 2048
    assert len(apptext.cuts(text, markdown=False)) < 8
    start, pieces = 0, []
    while (end := style.cut(text, start, 2048)) is not None:
        pieces.append(style.body(text, start, end, 2048))
        start = end
    assert len(pieces) < 8
    assert all(len(piece.encode()) <= 2048 for piece in pieces)


def test_a_sharp_at_the_end_of_a_heading_is_its_own() -> None:
    shown = apptext.render("# 学习 C#\n## closed ##\n### F# ###", markdown=False)
    assert shown == "学习 C#\nclosed\nF#"


def test_a_growing_text_is_interrupted_behind_a_line() -> None:
    assert style.pause_cut("one\ntwo\nthr", 0) == 8
    assert style.pause_cut("one\ntwo\nthree fou", 8) == 14
    assert style.pause_cut("圆周率是3.1", 0) == 6
    assert style.pause_cut("好。👩‍👩‍👧", 0) == 2
    assert style.pause_cut("好👩‍👩‍👧", 0) == 1
    assert style.pause_cut("👩‍👩", 0) == 3
    assert style.pause_cut("all", 3) == 3
