"""docs/models-for-12gb.md says what the planner says."""

from __future__ import annotations

from tests.support.modelspage import PAGE, page_with, tables


def test_the_page_is_what_the_planner_computes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_with(text, tables()), "run python -m tests.support.modelspage"
