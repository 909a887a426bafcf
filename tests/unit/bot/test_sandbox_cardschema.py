"""Cards of schema 2.0: what is refused, with which code."""

from typing import Any

import pytest

from bot.sandbox.feishu import Limits
from bot.sandbox.feishu.cardschema import CardRules
from bot.sandbox.feishu.errors import CardError

MARKDOWN = {"tag": "markdown", "element_id": "answer", "content": "hi"}
TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
BUTTON = {
    "tag": "button",
    "element_id": "stop",
    "text": {"tag": "plain_text", "content": "Stop"},
    "type": "danger",
    "behaviors": [{"type": "callback", "value": {"action": "stop"}}],
}


def rules(strict: bool = True) -> CardRules:
    return CardRules(Limits(), lambda any_id: any_id == "ou_known", strict=strict)


def card(*elements: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"schema": "2.0", "body": {"elements": list(elements or (MARKDOWN,))}, **more}


def md(content: str, element_id: str = "answer") -> dict[str, Any]:
    return {"tag": "markdown", "element_id": element_id, "content": content}


def test_legal_cards_pass() -> None:
    config = {
        "update_multi": True,
        "streaming_mode": True,
        "summary": {"content": "…"},
        "streaming_config": {
            "print_frequency_ms": {"default": 70, "pc": 50},
            "print_step": {"default": 1},
            "print_strategy": "fast",
        },
    }
    row = {"tag": "column_set", "columns": [{"tag": "column", "elements": [BUTTON]}]}
    header = {"title": {"tag": "plain_text", "content": "t"}, "template": "blue"}
    rules().check(card(MARKDOWN, {"tag": "hr"}, row, config=config, header=header))
    rules().check(card(md("<at id=ou_known></at> <at id=all></at> ![](img_v3_1) " + 3 * TABLE)))
    rules().check(card({"tag": "div", "text": {"tag": "plain_text", "content": "<at id=nobody>"}}))
    rules().check(card({"tag": "chart", "chart_spec": {"anything": 1}}))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (None, 300307),
        ({}, 300307),
        ([], 300307),
        ({"body": {"elements": []}}, 300303),
        ({"schema": "1.0", "elements": []}, 300303),
        ({"schema": "2.0"}, 200621),
        ({"schema": "2.0", "elements": []}, 200621),
        (card(surprise=1), 200621),
        (card({**MARKDOWN, "color": "red"}), 200621),
        (card({"tag": "markdown", "element_id": "a"}), 200621),
        (card({"tag": "markdown", "content": 7}), 200621),
        (card(config={"wide_screen_mode": True}), 200621),
        (card(config={"streaming_mode": "yes"}), 200621),
        (card(config={"summary": {"text": "x"}}), 200621),
        (card(config={"streaming_config": {"print_step": {"default": 0}}}), 200621),
        (card(config={"streaming_config": {"print_step": {"mac": 1}}}), 200621),
        (card(config={"streaming_config": {"print_strategy": "now"}}), 200621),
        (card(config={"update_multi": False}), 300302),
        (card("text"), 200621),  # type: ignore[arg-type]
        (card({"tag": "note", "elements": []}), 200861),
        (card({"tag": "action", "actions": [BUTTON]}), 200861),
        (card({**BUTTON, "value": {"a": 1}}), 200621),
        (card({**BUTTON, "type": "shiny"}), 200621),
        (card({**BUTTON, "text": "Stop"}), 200621),
        (card({**BUTTON, "behaviors": [{"type": "callback"}]}), 200621),
        (card({**BUTTON, "behaviors": [{"type": "call", "value": {}}]}), 200621),
        (card({**BUTTON, "behaviors": {}}), 200621),
        (card({**MARKDOWN, "element_id": "1st"}), 300301),
        (card({**MARKDOWN, "element_id": "a-b"}), 300301),
        (card({**MARKDOWN, "element_id": "a" * 21}), 300301),
        (card(MARKDOWN, MARKDOWN), 300301),
        (card(*[{"tag": "hr"}] * 201), 300305),
        (card(md("x" * 31_000)), 200860),
        (card(md("你" * 10_300)), 200860),
        (card(md(4 * TABLE)), 230099),
        (card(md(2 * TABLE), md(2 * TABLE, "b")), 230099),
        (card(md("<at id=ou_nobody></at>")), 230099),
        (card(md("<person id=ou_nobody></person>")), 230099),
        (card(md("![x](http://a/b.png)")), 200570),
        (
            card(
                {"tag": "img", "img_key": "http://a", "alt": {"tag": "plain_text", "content": ""}}
            ),
            200570,
        ),
        (card({"tag": "img", "img_key": "img_1"}), 200621),
        (
            card(
                {
                    "tag": "column_set",
                    "columns": [{"tag": "column", "elements": [{"tag": "bogus"}]}],
                }
            ),
            200861,
        ),
        (card({"tag": "column_set", "columns": {}}), 200621),
        (card(header={"title": {"tag": "plain_text"}}), 200621),
        (card(header={"colour": "blue"}), 200621),
    ],
)
def test_refused(given: Any, code: int) -> None:
    with pytest.raises(CardError) as caught:
        rules().check(given)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("given", "sub_code"),
    [(card(md(4 * TABLE)), "11310"), (card(md("<at id=ou_nobody></at>")), "100290")],
)
def test_the_real_cause_stands_in_the_message(given: Any, sub_code: str) -> None:
    with pytest.raises(CardError, match=f"ErrCode: {sub_code}"):
        rules().check(given)


def test_nested_text_nodes_count() -> None:
    div = {"tag": "div", "text": {"tag": "plain_text", "content": "x"}}
    rules().check(card(*[div] * 100))
    with pytest.raises(CardError) as caught:
        rules().check(card(*[div] * 101))
    assert caught.value.code == 300305


def test_not_strict_lets_unknown_fields_pass() -> None:
    rules(strict=False).check(card({**MARKDOWN, "color": "red"}))


def test_the_message_api_wraps_the_code() -> None:
    wrapped = CardError(200621, "x").wrapped()
    assert wrapped.code == 230099
    assert "ErrCode: 200621" in wrapped.msg
    assert CardError(200860).wrapped().code == 230025
