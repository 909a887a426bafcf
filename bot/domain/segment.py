"""Cuts text into the terms by which old messages are found: one function for what is stored and for what is asked. Pure.

Neither database knows Chinese (DESIGN §7), so both are handed finished terms: words, numbers and codes as they are, Chinese
and Japanese as pairs of characters. A term holds ASCII letters and digits or anything beyond ASCII, never a space or a quote,
so that both full-text indexes take it unchanged.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from bot.domain.hanzi import SIMPLIFIED

MAX_TERM_CHARS = 40
_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA_AND_HANGUL = "\u3040-\u30ff\uac00-\ud7af"
_PIECE = re.compile(rf"[{_HAN}{_KANA_AND_HANGUL}]+|[^\W_{_HAN}{_KANA_AND_HANGUL}]+")
WORD = re.compile(rf"[^\W_{_HAN}{_KANA_AND_HANGUL}]+")
_IS_PAIRED = re.compile(rf"[{_HAN}{_KANA_AND_HANGUL}]")
# The same day has three names.
_WEEKDAY = re.compile(r"(?:星期|礼拜)(?=[一二三四五六日天])")
_POSSESSIVE = re.compile(r"(?<=\w)[’']s\b")
_DIGITS = {char: value for value, char in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_UNITS = {"十": 10, "百": 100, "千": 1000, "万": 10_000}
HAN_NUMBER = re.compile(rf"[{''.join(_DIGITS)}{''.join(_UNITS)}]+")


def fold(text: str) -> str:
    """Text in one width, one case and one script, as terms are made of it. Its length may differ."""
    folded = unicodedata.normalize("NFKC", text).lower().translate(SIMPLIFIED)
    return _POSSESSIVE.sub("", _WEEKDAY.sub("周", folded))


def is_paired(term: str) -> bool:
    """Whether a term was cut out of a run of characters, so that it stands in a text wherever it is found in it."""
    return bool(_IS_PAIRED.match(term))


def terms(text: str) -> list[str]:
    """The terms of a text in the order in which they stand, with repetitions."""
    return list(_terms(fold(text)))


def _terms(folded: str) -> Iterator[str]:
    for match in _PIECE.finditer(folded):
        piece = match.group()
        if not _IS_PAIRED.match(piece):
            yield stem(piece[:MAX_TERM_CHARS])
            continue
        if len(piece) == 1:
            yield piece
        yield from (first + second for first, second in itertools.pairwise(piece))
        for number in HAN_NUMBER.finditer(piece):
            value = han_number(number.group())
            if value is not None:
                yield str(value)


def han_number(text: str) -> int | None:
    """The value of a number in Chinese characters (四十五, 一一六, 两千); None for what is none."""
    if not any(char in _UNITS for char in text):
        return int("".join(str(_DIGITS[char]) for char in text)) if len(text) <= 18 else None
    total = section = digit = 0
    for char in text[:18]:
        if char in _DIGITS:
            digit = _DIGITS[char]
        elif char == "万":
            total, section, digit = (total + section + digit) * 10_000, 0, 0
        else:
            section += (digit or 1) * _UNITS[char]
            digit = 0
    return total + section + digit


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """An English word without its usual endings, so that "rings" finds "ring"; anything else as it is."""
    if len(word) < 4 or not (word.isascii() and word.isalpha()):
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending, least in (("ing", 6), ("ed", 5)):
        if (
            word.endswith(ending)
            and len(word) >= least
            and re.search("[aeiouy]", word[: -len(ending)])
        ):
            word = word[: -len(ending)]
            if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    if word.endswith("y") and len(word) > 3 and word[-2] not in "aeiou":
        word = word[:-1] + "i"
    return word[:-1] if word.endswith("e") and len(word) > 3 else word
