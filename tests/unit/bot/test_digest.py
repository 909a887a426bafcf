"""Parts of a long text, and what of a model's summary is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bot.domain import digest
from bot.domain.documents import Piece, cut_pieces
from bot.domain.records import PastTurn
from bot.domain.types import Outcome, Sender

SOURCE = (
    "The harbour keeper Anna Berg counts the boats every morning. On 12 May there were 41 boats. "
    "The council decided to close the northern quay until the end of June. Repairs cost 18,500 crowns. "
) * 4


def keep(text: str, source: str = SOURCE, **changes: bool) -> str:
    return digest.worth_keeping(text, source, 100, **({"was_cut": False} | changes))


def test_a_good_summary_is_kept_with_its_list() -> None:
    text = "The harbour keeper counts boats.\n- 41 boats on 12 May\n- The northern quay is closed"
    assert keep(text) == text


def test_small_talk_fences_and_labels_go() -> None:
    wrapped = "Sure, here is the summary:\n```\nSummary: The keeper counts 41 boats.\n```"
    assert keep(wrapped) == "The keeper counts 41 boats."


def test_what_is_no_summary_is_not_kept() -> None:
    assert keep("") == ""
    assert keep("  \n ") == ""
    assert keep("I'm sorry, but as an assistant, please provide more context about travel plans.") == ""  # fmt: skip
    assert keep(SOURCE) == "", "as long as the text"
    assert keep("boats and boats and " * 30) == "", "a loop"


def test_one_that_was_cut_ends_with_its_last_sentence() -> None:
    cut = "The keeper counts 41 boats. The council closes the nor"
    assert keep(cut, was_cut=True) == "The keeper counts 41 boats."
    assert keep("The council closes the nor", was_cut=True) == ""
    assert digest.whole_sentences("码头关闭。修理费18") == "码头关闭。"
    assert digest.whole_sentences("It cost 18.5 crowns") == ""


def test_a_summary_in_another_language_is_not_judged_by_its_words() -> None:
    assert keep("港口管理员每天早上清点船只，12日共有41艘船，北码头关闭到六月底。")
    chinese = "港口管理员每天早上清点船只。五月十二日共有四十一艘船。北码头关闭到六月底。" * 6
    assert keep("The keeper counts 41 boats every single morning.", chinese)
    figures = "五月十二日共有41艘船，修理费18,500克朗，还有7只海鸥、3个管理员和25盏灯。" * 6
    assert keep("There are 41 boats and 7 gulls in the harbour today.", figures)
    assert keep("There are boats and gulls in the harbour today, and all is well.", figures) == ""


def test_a_summary_without_the_facts_is_none() -> None:
    many = "".join(f"House {n}: Mr Abel{n} pays {n}00 crowns on {n} May. " for n in range(1, 30))
    assert keep("House after house pays its crowns in May, and each pays them on another day.", many) == ""  # fmt: skip
    assert keep("Houses pay: 100 crowns, 200 crowns, 300 crowns, 400 crowns, 500 crowns and more.", many)  # fmt: skip


def test_headings_of_parts_are_not_taken_over() -> None:
    text = "Part 1:\nThe keeper counts 41 boats.\nPages 3–4:\nThe quay is closed until June, which costs 18,500 crowns."
    assert keep(text) == "The keeper counts 41 boats.\nThe quay is closed until June, which costs 18,500 crowns."  # fmt: skip
    assert digest._HEADING.sub("", "第 2 部分：\n码头") == "\n码头"


def test_an_extract_is_of_the_text_and_short() -> None:
    text = digest.extract(SOURCE, 200, len)
    assert 0 < len(text) <= 200
    for line in text.splitlines():
        assert line.removeprefix("- ") in SOURCE
    assert "18,500" in text or "41 boats" in text
    table = "a\nb\nc\n" * 50
    assert len(digest.extract(table, 20, len)) <= 20
    assert digest.extract(table, 20, len)
    assert digest.extract("", 20, len) == ""


def turn(turn_no: int, question: str, answer: str) -> PastTurn:
    return PastTurn(f"t{turn_no}", turn_no, Sender("ann", "Ann"), f"[Ann] {question}", answer, Outcome.COMPLETE)  # fmt: skip


def test_a_talk_names_its_speakers_and_keeps_its_positions() -> None:
    turns = [turn(3, "When?", "On Monday."), turn(5, "Where?", "In Oslo.")]
    pieces = digest.talk_pieces(turns, "Ember")
    assert digest.joined(pieces) == "Ann: When?\nEmber: On Monday.\nAnn: Where?\nEmber: In Oslo."
    assert [piece.n for piece in pieces] == [0, 1, 2, 3]
    later = digest.talk_pieces(turns[1:], "Ember")
    assert [piece.start_chars for piece in later] == [p.start_chars for p in pieces[2:]]


def test_a_long_message_of_a_talk_is_in_order() -> None:
    pieces = digest.talk_pieces([turn(1, "word " * 900, "Yes."), turn(2, "And?", "No.")], "Ember")
    places = [piece.start_chars for piece in pieces]
    assert places == sorted(set(places))
    assert len(pieces) > 8


@given(st.text(alphabet="ab。\n 字", min_size=1, max_size=3000))
def test_pieces_joined_are_the_text(text: str) -> None:
    pieces = cut_pieces([text], numbered=False)
    shown = digest.joined(pieces)
    assert [*shown.replace("\n", "").replace(" ", "")] == [
        char for char in text if char not in "\n "
    ]


def test_halves_keep_their_places() -> None:
    piece = Piece(4, 100, 2, "abcde")
    first, second = digest.halves(piece)
    assert (first.text, second.text) == ("ab", "cde")
    assert digest.end_of(first) == second.start_chars == 102
    assert digest.end_of(second) == digest.end_of(piece)
    assert digest.joined([first, second]) == "abcde"
