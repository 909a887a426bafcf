"""How a message is recognized as a command."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.domain.commands import (
    COMMANDS,
    Command,
    UnknownCommand,
    clean,
    number_of,
    parse_command,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/help", Command.HELP),
        ("  /RESET  ", Command.RESET),
        ("　/Reset　", Command.RESET),
        ("／reset", Command.RESET),
        ("／ＲＥＳＥＴ", Command.RESET),
        ("\u200b/stop\ufeff", Command.STOP),
        ("/reset　now please", Command.RESET),
        ("/重置", Command.RESET),
        ("／新话题", Command.NEW),
        ("/我是谁", Command.WHOAMI),
        ("新话题", Command.NEW),
        ("停止", Command.STOP),
        ("帮助", Command.HELP),
        ("/?", Command.HELP),
    ],
)
def test_commands_are_recognized(text, expected):
    assert parse_command(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "/etc/passwd 是什么",
        "/",
        "//comment",
        "/ help",
        "help",
        "please /reset",
        "我是谁",
        "停止这个服务要怎么做",
        "停止 服务",
        "",
        "   ",
        "/usr/bin/python -V",
        "/123",
    ],
)
def test_questions_are_not_commands(text):
    assert parse_command(text) is None


@pytest.mark.parametrize(("text", "word"), [("/Xyz", "Xyz"), ("／helpp me", "helpp")])
def test_what_looks_like_a_command_gets_a_hint(text, word):
    assert parse_command(text) == UnknownCommand(word)


def test_no_name_is_given_twice():
    names = [n for spec in COMMANDS for n in (spec.command.value, *spec.aliases)]
    assert len(names) == len(set(names))
    assert {spec.command for spec in COMMANDS} == set(Command)


@given(st.text(max_size=60))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_any_text_is_parsed(text):
    parse_command(text)
    assert clean(clean(text)) == clean(text)


@given(
    st.sampled_from(list(Command)),
    st.sampled_from(["", " ", "　", "\n", "\u200b"]),
    st.sampled_from(["", " ", "　x", "\nmore text"]),
)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_space_around_a_command_does_not_matter(command, before, after):
    assert parse_command(f"{before}/{command.value.upper()}{after}") is command


@pytest.mark.parametrize(
    ("word", "number"),
    [("1", 1), ("20", 20), ("２", 2), ("0", None), ("21", None), ("-1", None), ("²", None), ("9" * 5000, None)],
)  # fmt: skip
def test_numbers_behind_a_command(word, number):
    assert number_of(word, 20) == number
