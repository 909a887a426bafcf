"""What the sandbox sees in Markdown: tables, mentions, images, code."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.sandbox.feishu import markdown

TABLE = "| a | b |\n|---|:-:|\n| 1 | 2 |\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("no table", 0),
        (TABLE, 1),
        (f"{TABLE}\ntext\n\n{TABLE}", 2),
        (f"```\n{TABLE}```\n", 0),
        (f"~~~md\n{TABLE}~~~\n{TABLE}", 1),
        (f"```\n{TABLE}", 0),
        ("a | b\n--- | ---\n1 | 2", 1),
        ("a - b\n---\n", 0),
        ("`|` and\n|---|\n", 0),
        ("| a |\n|---|\n", 1),
    ],
)
def test_tables(text: str, count: int) -> None:
    assert markdown.count_tables(text) == count


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("<at id=ou_x></at>", [("ou_x",)]),
        ("<at ids=a,b></at>", [("a", "b")]),
        ("<at id='all'></at> <person id=\"ou_y\"/>", [("all",), ("ou_y",)]),
        ('<at user_id="ou_z">Zoë</at>', [("ou_z",)]),
        ("&#60;at id=all>", []),
        ("a < b and <attic>", []),
        ("<AT id=ou_x>", [("ou_x",)]),
        ("<at></at>", [()]),
    ],
)
def test_mentions(text: str, ids: list[tuple[str, ...]]) -> None:
    assert [tag.ids for tag in markdown.people_tags(text)] == ids


def test_code_is_told_from_prose() -> None:
    prose, code = markdown.split_code("one `<at id=1>` two\n```py\n<at id=2>\n```\n<at id=3>")
    assert [tag.ids for tag in markdown.people_tags(prose)] == [("3",)]
    assert sorted(tag.ids[0] for tag in markdown.people_tags(code)) == ["1", "2"]


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("![x](img_v3_02ao_9fdc-e3f7)", None),
        ("![x](https://example.com/a.png)", "https://example.com/a.png"),
        ("![](data:image/png;base64,AA)", "data:image/png;base64,AA"),
        ("`![x](http://a)`", None),
        ("[x](http://a)", None),
    ],
)
def test_images(text: str, bad: str | None) -> None:
    assert markdown.bad_image(text) == bad


@settings(max_examples=100, derandomize=True)
@given(st.text(alphabet="`~|-\n <>at id=![]()a", max_size=80))
def test_nothing_makes_it_raise(text: str) -> None:
    markdown.count_tables(text)
    list(markdown.people_tags(text))
    markdown.bad_image(text)
