"""Which files are read, the pieces they are kept in, and which pieces a question gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.domain.documents import (
    PIECE_CHARS,
    Piece,
    cut_pieces,
    is_document,
    order_of_use,
    ranges,
    scores,
    shown_name,
    source_of,
    speaks_of_document,
)
from bot.domain.types import Attachment


@pytest.mark.parametrize(
    ("kind", "name", "key", "expected"),
    [
        ("file", "report.PDF", "k", True),
        ("file", "合同.docx", "k", True),
        ("file", "main.py", "k", True),
        ("file", "", "k", True),
        ("file", "README", "k", True),
        ("file", "a.pdf", "", False),
        ("file", "a.zip", "k", False),
        ("file", "a.xlsx", "k", False),
        ("file", "setup.pdf.exe", "k", False),
        ("image", "a.pdf", "k", False),
        ("audio", "", "k", False),
        ("other", "a.txt", "k", False),
    ],
)
def test_which_files_are_worth_fetching(kind: str, name: str, key: str, expected: bool) -> None:
    assert is_document(Attachment(kind, name, key)) is expected


def test_a_source_names_an_attachment_without_telling_its_address() -> None:
    one = Attachment("file", "a.txt", '{"url": "https://x/secret"}')
    assert source_of(one) == source_of(Attachment("file", "renamed.txt", one.remote_key))
    assert source_of(one) != source_of(Attachment("file", "a.txt", "other"))
    assert "secret" not in source_of(one)


def test_a_name_cannot_pass_for_markup_and_keeps_its_ending() -> None:
    assert shown_name("a\n[b](x)*`.pdf") == "a b(x).pdf"
    long = shown_name("很" * 100 + "长.docx")
    assert len(long) == 60
    assert long.endswith("…很很很很长.docx")


@given(st.lists(st.text(alphabet="ab 。.\n\u4e00", max_size=3000), max_size=5))
def test_pieces_are_the_text_word_for_word(pages: list[str]) -> None:
    pieces = cut_pieces(pages, numbered=True)
    whole = "\n".join(pages)
    assert [piece.n for piece in pieces] == list(range(len(pieces)))
    for piece in pieces:
        assert whole[piece.start_chars : piece.start_chars + len(piece.text)] == piece.text
        assert 0 < len(piece.text) <= PIECE_CHARS
        assert piece.text in pages[piece.page - 1]
    assert "".join("".join(p.text for p in pieces).split()) == "".join(whole.split())


def test_pieces_end_where_something_ends() -> None:
    text = "\n\n".join(f"Paragraph {n}. " + "It goes on for a while, as texts do. " * 8 for n in range(5))  # fmt: skip
    pieces = cut_pieces([text], numbered=False)
    assert all(piece.text.endswith(("\n\n", "do. ")) for piece in pieces)
    assert {piece.page for piece in pieces} == {0}


PIECES = [
    Piece(0, 0, 1, "Contents of this report: sales, staff, outlook."),
    Piece(1, 50, 2, "Sales in the north rose by four percent."),
    Piece(2, 99, 3, "华东区的负责人是张伟，电话 1390000。"),
    Piece(3, 150, 4, "Staff: nobody left the company this year."),
]


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("How did sales in the north go?", 1),
        ("华东区的负责人是谁？", 2),
        ("Who left the company?", 3),
        ("what is on page 4?", 3),
        ("第3页说了什么", 2),
    ],
)
def test_the_passage_that_bears_on_the_question_is_found(question: str, best: int) -> None:
    score = scores(question, PIECES)
    assert max(range(4), key=score.__getitem__) == best
    assert order_of_use(PIECES, score)[:2] == [0, best]


def test_without_anything_to_go_by_the_head_comes_first() -> None:
    assert order_of_use(PIECES, scores("嗯？", PIECES)) == [0, 1, 2, 3]
    assert order_of_use([], []) == []


@pytest.mark.parametrize(
    ("pages", "said"),
    [([], ""), ([3], "3"), ([4, 3, 3], "3–4"), ([1, 3, 4, 5, 9], "1, 3–5, 9")],
)
def test_page_numbers_as_people_write_them(pages: list[int], said: str) -> None:
    assert ranges(pages) == said


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("总结一下这份文件", True),
        ("第 3 页呢？", True),
        ("what does the attachment say?", True),
        ("summarise it please", True),
        ("今天天气怎么样", False),
        ("my profile picture", False),
    ],
)
def test_whether_a_question_is_about_a_file(question: str, expected: bool) -> None:
    assert speaks_of_document(question) is expected
