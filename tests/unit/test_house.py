"""The house rules that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(p for folder in ("bot", "engine") for p in (ROOT / folder).rglob("*.py"))
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Where a module may be longer than a few screens, and why it still has one job.
LONGEST_LINES = 450


def test_every_module_says_what_it_owns() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if path.stat().st_size > 1
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_every_package_says_what_lives_there() -> None:
    silent = [
        str(p.relative_to(ROOT))
        for p in MODULES
        if p.name == "__init__.py" and p.stat().st_size <= 1
    ]
    assert silent == []


def test_no_module_has_grown_past_its_purpose() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in MODULES
        if (n := len(p.read_text().splitlines())) > LONGEST_LINES
    }
    assert long == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_hold(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), (
                f"{page.name} links to {target}, which is not there"
            )


def test_both_readmes_show_the_same_commands() -> None:
    english, chinese = (PAGES[i].read_text(encoding="utf-8") for i in (0, 1))
    commands = [
        set(re.findall(r"`(hearth [a-z]+(?: [a-z]+)?|make [a-z]+|/[a-z]+)", text))
        for text in (english, chinese)
    ]
    assert commands[0] == commands[1]


def test_every_command_in_the_readme_exists() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "bot", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    for command in set(re.findall(r"`hearth ([a-z]+)", PAGES[0].read_text(encoding="utf-8"))):
        assert re.search(rf"\b{command}\b", shown), (
            f"README names `hearth {command}`, which --help does not show"
        )


def test_make_targets_of_the_contract() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("setup", "demo", "test", "check", "bench", "prove"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_engine_and_heavy_libraries_are_not_imported_at_start() -> None:
    """`hearth --help` must be quick, and the bot must not carry llama.cpp or lark_oapi in its memory."""
    code = "import bot.app, sys; print(sorted(m for m in ('llama_cpp', 'lark_oapi', 'numpy') if m in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert loaded.stdout.strip() == "[]"


def test_the_lock_pins_what_must_not_move() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "llama-cpp-python==0.3.36" in project["dependencies"]
    for package in (
        "aiohttp",
        "aiosqlite",
        "apscheduler",
        "lark-oapi",
        "llama-cpp-python",
        "sqlalchemy",
    ):
        assert any(dependency.startswith(package) for dependency in project["dependencies"]), (
            package
        )
