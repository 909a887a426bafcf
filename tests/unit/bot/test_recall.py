"""Ranking of old messages, and a sample of the recall cases as `make prove ARGS=recall` asks them all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.domain.recall import (
    MAX_TERMS,
    WINDOW_CHARS,
    Quote,
    _passages,
    choose,
    find_terms,
    parse,
    rank,
)
from bot.domain.records import Found, Hit
from bot.domain.segment import fold, terms
from tests.support.recallkit import (
    CASES,
    LAYOUTS,
    MemoryIndex,
    Message,
    ask,
    plant,
    read_lines,
    shares,
)


def ranked(question: str, *said: str | Message) -> list[Quote]:
    history = [one if isinstance(one, Message) else Message("Ann", one) for one in said]
    query = parse(question)
    return rank(query, MemoryIndex(history).search(query.terms))


def best(question: str, *said: str | Message) -> str:
    return ranked(question, *said)[0].text


def test_rare_terms_count_more_than_common_ones() -> None:
    said = [f"The meeting about item {n} is in room {n}." for n in range(20)]
    assert (
        best("which room for the Orvane meeting", *said, "Orvane sits in room 4.")
        == "Orvane sits in room 4."
    )


@pytest.mark.parametrize(
    ("question", "earlier", "later"),
    [
        ("What is the door code?", "The door code is 4417.", "The door code is 9920."),
        ("门禁密码是多少？", "门禁密码是四四一七。", "门禁密码是九九二零。"),
        ("What is the door code?", "Somebody said the door code is 4417, I think so.", "New door code: 9920."),
    ],
)  # fmt: skip
def test_what_was_said_later_overrides(question: str, earlier: str, later: str) -> None:
    assert best(question, earlier, "Lunch?", later) == later


def test_a_later_question_overrides_nothing() -> None:
    assert best(
        "What is the door code?", "The door code is 4417.", "What is the door code?"
    ).endswith("4417.")


def test_what_the_bot_said_does_not_override_a_person() -> None:
    own = Message("", "The door code is 9920.", is_answer=True)
    assert best("What is the door code?", "The door code is 4417.", own).endswith("4417.")


def test_who_asks_for_a_number_gets_one() -> None:
    said = ("The archive key is with reception.", "The archive key costs 35 euros.")
    assert best("How much is an archive key?", *said[::-1]) == said[1]


def test_a_person_s_name_is_a_term() -> None:
    said = [Message("Priya", "I like the blue one."), Message("Omar", "I like the red one.")]
    assert best("Which one did Priya like?", *said) == "I like the blue one."


def test_of_a_long_message_the_sentences_around_the_hit_are_quoted() -> None:
    long = "We walked along the river and it rained. " * 30
    quote = ranked("Where is the archive key?", f"{long}The archive key hangs in the hall. {long}")[
        0
    ]
    assert "archive key hangs in the hall." in quote.text
    assert len(quote.text) <= 2 * WINDOW_CHARS


@given(st.text(alphabet="ab 甲乙。.!？\n", max_size=1500))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_passages_are_the_whole_message_word_for_word(text: str) -> None:
    passages = _passages(text)
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(passage in text for passage in passages)
    assert all(len(passage) <= 2 * WINDOW_CHARS for passage in passages)


@pytest.mark.parametrize(
    "text", ["", "?", "ok", "Thanks!", "好的，谢谢", "收到", "😂", "什么？", "How is it?"]
)
def test_courtesies_look_for_nothing(text: str) -> None:
    assert parse(text).terms == ()


def test_a_very_long_question_is_looked_for_by_its_ends() -> None:
    query = parse("orvane " + " ".join(f"word{n}" for n in range(5000)) + " willow")
    assert len(query.terms) == MAX_TERMS
    assert (query.terms[0], query.terms[-1]) == ("orvan", "willow")


def test_quotes_are_few_different_and_above_the_threshold() -> None:
    query = parse("Where is the key?")
    said = [
        "key in the hall",
        "Key in the hall!",
        "where is the key",
        "key in the shed",
        "a key",
        "keys everywhere",
        "no",
    ]
    quotes = [Quote(n, False, "Ann", text, 1 - n / 10) for n, text in enumerate(said)]
    chosen = choose(query, quotes, min_score=0.45, max_quotes=4)
    assert [quote.text for quote in chosen] == [
        "key in the hall",
        "key in the shed",
        "a key",
        "keys everywhere",
    ]
    assert len(choose(query, quotes, min_score=0, max_quotes=2)) == 2
    unasked = parse("The key and the hall and the shed.")
    assert len(choose(unasked, quotes, min_score=0.3, max_quotes=4)) < 3, (
        "who asks for nothing needs a better reason"
    )


def test_a_question_is_quoted_with_the_answer_it_got() -> None:
    asked = Hit(5, False, "Ann", "How many litres does the boiler hold?", None, "It holds 180.")
    told = Hit(7, False, "Ann", "The boiler hold is noisy.", None, "I see.")
    query = parse("Litres that the boiler holds?")
    quotes = {q.turn_no: q for q in rank(query, Found((asked, told), {}, 9))}
    assert (quotes[5].text, quotes[5].reply) == (asked.text, "It holds 180.")
    assert quotes[7].reply == ""
    same = parse("How many litres does the boiler hold?")
    chosen = choose(same, rank(same, Found((asked,), {}, 9)), min_score=0.1, max_quotes=4)
    assert [quote.reply for quote in chosen] == ["It holds 180."]


def test_nothing_found_is_nothing_ranked() -> None:
    assert rank(parse("Where is the key?"), Found((), {}, 0)) == []
    assert rank(parse(""), Found((Hit(1, False, "Ann", "key"),), {}, 1)) == []


@given(
    st.text(alphabet="张三一二十生日abs 12，ing.éß", max_size=80),
    st.text(alphabet="张三一二十生日abs 12ing", max_size=20),
)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_looking_terms_up_is_the_same_as_segmenting(text: str, asked: str) -> None:
    wanted = list(dict.fromkeys(terms(asked)))
    paired = {term for term in wanted if len(term) > 1 or term.isascii()}
    found = {term for term in find_terms(fold(text), wanted) if term in paired}
    assert found == paired & set(terms(text))


@pytest.mark.skipif(not CASES.exists(), reason=f"the recall cases are not here: {CASES}")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sample_of_the_cases(layout) -> None:
    cases = read_lines("recall.jsonl")
    index = MemoryIndex(plant(cases, read_lines("filler.jsonl"), 7, layout))
    easy = [case for case in cases if not case.get("hard")]
    quoted, first = shares(ask(easy, index, min_score=0.1))
    assert quoted >= 0.95
    assert first >= 0.90
