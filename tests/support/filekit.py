"""Small real files for tests: PDFs written by hand, as printers write them, and Word files by python-docx."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence

from docx import Document
from pypdf import PdfReader, PdfWriter


def pdf(pages: Sequence[str]) -> bytes:
    """A PDF with these texts (Latin letters), one page each; "" is an empty page, as a scan without text is."""
    objects = ["", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in pages:
        lines = "".join(
            f"({line.replace('(', '').replace(')', '')}) Tj T* " for line in text.splitlines()
        )
        stream = f"BT /F1 11 Tf 14 TL 50 780 Td {lines}ET" if text else ""
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents {len(objects)} 0 R >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[0] = "<< /Type /Catalog /Pages 2 0 R >>"
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    return _assembled([one.encode("latin-1") for one in objects])


def _assembled(objects: Sequence[bytes]) -> bytes:
    out = bytearray(b"%PDF-1.4\n")
    places = []
    for n, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (n, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)  # fmt: skip
    return bytes(out)


def bomb_pdf(n_bytes: int) -> bytes:
    """A PDF whose one page unpacks to so many bytes of drawing commands."""
    packed = zlib.compress(b"0 0 m 9 9 l S\n" * (n_bytes // 14), 9)
    head = b"<< /Length %d /Filter /FlateDecode >>\nstream\n" % len(packed)
    return _assembled(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
            head + packed + b"\nendstream",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Resources << >> /Contents 3 0 R >>",
        ]
    )


def locked_pdf(text: str, password: str, *, owner: str = "owner") -> bytes:
    """A PDF that opens with a password only ("" = it opens without, but is locked against changes)."""
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf([text]))))
    writer.encrypt(password, owner, algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def docx(paragraphs: Sequence[str], table: Sequence[Sequence[str]] = ()) -> bytes:
    """A Word file with paragraphs and then a table."""
    document = Document()
    for text in paragraphs:
        document.add_paragraph(text)
    if table:
        grid = document.add_table(rows=len(table), cols=len(table[0]))
        for row, texts in zip(grid.rows, table, strict=True):
            for cell, text in zip(row.cells, texts, strict=True):
                cell.text = text
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def docx_of(document: str) -> bytes:
    """A Word file whose document.xml is this."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(docx([]))) as blank,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in blank.namelist():
            archive.writestr(name, document if name == "word/document.xml" else blank.read(name))
    return out.getvalue()
