"""DingTalk's signatures against the reference vectors, and how its cards show Markdown."""

from __future__ import annotations

import pytest

from bot.sandbox.dingtalk.markdown import card_text, message_text
from bot.sandbox.dingtalk.sign import card_sign, robot_sign


@pytest.mark.parametrize(
    ("timestamp", "secret", "expected"),
    [
        ("1577262236757", "this is a secret", "DJrE6qdyVGCQz9z5r2MDuNcNAhwYnuAkyj13cx169CA="),
        (
            "1764403200000",
            "demo-app-secret-0123456789",
            "5j6KV+a1M9CG3RmVj6af5X9ElT3R3yUWSJeSBkHnGqg=",
        ),
    ],
)
def test_robot_signature(timestamp: str, secret: str, expected: str) -> None:
    assert robot_sign(timestamp, secret) == expected


def test_card_signature() -> None:
    expected = "no0EzTbksGAg+u0WwCaCPlwiz7ROS2p0z0HCusKRl54="
    assert card_sign("1764403200000", "demo-card-api-secret") == expected


@pytest.mark.parametrize(
    ("source", "text", "glued"),
    [
        ("one\ntwo", "onetwo", ("two",)),
        ("one<br>two", "one\ntwo", ()),
        ("one<br>\ntwo", "one\ntwo", ()),
        ("one<br/>\n<br>two", "one\n\ntwo", ()),
        ("one\n\ntwo", "one\n\ntwo", ()),
        ("# head\ntext", "# head\ntext", ()),
        ("- a\n- b\n1. c\n> q", "- a\n- b\n1. c\n> q", ()),
        ("| a |\n|---|\n| b |", "| a |\n|---|\n| b |", ()),
        ("```py\na = 1\nb < 2\n```\nafter", "```py\na = 1\nb < 2\n```\nafter", ()),
        ("```\n<br>\n``` x\n```", "```\n<br>\n``` x\n```", ()),
        ("`a <b> c` &lt;d&gt;", "`a <b> c` <d>", ()),
    ],
)
def test_what_a_card_shows(source: str, text: str, glued: tuple[str, ...]) -> None:
    shown = card_text(source)
    assert (shown.text, shown.glued) == (text, glued)


def test_tags_and_mentions() -> None:
    shown = card_text(
        "<a atId=staff1>小林</a> <div>x</div> <font color=red>y</font> `<b>` 1 < 2 <a atId='s2'>B</a>"
    )
    assert shown.mentions == ("staff1", "s2")
    assert shown.swallowed == ("div", "div")
    assert shown.text == "@小林 x y `<b>` 1 < 2 @B"
    assert card_text("```\n<a atId=x>y</a>\n```").mentions == ()


@pytest.mark.parametrize(
    ("source", "text", "glued"),
    [
        ("one\ntwo", "onetwo", ("two",)),
        ("one  \ntwo", "one\ntwo", ()),
        ("one\n\n- a\n- b\n\n```\nx\ny\n```", "one\n\n- a\n- b\n\n```\nx\ny\n```", ()),
        ("a <br>b", "a <br>b", ()),
    ],
)
def test_what_a_message_shows(source: str, text: str, glued: tuple[str, ...]) -> None:
    shown = message_text(source)
    assert (shown.text, shown.glued) == (text, glued)
