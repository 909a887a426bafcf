"""How an AI bot's answer is written and cut (wecom.md §2.3, §2.8): Markdown, counted in bytes. Pure.

Owns our own sentences that are put into bubbles, and what makes a model's text unable to mention anybody or to open a
thinking block. The self-built app's plain text is in `apptext.py`.
"""

from __future__ import annotations

import re

from bot.domain.cutting import best_cut, carry, furthest, last_pause
from bot.domain.markdown import Dialect, escape, render

# Shown as three moving dots (§2.8).
PLACEHOLDER = "<think></think>"
STREAM_BYTES = 20_480
# Sentences of ours that belong to no language setting: a bubble must say something when it ends without its answer.
CONTINUED = "（下文见后一条消息 / continued in the next message）"
SEE_BELOW = "（见下一条消息 / see the next message）"
UNANSWERED = "（没有回答 / no answer）"
THE_END = "（完 / the end）"
TOO_LONG = "（内容过长，以下省略 / too long, the rest is left out）"
_TAG = re.compile(r"<(?=\s*+(?:@|(?:/\s*+)?think\b))", re.IGNORECASE)
_INVISIBLE = " \t\n\u00a0\u200b\u200c\u200d\u2060\u3000\ufeff"
_RESERVED_BYTES = 640  # for a mark in front and a sentence behind
_SENTENCE_BYTES = 400
_WORST_BYTES_PER_CHAR = 6
# Of a message's bytes, how many characters a repeated head of a table may have: a quarter of the room at worst.
_HEAD_SHARE = 24


def size_bytes(text: str) -> int:
    """Bytes as WeCom counts them."""
    return len(text.encode("utf-8", "replace"))


def clip(text: str, limit_bytes: int) -> str:
    """The text, cut to a number of bytes between two characters."""
    raw = text.encode("utf-8", "replace")
    return raw[:limit_bytes].decode("utf-8", "ignore") if len(raw) > limit_bytes else text


def seen(text: str) -> str:
    """The text, "" when all of it is invisible: no bubble may be empty."""
    return text if text.strip(_INVISIBLE) else ""


def shield(text: str) -> str:
    """Nothing in it is a mention (`<@id>`) or a thinking block, whether in prose or in code."""
    return _TAG.sub("<\u200b", text)


def sentence(text: str) -> str:
    """A sentence of our own."""
    return clip(shield(escape(text, Dialect.WECOM)), _SENTENCE_BYTES)


def body(text: str, start: int, end: int, limit_bytes: int = STREAM_BYTES) -> str:
    """text[start:end] as it is shown; what an earlier message left open is opened again, and every fence is closed.

    `limit_bytes` is what the message takes: a table's head that would fill much of it is not repeated.
    """
    if end <= start:
        return ""
    chunk = carry(text, start, limit_bytes // _HEAD_SHARE) + text[start:end]
    shown = render(chunk, final=True, table_limit=len(chunk), dialect=Dialect.WECOM)
    return seen(shield(shown).rstrip())


def fits(text: str, start: int, end: int, limit_bytes: int = STREAM_BYTES) -> bool:
    """Whether a slice can be shown in one message, with a mark and a sentence of ours beside it."""
    room = limit_bytes - min(_RESERVED_BYTES, limit_bytes // 4)
    if (end - start) * _WORST_BYTES_PER_CHAR < room / 2:
        return True
    return size_bytes(body(text, start, end, limit_bytes)) <= room


def cut(text: str, start: int, limit_bytes: int = STREAM_BYTES) -> int | None:
    """Where a message that begins at `start` must end; None when all that is left fits."""
    if start >= len(text) or fits(text, start, len(text), limit_bytes):
        return None
    end = furthest(start, len(text), lambda at: fits(text, start, at, limit_bytes))
    return best_cut(text, start, end)


def pause_cut(text: str, start: int) -> int:
    """Where a growing text is best interrupted: behind its last whole line, if there is one, else behind a word."""
    newline = text.rfind("\n", start)
    return newline + 1 if newline > start else last_pause(text, start)


def goes_on(text: str, shown: str) -> bool:
    """Whether a text is one that was shown, or begins with it; a finished one has lost the space at its end."""
    return text.startswith(shown) or text == shown.rstrip()


def joined(*pieces: str) -> str:
    """Pieces of one bubble as paragraphs; the empty ones left out."""
    return "\n\n".join(piece for piece in pieces if piece.strip())
