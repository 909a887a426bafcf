"""What the platform sees in a piece of Markdown: tables, mentions, images. Pure functions (feishu.md §5.6)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_DELIMITER_ROW = re.compile(r"^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$")
_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_PEOPLE_TAG = re.compile(r"<\s*(at|person)\b([^>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"""(id|ids|user_id|email)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>/]+))""", re.IGNORECASE
)
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^)]*)\)")
_IMAGE_KEY = re.compile(r"^img_[A-Za-z0-9_-]+$")


@dataclass(frozen=True, slots=True)
class PeopleTag:
    """An `<at>` or `<person>` tag with the ids it names."""

    tag: str
    ids: tuple[str, ...]


def split_code(text: str) -> tuple[str, str]:
    """(text without code, the code): fences and inline code. An unclosed fence runs to the end."""
    if "`" not in text and "~~~" not in text:
        return text, ""
    prose: list[str] = []
    code: list[str] = []
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence:
            code.append(line)
            if match and match[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif match:
            fence = match[1]
            code.append(line)
            prose.append("")
        else:
            prose.append(line)
    joined = "\n".join(prose)
    code.extend(match[0] for match in _INLINE_CODE.finditer(joined))
    return _INLINE_CODE.sub("", joined), "\n".join(code)


def count_tables(text: str) -> int:
    """Pipe tables outside code fences."""
    if "|" not in text or "-" not in text:
        return 0
    lines = split_code(text)[0].split("\n")
    return sum(
        1
        for before, line in itertools.pairwise(lines)
        if "|" in line
        and "|" in before
        and _DELIMITER_ROW.match(line)
        and not _DELIMITER_ROW.match(before)
    )


def people_tags(text: str) -> Iterator[PeopleTag]:
    """Every at or person tag in `text` (give it the part without code)."""
    if "<" not in text:
        return
    for match in _PEOPLE_TAG.finditer(text):
        ids: list[str] = []
        for attribute in _ATTRIBUTE.finditer(match[2]):
            value = attribute[2] or attribute[3] or attribute[4] or ""
            ids.extend(part.strip() for part in value.split(",") if part.strip())
        yield PeopleTag(match[1].lower(), tuple(ids))


def bad_image(text: str) -> str | None:
    """The first image whose source is not an image key (→ 200570)."""
    if "![" not in text:
        return None
    for match in _IMAGE.finditer(split_code(text)[0]):
        if not is_image_key(match[1]):
            return match[1]
    return None


def is_image_key(key: str) -> bool:
    """img_… as the upload API gives it."""
    return bool(_IMAGE_KEY.match(key.strip()))
