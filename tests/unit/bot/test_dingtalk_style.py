"""How answers are written for DingTalk: golden files for both kinds of Markdown, and what must hold for any text.

`HEARTH_WRITE_GOLDEN=1` writes the golden files anew; read the difference before committing it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.domain.cutting import best_cut, furthest
from bot.domain.markdown import fence_opened_by
from bot.platforms.dingtalk.style import Style, card_markdown, message_markdown, nick, size_bytes

GOLDEN = Path(__file__).parent / "golden" / "dingtalk"
SOURCES = sorted(path for path in GOLDEN.glob("*.md") if path.suffixes == [".md"])
WRITES = {"card": lambda text: card_markdown(text, final=True), "message": message_markdown}
MENTION = re.compile(r"<\s*/?\s*a\b[^<>]*atid", re.IGNORECASE)


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_golden(source: Path, kind: str) -> None:
    golden = source.with_suffix(f".{kind}.md")
    shown = WRITES[kind](source.read_text(encoding="utf-8").rstrip("\n"))
    if os.environ.get("HEARTH_WRITE_GOLDEN"):
        golden.write_text(shown, encoding="utf-8")
    assert shown == golden.read_text(encoding="utf-8")


PIECES = [
    *"ab一。 \n\n\n|-`<>/#*1.[]()!:\\~@=\"'",
    "<a atId=",
    "```",
    "~~~",
    "\n- ",
    "https://x.cn/",
]
TEXT = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


@settings(max_examples=300)
@given(TEXT, st.booleans())
def test_nobody_can_be_mentioned(text: str, final: bool) -> None:
    for shown in (card_markdown(text, final=final), message_markdown(text)):
        assert not MENTION.search(shown)
    prose = card_markdown(text.replace("`", "").replace("~", ""), final=final)
    assert re.findall(r"<(?!\u200b|br>)", prose) == []


@settings(max_examples=200)
@given(TEXT, st.integers(0, 60))
def test_a_growing_card_is_always_whole(text: str, end: int) -> None:
    """No update leaves a fence open, which would turn everything below it into code."""
    fence = None
    for line in card_markdown(text[:end], final=False).split("\n"):
        fence = (None if fence.closed_by(line) else fence) if fence else fence_opened_by(line)
    assert fence is None


def test_prose_keeps_its_lines_in_both() -> None:
    assert card_markdown("a\nb\n\nc", final=True) == "a<br>b\n\nc"
    assert message_markdown("a\nb\n\nc") == "a  \nb\n\nc"


def test_an_unfinished_fence_of_a_growing_card_is_closed() -> None:
    assert card_markdown("```py\nx", final=False) == "```py\nx\n```"
    assert card_markdown("a\n``", final=False) == "a\n"


@pytest.mark.parametrize("documented", [True, False])
@pytest.mark.parametrize("kind", ["card", "message", "text"])
def test_pieces_fit_and_lose_nothing(kind: str, documented: bool) -> None:
    style = Style(documented=documented)
    text = "".join(f"第{n}段：" + '很长的"段落"，quoted。' * (n % 9) + "\n\n" for n in range(160)).strip()  # fmt: skip
    pieces, start = [], 0
    while start < len(text):
        whole = style.fits(kind, text, start, len(text))
        at = start
        end = len(text) if whole else best_cut(
            text, start, furthest(start, len(text), lambda end, at=at: style.fits(kind, text, at, end))
        )  # fmt: skip
        pieces.append(style.body(kind, text, start, end, final=True))
        start = end
    assert len(pieces) >= 2
    most_chars, most_bytes = {
        "card": (1_000, 1_000) if documented else (2_500, 9_000),
    }.get(kind, (3_800, 15_000))
    assert max(map(len, pieces)) <= most_chars
    assert max(map(size_bytes, pieces)) <= most_bytes
    assert "".join(pieces).replace("\n", "") == text.replace("\n", "")


def test_getting_smaller_ends() -> None:
    style = Style(documented=False)
    steps = 0
    while style.shrink():
        steps += 1
    assert 2 <= steps <= 10


def test_names_are_harmless() -> None:
    assert nick("[a](http://x) *b*\n<a atId=1>") == "a http://x b a atId=1"
    assert nick("\u0000") == ""
