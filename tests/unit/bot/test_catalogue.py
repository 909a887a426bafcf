"""The catalogue: both languages say everything, with the same values."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

import pytest

from bot.domain.access import Role
from bot.domain.catalogue import TEXTS, ordinal, place_in_line, say
from bot.domain.commands import COMMANDS, Command
from bot.domain.documents import DocumentState
from bot.domain.records import TimerKind
from bot.domain.types import SessionPolicy
from engine.machine.alarms import AlarmKind
from engine.types import EngineState, KvReuse

SAME = {"ordinal": "place"}
BOT = Path(__file__).parents[3] / "bot"


def _fields(text: str) -> set[str]:
    return {SAME.get(name, name) for _, name, _, _ in Formatter().parse(text) if name}


def test_both_languages_have_every_key():
    assert TEXTS["zh"].keys() == TEXTS["en"].keys()


@pytest.mark.parametrize("key", sorted(TEXTS["zh"]))
def test_both_languages_use_the_same_values(key):
    assert _fields(TEXTS["zh"][key]) == _fields(TEXTS["en"][key])
    assert TEXTS["zh"][key].strip()
    assert TEXTS["en"][key].strip()


def test_every_key_in_the_code_exists_and_every_text_is_used():
    used = set()
    for path in [*(BOT / "service").glob("*.py"), *(BOT / "domain").glob("*.py")]:
        if path.name.startswith("catalogue"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value)
    families = {f"status.state.{s.value}" for s in EngineState}
    families |= {f"status.policy.{p.value}" for p in SessionPolicy}
    families |= {f"role.{r.value}" for r in Role}
    families |= {f"status.reuse.{r.value}" for r in (KvReuse.WINDOW, KvReuse.TURN_ENDS)}
    families |= {f"button.{a}" for a in ("stop", "regenerate", "continue", "new_topic")}
    families |= {f"compact.how.{how}" for how in ("model", "extract")}
    families |= {f"{kind.value}.{what}" for kind in TimerKind for what in ("usage", "none")}
    families |= {f"document.{s.value}" for s in DocumentState if s is not DocumentState.READ}
    families |= {f"machine.warning.{kind.value}" for kind in AlarmKind}
    families |= {k for k in TEXTS["zh"] if k.startswith("attachment.")}
    assert families <= TEXTS["zh"].keys()
    unused = {k for k in TEXTS["zh"] if k not in used | families | {"waiting.place"}}
    assert unused == set()
    prefixes = {k.split(".")[0] for k in TEXTS["zh"] if "." in k}
    like_keys = {
        u
        for u in used
        if "." in u
        and u.split(".")[0] in prefixes
        and all(part.replace("_", "").isalpha() for part in u.split("."))
    }
    assert like_keys - TEXTS["zh"].keys() == set()


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_help_lists_every_command(language):
    text = say(language, "help")
    for command in Command:
        assert f"/{command.value}" in text
    if language == "zh":
        for spec in COMMANDS:
            assert spec.aliases[0] in text


def test_places():
    assert place_in_line("en", 3) == "You are 3rd in line…"
    assert "第 3 位" in place_in_line("zh", 3)
    assert [ordinal(n) for n in (1, 2, 4, 11, 12, 13, 21, 111)] == [
        "1st", "2nd", "4th", "11th", "12th", "13th", "21st", "111th",
    ]  # fmt: skip


def test_values_with_braces_are_only_values():
    assert "{place}" in say("en", "hint.unknown_command", word="{place}")
