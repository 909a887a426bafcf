"""The child that reads one untrusted file: bytes on stdin, one JSON object on stdout. Run as a script, never imported by Hearth.

It imports nothing of Hearth, limits its own memory and processor time first, and stops by itself with what it has read when
its time is up. `{"state", "kind", "n_pages", "pages": [text, …], "is_cut"}`; `pages` of a file without pages is one text.
"""

from __future__ import annotations

import io
import json
import re
import resource
import sys
import time
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

MAX_CHARS = 1_000_000
MAX_PAGES = 3000
SOFT_S = 15.0
CPU_S = 25
MEMORY_BYTES = 768 * 2**20
MAX_UNZIPPED_BYTES = 128 * 2**20
# Of a Word file: what stands for a sign, and what is no text on the page (an alternative to a drawing repeats its words).
_SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_NOT_SHOWN = {"pPr", "rPr", "tblPr", "trPr", "tcPr", "sdtPr", "sectPr", "del", "moveFrom", "Fallback", "instrText"}  # fmt: skip
# More control characters than one in so many, and it is no text.
_TEXT_PER_CONTROL = 200
# Non-ASCII characters per bad byte of a text that is damaged, and bytes of such characters that tell no encoding.
_WIDE_PER_BAD = 20
_FEW_BYTES = 12

_BOMS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
# What people in a Chinese company send that is not UTF-8, then what others do; anything else is looked for after these.
_LEGACY = (["gb18030", "big5"], ["cp1252", "shift_jis", "euc_kr", "cp1251"])
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n[ \t\u3000]*(?:\n[ \t\u3000]*)+")

Result = dict[str, Any]


def limit_self() -> None:
    """What a hostile file may cost: the kernel ends whoever takes more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read(data: bytes) -> Result:
    """The text of a file, told by what is in it, not by its name."""
    # Something may stand before a PDF's first line; a text that only speaks of one has no objects.
    if data.startswith(b"%PDF-") or (b"%PDF-" in data[:1024] and b" obj" in data):
        return _pdf(data)
    if data.startswith(b"PK\x03\x04"):
        return _zip(data)
    if data.startswith(_OLE):
        locked = "EncryptedPackage".encode("utf-16-le") in data
        return _failed("encrypted" if locked else "unsupported", "docx" if locked else "")
    text = _decode(data)
    return _failed("unsupported", "") if text is None else _done("text", [text], 0)


def _failed(state: str, kind: str) -> Result:
    return {"state": state, "kind": kind, "n_pages": 0, "pages": [], "is_cut": False}


def _done(kind: str, pages: list[str], n_pages: int, *, is_cut: bool = False) -> Result:
    kept, n_chars = [], 0
    for page in pages:
        text = _tidy(page)
        if n_chars + len(text) > MAX_CHARS:
            kept.append(text[: MAX_CHARS - n_chars])
            is_cut = True
            break
        kept.append(text)
        n_chars += len(text)
    state = "read" if any(kept) else "no_text"
    return {"state": state, "kind": kind, "n_pages": n_pages, "pages": kept, "is_cut": is_cut}


def _tidy(text: str) -> str:
    """One kind of line end, no control characters, no heaps of blank lines, nothing that UTF-8 cannot hold."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace("\xa0", " ")
    text = _SURROGATE.sub("\ufffd", _CONTROL.sub("", text))
    return _BLANK_LINES.sub("\n\n", text).strip("\n").rstrip()


# -- PDF -----------------------------------------------------------------------------------------------------------------
def _pdf(data: bytes) -> Result:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(io.BytesIO(data), strict=False)
        # Many files are locked against changes only and open with an empty password.
        if reader.is_encrypted and not reader.decrypt(""):
            return _failed("encrypted", "pdf")
        n_pages = len(reader.pages)
        pages, is_cut = _pages(reader, n_pages)
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, OSError):
        return _failed("unreadable", "pdf")
    return _done("pdf", pages, n_pages, is_cut=is_cut)


def _pages(reader: Any, n_pages: int) -> tuple[list[str], bool]:
    """The text of each page until time, pages or characters are used up; a page that cannot be read is empty."""
    end = time.monotonic() + SOFT_S
    pages: list[str] = []
    n_chars = n_failed = 0
    for n in range(n_pages):
        if n >= MAX_PAGES or n_chars > MAX_CHARS or time.monotonic() > end:
            return pages, True
        try:
            text = reader.pages[n].extract_text() or ""
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  pypdf meets broken pages with errors of every kind
            n_failed += 1
            text = ""
        pages.append(text)
        n_chars += len(text)
    if n_failed and n_failed == n_pages:
        raise ValueError("no page can be read")
    return pages, False


# -- DOCX ----------------------------------------------------------------------------------------------------------------
def _zip(data: bytes) -> Result:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return _failed("unreadable", "")
    if not any(entry.filename == "word/document.xml" for entry in entries):
        return _failed("unsupported", "")
    if sum(entry.file_size for entry in entries) > MAX_UNZIPPED_BYTES:
        return _failed("unreadable", "docx")
    return _docx(data)


def _docx(data: bytes) -> Result:
    from docx import Document

    end = time.monotonic() + SOFT_S
    lines: list[str] = []
    n_chars, is_cut = 0, False
    try:
        for line in _blocks(Document(io.BytesIO(data)).element.body):
            lines.append(line)
            n_chars += len(line)
            if n_chars > MAX_CHARS or time.monotonic() > end:
                is_cut = True
                break
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  python-docx lets the errors of zip, XML and its own parts through
        return _failed("unreadable", "docx")
    return _done("docx", ["\n".join(lines)], 0, is_cut=is_cut)


# python-docx's own texts leave out what was inserted under "track changes", content controls and tables in tables, which
# forms and contracts are full of: so the elements are read themselves.
def _blocks(container: Any) -> Iterator[str]:
    """Paragraphs, and tables row by row, in the order in which they stand, whatever they are wrapped in."""
    for element in container.iterchildren("{*}*"):
        name = _name(element)
        if name == "p":
            yield _words(element)
        elif name == "tbl":
            yield from _rows(element)
        elif name not in _NOT_SHOWN:
            yield from _blocks(element)


def _rows(table: Any) -> Iterator[str]:
    above: dict[int, str] = {}
    for row in _within(table, "tr"):
        cells, column = [], 0
        for cell in _within(row, "tc"):
            merge, span = _property(cell, "vMerge"), _property(cell, "gridSpan")
            text = " ".join(" ".join(_blocks(cell)).split())
            # A cell that goes on from the row above has no words of its own.
            if merge is not None and merge != "restart":
                text = above.get(column, "")
            above[column] = text
            cells.append(text)
            column += int(span) if span and span.isdecimal() else 1
        yield " | ".join(cells)


def _within(element: Any, name: str) -> Iterator[Any]:
    """The elements of a name, also those that a content control or a tracked change wraps; none out of a table within."""
    for child in element.iterchildren("{*}*"):
        found = _name(child)
        if found == name:
            yield child
        elif found not in _NOT_SHOWN and found not in {"tbl", "tc", "p"}:
            yield from _within(child, name)


def _words(element: Any) -> str:
    """What a paragraph shows; a text box in it stands on lines of its own."""
    out: list[str] = []
    for child in element.iterchildren("{*}*"):
        name = _name(child)
        if name == "t":
            out.append(child.text or "")
        elif name == "txbxContent":
            out += ["\n", *(f"{line}\n" for line in _blocks(child))]
        elif name in _SIGNS:
            out.append(_SIGNS[name])
        elif name not in _NOT_SHOWN:
            out.append(_words(child))
    return "".join(out)


def _property(cell: Any, name: str) -> str | None:
    """The value of a cell's property; "" where it has none, None where the cell has not that property."""
    for found in cell.iterfind(f"{{*}}tcPr/{{*}}{name}"):
        return next((str(v) for key, v in found.attrib.items() if key.endswith("}val")), "")
    return None


def _name(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


# -- text ----------------------------------------------------------------------------------------------------------------
def _decode(data: bytes) -> str | None:
    """Text in whatever encoding; None for what is no text."""
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            return _if_text(data.decode(encoding, "replace"))
    if b"\0" in data[:65_536]:
        return _wide(data)
    try:
        return _if_text(data.decode("utf-8"))
    except UnicodeDecodeError:
        damaged = _mostly(data, "utf-8")
        return _if_text(damaged) if damaged else _legacy(data)


def _mostly(data: bytes, encoding: str) -> str:
    """Text with a few bad bytes in it or cut in mid-character; "" where these are no exception."""
    text = data.decode(encoding, "replace").rstrip("\ufffd")
    sample = text[:262_144]
    n_bad = 1 + sample.count("\ufffd")
    n_wide = sum(char > "\x7f" for char in sample) - n_bad
    return text if n_wide > _WIDE_PER_BAD * n_bad else ""


def _is_common_chinese(text: str) -> bool:
    """Whether the characters that are not ASCII are those that everybody uses: GB 2312 punctuation and its first level."""
    wide = [char for char in text[:262_144] if char > "\x7f"]
    codes = [char.encode("gb2312", "replace")[0] for char in wide if char != "\ufffd"]
    n_common = sum(0xA1 <= code <= 0xA3 or 0xB0 <= code <= 0xD7 for code in codes)
    return n_common >= 0.9 * len(codes) > 0


def _wide(data: bytes) -> str | None:
    """UTF-16 without a mark, as Windows programs write it."""
    head = data[:65_536]
    even, odd = head[::2].count(0), head[1::2].count(0)
    if max(even, odd) < len(head) // 10 or min(even, odd) > len(head) // 100:
        return None
    return _if_text(data.decode("utf-16-le" if odd > even else "utf-16-be", "replace"))


def _legacy(data: bytes) -> str | None:
    from charset_normalizer import from_bytes

    # Too few characters for statistics.
    if sum(byte > 0x7F for byte in data[:65_536]) < _FEW_BYTES:
        text = data.decode("gb18030", "replace")
        if "\ufffd" not in text and _is_common_chinese(text):
            return _if_text(text)
    for encodings in _LEGACY:
        if best := from_bytes(data, cp_isolation=encodings).best():
            return _if_text(str(best))
        if _is_common_chinese(damaged := _mostly(data, "gb18030")):
            return _if_text(damaged)
    best = from_bytes(data).best()
    return None if best is None else _if_text(str(best))


def _if_text(text: str) -> str | None:
    sample = text[:262_144]
    n_odd = len(_CONTROL.findall(sample)) + sample.count("\ufffd")
    return None if n_odd * _TEXT_PER_CONTROL > len(sample) else text


def main() -> None:
    """Read stdin, write the result."""
    limit_self()
    warnings.simplefilter("ignore")
    try:
        result = read(sys.stdin.buffer.read())
    except (MemoryError, RecursionError):
        result = _failed("unreadable", "")
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
