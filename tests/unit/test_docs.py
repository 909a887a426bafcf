"""The pages: every one has its twin in the other language or stands in a list that says why not; links and anchors hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Pages for people who build or measure Hearth, or call its API: in English only.
ENGLISH_ONLY = {
    "api.md": "for programmers",
    "architecture.md": "for programmers",
    "doctor.md": "for operators",
    "gpu.md": "for operators",
    "models-for-12gb.md": "written by the planner",
    "models.md": "for operators, tables of figures",
    "roadmap.md": "for programmers",
    "rpc.md": "for operators",
    "vram.md": "for operators, tables of figures",
    "watch.md": "for operators",
}
ENGLISH = sorted(p for p in DOCS.glob("*.md"))
CHINESE = sorted(p for p in (DOCS / "zh").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *ENGLISH, *CHINESE]


def headings(page: Path) -> list[str]:
    """The levels of a page's headings, in order ("#" inside code is none)."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)  # fmt: skip
    return re.findall(r"^(#+) ", text, re.MULTILINE)


def rows(page: Path) -> int:
    return len(re.findall(r"^\|", page.read_text(encoding="utf-8"), re.MULTILINE))


def steps(page: Path) -> int:
    return len(re.findall(r"^\d+\. ", page.read_text(encoding="utf-8"), re.MULTILINE))


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower().strip()).replace(" ", "-")


@pytest.mark.parametrize("page", ENGLISH, ids=lambda p: p.name)
def test_an_english_page_has_a_chinese_twin_or_a_reason(page: Path) -> None:
    twin = DOCS / "zh" / page.name
    assert twin.exists() != (page.name in ENGLISH_ONLY)


@pytest.mark.parametrize("page", CHINESE, ids=lambda p: p.name)
def test_twins_say_the_same_things(page: Path) -> None:
    english = DOCS / page.name
    assert headings(page) == headings(english)
    assert rows(page) == rows(english)
    assert steps(page) == steps(english)
    assert f"(zh/{page.name})" in english.read_text(encoding="utf-8")
    assert f"(../{page.name})" in page.read_text(encoding="utf-8")
    # What is typed or clicked by name is the same: keys, scopes, events, commands of the shell.
    names = (
        r"`([a-z_]+ = [^`<]+|[a-z]+:[a-z_.:]+|im\.[a-z_.0-9]+|hearth [a-z]+ --config config\.toml)`"
    )
    assert set(re.findall(names, page.read_text(encoding="utf-8"))) == set(
        re.findall(names, english.read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize("page", CHINESE, ids=lambda p: p.name)
def test_chinese_pages_are_chinese(page: Path) -> None:
    """Half-width punctuation between Chinese characters is a sign of a careless translation."""
    text = re.sub(r"`[^`]*`|\([^)]*\)", "", page.read_text(encoding="utf-8"))
    assert re.findall(r"[\u4e00-\u9fff][,;:?!][\u4e00-\u9fff]", text) == []
    assert len(re.findall(r"[\u4e00-\u9fff]", text)) > 400


def test_readers_are_led_to_their_language() -> None:
    chinese = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
    for page in CHINESE:
        assert f"docs/zh/{page.name}" in chinese
        assert f"(docs/{page.name})" not in chinese


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_anchors_hold(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        where = (page.parent / path) if path else page
        assert where.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            there = re.findall(r"^#+ (.+)$", where.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in there}, f"{page.name}: {target}"
