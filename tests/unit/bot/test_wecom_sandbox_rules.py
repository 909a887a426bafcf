"""The sandbox's own WeCom rules: crypto against published vectors, cards, Markdown, limits."""

from __future__ import annotations

from typing import Any

import pytest

from bot.sandbox.wecom import Limits, ManualClock, WeComConfig, crypto
from bot.sandbox.wecom import text as reading
from bot.sandbox.wecom.cards import Cards
from bot.sandbox.wecom.errors import ApiError
from bot.sandbox.wecom.judge import Judge
from bot.sandbox.wecom.limits import Rates
from bot.sandbox.wecom.world import World

KEY = crypto.key_of("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8")
CORP = "ww0123456789abcdef"
HEAD = b"0123456789abcdef"
VECTORS = [
    (
        "1616140317555161061", CORP, "4a4e1cd10fe34c011713125baa6f5d1a3cc60b43",
        "4j/AuRx71kQlxVlzbpsMWFHe92iq4VdHki6B+j5nrtgcS54Mj3xQTtZ/FUl+1TNkgHFEtNbC6UD+fm58bt1m+w==",
    ),
    (
        '{"msgtype":"stream","stream":{"id":"s1","finish":false,"content":"你好"}}', "",
        "e0b95b7a9ef2aa81bdefe41ebc2b6f60551e22c3",
        "4j/AuRx71kQlxVlzbpsMWNKzXFX6vsfnhnhUDLWAGI5xtWF4TXYm9/ZbabSFL3mqz6XxRQBB+Ui/jTAbh5bTaBZxaMtffCP59GNd8gfaifWz87qHucsHDLjNZzYoHTdf",
    ),
    (
        "AAAAAAAAAAAA", "", "006cdec1303f291f81a273016b077c486dac1831",
        "4j/AuRx71kQlxVlzbpsMWChjjAVmBvzczm/I8D14VRncve2Jzb8L8EPMhOZTUJ7/UW7ev7YvOsXSRYkqF0/AIw==",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("plain", "receive_id", "signature", "encrypted"), VECTORS)
def test_crypto_vectors(plain: str, receive_id: str, signature: str, encrypted: str) -> None:
    assert crypto.encrypt(plain.encode(), KEY, receive_id, HEAD) == encrypted
    assert crypto.decrypt(encrypted, KEY) == (plain.encode(), receive_id)
    assert crypto.signature("QDG6eK", "1764374400", "1372623149", encrypted) == signature


@pytest.mark.parametrize("text", ["", "AAAA", "A" * 43 + "=", VECTORS[0][3][:-24]])
def test_what_is_no_cipher_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"blocks|padding|length|short|base64"):
        crypto.decrypt(text, KEY)


def test_reading() -> None:
    assert reading.readable("<think>why\n</think>\nhello") == "hello"
    assert reading.leaves_think_open("<think>why")
    assert reading.leaves_think_open("<think>a</think> b <think>")
    assert not reading.leaves_think_open("`<think>` is a tag")
    assert reading.mentions("<@all> and `<@code>` and <@boss>") == ["all", "boss"]
    assert reading.cut_bytes("你好", 5) == "你"
    assert reading.beyond_app_markdown("# a\n**b** `c`\n> d\n\nx - y") == []
    assert reading.beyond_app_markdown("|a|b|\n|-|-|\n") == ["a table"]
    assert reading.beyond_app_markdown("1. a\n") == ["a list"]


def card(**changes: Any) -> dict[str, Any]:
    return {
        "card_type": "button_interaction", "main_title": {"title": "t"}, "task_id": "t-1",
        "button_list": [{"text": "a", "key": "k"}], **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"card_type": "poem"}, "card_type"),
        ({"task_id": ""}, "task_id"),
        ({"task_id": "x" * 129}, "task_id"),
        ({"task_id": "has space"}, "task_id"),
        ({"button_list": []}, "button_list"),
        ({"button_list": [{"text": "a", "key": "k"}] * 7}, "more than 6"),
        ({"button_list": [{"text": "a", "key": "k" * 1025}]}, "key"),
        ({"button_list": [{"text": "", "key": "k"}]}, "text"),
        ({"jump_list": [{}] * 4}, "more than 3"),
        ({"horizontal_content_list": [{}] * 7}, "more than 6"),
        ({"action_menu": {"action_list": []}}, "1 to 3"),
        ({"select_list": [{"option_list": [{}] * 11}]}, "1 to 10"),
        ({"checkbox": {"option_list": [{}] * 21}}, "1 to 20"),
        ({"card_type": "text_notice"}, "card_action"),
        ({"card_type": "vote_interaction"}, "submit_button"),
    ],
)
def test_cards_that_are_none(changes: dict[str, Any], words: str) -> None:
    config = WeComConfig()
    judge = Judge(config, World(config.clock, "Hearth"))
    with pytest.raises(ApiError, match=words):
        Cards(judge).check(card(**changes), "here")
    assert [violation.rule for violation in judge.all()] == ["card_malformed"]


def test_a_task_id_is_used_once() -> None:
    config = WeComConfig()
    judge = Judge(config, World(config.clock, "Hearth"))
    cards = Cards(judge)
    assert cards.check(card(), "here") == card()
    with pytest.raises(ApiError, match="used before"):
        cards.check(card(), "here")
    assert cards.check(card(), "here", update_of="t-1")
    with pytest.raises(ApiError, match="is not t-1"):
        cards.check(card(task_id="t-2"), "here", update_of="t-1")
    notice = {
        "card_type": "text_notice",
        "main_title": {"title": "t" * 27},
        "card_action": {"type": 1},
    }
    cards.check(notice, "here")
    assert [v.rule for v in judge.all()][-1] == "card_text_cut"


def test_rates() -> None:
    clock = ManualClock()
    limits = Limits(per_chat_per_minute=2, per_chat_per_hour=3)
    rates = Rates(WeComConfig(clock=clock, limits=limits))
    rates.check_chat("a")
    rates.check_chat("a")
    rates.check_chat("b")
    with pytest.raises(ApiError, match="freq"):
        rates.check_chat("a")
    clock.advance(61)
    rates.check_chat("a")
    clock.advance(61)
    with pytest.raises(ApiError, match="freq"):
        rates.check_chat("a")
    free = Rates(WeComConfig(clock=clock, limits=limits, strict=False))
    for _ in range(10):
        free.check_chat("a")
