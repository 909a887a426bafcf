"""What a person sees of a model's Markdown: escaping, tables, fences, lists, and the prefix rule while it grows."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bot.domain.markdown import Dialect, escape, plain, preview, render

MENTION = re.compile(r"<\s*/?\s*(at|person)\b", re.IGNORECASE)
PIECES = [
    "a", "Z", "你好", "👩‍👩‍👧", " ", "  ", "    ", "\t", "\n", "\n\n", "`", "``", "```", "````", "~~~", "```py\n", "\n```\n", "<", ">",
    "at", "<at", "<at id=all>", "</at>", "<person id=ou_1>", "</", "AT ", "br", "<br>", "/>", "&#60;", "!", "[", "]", "](", "(u)", "![",
    "\\", "|", "| a | b |\n|---|---|\n| 1 | 2 |\n", "|-|\n", "---", ":-:", "- ", "* ", "1. ", "2)", "#", "# ", "> ", "\r", "\x00",
    "<font color=red>", "<a href=x>", "<audio>", "x" * 90,
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


def tables(shown: str) -> int:
    """Tables outside fences, counted independently of the renderer."""
    count, mark = 0, ""
    lines = shown.split("\n")
    for before, line in pairwise(lines):
        fence = re.match(r"\s*(`{3,}|~{3,})", before)
        if fence:
            mark = "" if mark else fence[1]
        elif (
            not mark
            and "|" in before
            and re.fullmatch(r"[\s>]*\|?[\s:|-]*-[\s:|-]*", line)
            and "|" in line
        ):
            count += 1
    return count


def table(n: int) -> str:
    return f"| h{n} | b |\n|---|:-:|\n| 1 | 2 |\n"


@settings(max_examples=500, derandomize=True, deadline=None)
@given(texts, st.integers(0, 2))
@example("`<at id=all>", 3)
@example("!!![a](b)", 3)
@example("| a\n|-x", 0)
def test_what_was_shown_is_a_prefix_of_what_comes(text: str, limit: int) -> None:
    """feishu.md §5.2: otherwise the whole element flickers instead of growing."""
    shown = ""
    for end in range(len(text) + 1):
        more = render(text[:end], final=False, table_limit=limit)
        assert more.startswith(shown)
        shown = more
        assert render(text[:end], final=True, table_limit=limit).startswith(shown)


@settings(max_examples=500, derandomize=True, deadline=None)
@given(texts, st.booleans(), st.sampled_from(list(Dialect)))
def test_no_text_can_mention_anybody(text: str, final: bool, dialect: Dialect) -> None:
    assert not MENTION.search(render(text, final=final, dialect=dialect))
    assert not MENTION.search(plain(text))
    assert not MENTION.search(preview(text))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "\n", "```", "```py\n", "\n```\n", "~~~\n", "  ```\n", "``", " "]),
        max_size=16,
    ).map("".join)
)
def test_fences_are_balanced_and_start_at_column_0(text: str) -> None:
    mark = ""
    for line in render(text, final=True).split("\n"):
        fence = re.match(r"(\s*)(`{3,}(?!.*`)|~{3,})\s*(.*)$", line)
        if mark:
            if line.strip() and not line.strip().strip(mark[0]) and len(line.strip()) >= len(mark):
                mark = ""
                assert line == line.strip()
        elif fence:
            assert not fence[1]
            mark = fence[2]
    assert not mark


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.text(alphabet="abc 你好。,.\n", max_size=200))
def test_harmless_text_is_not_touched(text: str) -> None:
    assert render(text, final=True) == text
    assert plain(text) == text


@pytest.mark.parametrize(("n", "limit"), [(1, 3), (3, 3), (4, 3), (6, 3), (12, 3), (2, 0)])
def test_tables_over_the_limit_become_code(n: int, limit: int) -> None:
    text = "\n".join(table(i) for i in range(n)) + "\nend"
    shown = render(text, final=True, table_limit=limit)
    assert tables(shown) == min(n, limit)
    assert shown.count("```") == 2 * max(0, n - limit)
    for i in range(n):
        assert f"| h{i} | b |" in shown
    assert shown.endswith("end")


def test_a_table_in_a_code_block_does_not_count() -> None:
    text = f"```\n{table(0)}```\n\n{table(1)}\n{table(2)}"
    assert render(text, final=True, table_limit=2) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<at id=all></at>", "&#60;at id=all>&#60;/at>"),
        ("a < b > c", "a &#60; b > c"),
        ("a<br/>b", "a<br>b"),
        ("\\<at id=all>", "&#60;at id=all>"),
        ("`<div>`", "`<div>`"),
        ("`<at id=all>`", "`<\u200bat id=all>`"),
        ("``<font>`", "``&#60;font>`"),
        ("\\`<font>\\`", "\\`&#60;font>\\`"),
        ("```html\n<at id=all>\n<p>\n```", "```html\n<\u200bat id=all>\n<p>\n```"),
        ("![cat](https://x.test/c.png)", "[cat](https://x.test/c.png)"),
        ("Oh!![cat](u) ![](v)", "Oh! [cat](u) [🖼](v)"),
        ("  ```python title=x\n  a\n    b\n  ```  \nc", "```python\na\n  b\n```\nc"),
        ("```py\nprint(1)", "```py\nprint(1)\n```"),
        ("````md\n```\nx\n```\n````", "````md\n```\nx\n```\n````"),
        ("- a\n  - b\n    - c\n  - d\n- e", "- a\n    - b\n        - c\n    - d\n- e"),
        ("1. a\n   - b\n2. c", "1. a\n    - b\n2. c"),
        (
            "# T\n\n> q\n\n**b** _i_ [l](https://x.test)",
            "# T\n\n> q\n\n**b** _i_ [l](https://x.test)",
        ),
        ("a\r\nb\x00c", "a\nbc"),
    ],
)
def test_golden_card(text: str, shown: str) -> None:
    assert render(text, final=True) == shown


def test_post_breaks_tags_without_entities() -> None:
    assert render("a <at user_id=x>", final=True, dialect=Dialect.POST) == "a <\u200bat user_id=x>"
    assert plain("2 < 3 <at user_id=x>") == "2 < 3 <\u200bat user_id=x>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hello <", "hello "),
        ("hello `co", "hello "),
        ("hello `co` x", "hello `co` x"),
        ("x\n``", "x\n"),
        ("x\n```py", "x\n"),
        ("x\n```py\nprint", "x\n```py\nprint"),
        ("x\n```py\nprint\n``", "x\n```py\nprint\n"),
        ("wow!", "wow"),
        ("wow! ", "wow! "),
        (f"{table(0)}\n| h1 | b |\n|--", f"{table(0)}\n"),
        (f"{table(0)}\n| h1 | b |\n|---|---|\n", f"{table(0)}\n```\n| h1 | b |\n|---|---|\n"),
    ],
)
def test_what_is_undecided_is_held_back(text: str, shown: str) -> None:
    assert render(text, final=False, table_limit=1) == shown


def test_preview_is_one_short_line() -> None:
    assert (
        preview("# **Title**\n\nsome `code` and [link](https://x.test)")
        == "Title some code and link"
    )
    assert preview("字" * 100) == "字" * 59 + "…"


def test_escape_of_our_own_sentence() -> None:
    assert escape("<at id=all>") == "&#60;at id=all>"
