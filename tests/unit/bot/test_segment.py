"""Terms of a text: the same for what is stored and for what is asked."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.domain.hanzi import SIMPLIFIED
from bot.domain.segment import MAX_TERM_CHARS, fold, han_number, stem, terms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("张三的生日", ["张三", "三的", "的生", "生日", "3"]),
        ("預算　２５００元", ["预算", "2500", "元"]),
        ("TQ-8840 at 192.168.77.1", ["tq", "8840", "at", "192", "168", "77", "1"]),
        ("G7325次", ["g7325", "次"]),
        ("Deliveries were rung; Tom’s bags", ["deliveri", "wer", "rung", "tom", "bag"]),
        ("星期二 禮拜二 周二", ["周二", "2", "周二", "2", "周二", "2"]),
        ("ｆｕｌｌ ＷＩＤＴＨ", ["full", "width"]),
        ("snake_case 🎂 a@b.c", ["snak", "cas", "a", "b", "c"]),
        ("한국어 ひらがな", ["한국", "국어", "ひら", "らが", "がな"]),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("四十五", 45), ("十", 10), ("十二", 12), ("两千", 2000), ("一一六", 116), ("三百零五", 305), ("二〇二六", 2026),
        ("一万两千", 12_000), ("万", 0), ("二十万", 200_000),
    ],
)  # fmt: skip
def test_numbers_in_characters(text: str, value: int) -> None:
    assert han_number(text) == value


@pytest.mark.parametrize(
    "forms",
    [
        ("ring", "rings"), ("settle", "settled", "settles", "settling"), ("delivery", "deliveries"), ("move", "moved", "moving"),
        ("order", "ordered", "ordering", "orders"), ("stop", "stopped", "stopping"), ("pay", "pays", "paying"), ("box", "boxed"),
    ],
)  # fmt: skip
def test_forms_of_a_word_meet(forms: tuple[str, ...]) -> None:
    assert len({stem(form) for form in forms}) == 1


@pytest.mark.parametrize(
    "word", ["is", "bus", "class", "red", "king", "thing", "sing", "b2b", "école", "2500"]
)
def test_what_is_no_ending_stays(word: str) -> None:
    assert stem(word) == word


def test_both_scripts_meet() -> None:
    assert terms("門禁卡補辦") == terms("门禁卡补办")
    assert all(len(chr(char)) == len(chr(plain)) == 1 for char, plain in SIMPLIFIED.items())
    assert not set(SIMPLIFIED.values()) & set(SIMPLIFIED), "no chains"


@given(st.text(max_size=200))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_any_text_gives_terms_that_both_databases_take(text: str) -> None:
    for term in terms(text):
        assert 0 < len(term) <= MAX_TERM_CHARS
        assert not re.search(r"[\s'\"\\:&|!()*<>§]|[\ud800-\udfff]", term)
        assert term == fold(term) or not term.isascii()
        assert not re.search(r"[^a-z0-9\u0080-\U0010ffff]", term)


@given(st.text(alphabet="张三生日预算abc 12一二十，。", max_size=60))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_a_part_of_a_text_is_found_by_its_own_terms(text: str) -> None:
    whole = set(terms(f"前面，{text}，后面"))
    assert set(terms(text)) <= whole
