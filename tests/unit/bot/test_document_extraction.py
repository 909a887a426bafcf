"""Files become text in a child with limits: real small files of each kind, every encoding people use, and hostile ones."""

from __future__ import annotations

import asyncio
import io
import os
import zipfile

import pytest

from bot.documents import child, extract
from bot.domain.documents import DocumentState
from tests.support import filekit

ZH = "第三季度销售报告：华东区完成一千二百万元，同比增长百分之十五。负责人张伟，下次会议定于周五下午三点。"
TW = "第三季度銷售報告：華東區完成一千二百萬元，同比增長百分之十五。負責人張偉，下次會議定於週五下午三點。"


async def test_the_pages_of_a_pdf_keep_their_numbers() -> None:
    found = await extract(filekit.pdf(["Alpha report\nsecond line", "", "Gamma closes"]))
    assert (found.state, found.n_pages, found.is_cut) == (DocumentState.READ, 3, False)
    assert found.pages == ("Alpha report\nsecond line", "", "Gamma closes")


async def test_a_word_file_gives_paragraphs_and_tables_in_order() -> None:
    data = filekit.docx(["Budget 2026", "预算如下："], [["item", "cost"], ["服务器", "12000"]])
    found = await extract(data)
    assert (found.state, found.n_pages) == (DocumentState.READ, 0)
    assert found.pages == ("Budget 2026\n预算如下：\nitem | cost\n服务器 | 12000",)


W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
MC = "http://schemas.openxmlformats.org/markup-compatibility/2006"
BODY = """
<w:sdt><w:sdtPr><w:alias/></w:sdtPr><w:sdtContent><w:p><w:r><w:t>in a form field</w:t></w:r></w:p></w:sdtContent></w:sdt>
<w:p><w:ins><w:r><w:t>put in</w:t></w:r></w:ins><w:del><w:r><w:delText>struck</w:delText></w:r></w:del>
<w:moveFrom><w:r><w:t>moved away</w:t></w:r></w:moveFrom><w:r><w:tab/><w:t>kept</w:t></w:r></w:p>
<w:p><w:r><mc:AlternateContent><mc:Choice><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p></w:txbxContent></mc:Choice>
<mc:Fallback><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p></w:txbxContent></mc:Fallback></mc:AlternateContent></w:r></w:p>
<w:tbl><w:tr><w:tc><w:tcPr><w:vMerge w:val="restart"/></w:tcPr><w:p><w:r><w:t>Q1</w:t></w:r></w:p></w:tc>
<w:tc><w:tbl><w:tr><w:tc><w:p><w:r><w:t>inner</w:t></w:r></w:p></w:tc></w:tr></w:tbl><w:p/></w:tc></w:tr>
<w:tr><w:tc><w:tcPr><w:vMerge/></w:tcPr><w:p/></w:tc><w:sdt><w:sdtContent><w:tc><w:p><w:r><w:t>7</w:t></w:r></w:p></w:tc>
</w:sdtContent></w:sdt></w:tr></w:tbl>
"""


async def test_a_word_file_gives_all_that_its_page_shows() -> None:
    document = f'<w:document xmlns:w="{W}" xmlns:mc="{MC}"><w:body>{BODY}</w:body></w:document>'
    found = await extract(filekit.docx_of(document))
    assert found.pages == ("in a form field\nput in\tkept\n\nbox\n\nQ1 | inner\nQ1 | 7",)


def test_of_a_word_file_without_end_the_beginning_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = filekit.docx(["abcd", "efgh", "ijkl"])
    monkeypatch.setattr(child, "MAX_CHARS", 5)
    assert child.read(data)["pages"] == ["abcd\n"]
    monkeypatch.undo()
    monkeypatch.setattr(child, "SOFT_S", -1.0)
    found = child.read(data)
    assert (found["state"], found["pages"], found["is_cut"]) == ("read", ["abcd"], True)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (ZH, "utf-8"),
        (ZH, "utf-8-sig"),
        (ZH, "gb18030"),
        ("会议在周五", "gb18030"),
        (ZH, "utf-16"),
        ("name,cost\r\nserver,12\r\n" * 9, "utf-16-le"),
        (TW, "big5"),
        ("會議在週五", "big5"),
        ("Le café est fermé à midi, déjà réservé.", "cp1252"),
    ],
)
async def test_text_is_read_in_the_encoding_it_was_written_in(text: str, encoding: str) -> None:
    found = await extract(text.encode(encoding))
    assert found.state is DocumentState.READ
    assert found.pages == (text.replace("\r\n", "\n").strip(),)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (ZH.encode() * 9 + b"\xff" + ZH.encode(), ZH * 9 + "\ufffd" + ZH),
        (ZH.encode()[:-1], ZH[:-1]),
        (b"A PDF begins with %PDF-1.4.", "A PDF begins with %PDF-1.4."),
        (ZH.encode("gb18030") * 9 + b"\xff\n" + ZH.encode("gb18030"), ZH * 9 + "\ufffd\n" + ZH),
    ],
)
async def test_what_looks_odd_and_is_text_is_read(data: bytes, text: str) -> None:
    found = await extract(data)
    assert found.pages == (text,)


@pytest.mark.parametrize(
    "text", ["测试", "订单号：A1", "价格 100 元", "x = 1  # 注释\n" + "pass\n" * 40]
)
async def test_a_few_characters_are_read_as_what_people_here_write(text: str) -> None:
    found = await extract(text.encode("gbk"))
    assert found.pages == (text.rstrip(),)


async def test_what_opens_without_a_password_is_read_and_what_does_not_is_named() -> None:
    found = await asyncio.gather(
        extract(filekit.locked_pdf("Open words", "")),
        extract(filekit.locked_pdf("Secret words", "hunter2")),
        extract(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le")),
    )
    assert [one.state.value for one in found] == ["read", "encrypted", "encrypted"]
    assert found[0].pages == ("Open words",)


def _zip(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (b"", "no_text"),
        (b" \n\n \t", "no_text"),
        (filekit.pdf(["", ""]), "no_text"),
        (filekit.docx([]), "no_text"),
        (b"%PDF-1.4 and nothing that follows", "unreadable"),
        (filekit.pdf(["cut off here"])[:200], "unreadable"),
        (b"PK\x03\x04 broken", "unreadable"),
        (_zip("word/document.xml", b"<not xml"), "unreadable"),
        (_zip("a.txt", b"in a zip"), "unsupported"),
        (bytes(range(256)) * 50, "unsupported"),
        (os.urandom(4096), "unsupported"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00" + os.urandom(500), "unsupported"),
    ],
)
async def test_what_holds_no_text_is_told_apart(data: bytes, state: str) -> None:
    found = await extract(data)
    assert (found.state.value, found.pages if state != "no_text" else ()) == (state, ())


async def test_hostile_files_cost_a_bounded_child_and_no_more() -> None:
    bombs = [
        _zip("word/document.xml", b"<w>" + b" " * 140_000_000),
        filekit.bomb_pdf(90_000_000),
        _zip("word/document.xml", _billion_laughs()),
    ]
    found = await asyncio.gather(*(extract(bomb) for bomb in bombs))
    assert {one.state for one in found} <= {DocumentState.UNREADABLE, DocumentState.NO_TEXT}
    assert all(sum(map(len, one.pages)) == 0 for one in found)


def _billion_laughs() -> bytes:
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    return f'<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a0 "ha">{entities}]><d>&a9;</d>'.encode()


async def test_a_child_that_takes_too_long_is_ended() -> None:
    found = await extract(filekit.pdf(["slow"]), timeout_s=0.001)
    assert (found.state, found.pages) == (DocumentState.UNREADABLE, ())


async def test_of_a_very_long_text_the_beginning_is_read() -> None:
    found = await extract(("line of text\n" * 100_000).encode())
    assert found.is_cut
    assert sum(map(len, found.pages)) == 1_000_000


async def test_control_characters_and_heaps_of_blank_lines_go() -> None:
    found = await extract(b"one\r\n\r\n\r\n\r\ntwo\x07\ttabbed\rthree" + b" plain words" * 40)
    assert found.pages[0].startswith("one\n\ntwo\ttabbed\nthree plain")
