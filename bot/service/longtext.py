"""Pasted text that is longer than the window has room for: kept in pieces like a file, of which a question is shown the best.

What stands in the prompt for the message are its first and last lines, since there people ask about what they paste.
"""

from __future__ import annotations

import asyncio
import hashlib

from bot.domain.catalogue import Language, say
from bot.domain.documents import Document, DocumentState, cut_pieces
from bot.domain.types import Turn
from bot.service.context import Context

# A shorter message is never taken for a text and a question about it.
PASTE_CHARS = 1000
EDGE_CHARS = 300


def source_of_paste(text: str) -> str:
    """Names a pasted text for good: the same one pasted again is the same."""
    return hashlib.sha256(f"paste\0{text}".encode(errors="replace")).hexdigest()[:32]


def edges(language: Language, text: str) -> str:
    """What the prompt shows of a long message itself: its first and its last line, and that the rest is elsewhere."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first, last = lines[0], lines[-1]
    shown = [first[:EDGE_CHARS] + ("…" if len(first) > EDGE_CHARS else "")]
    shown.append(say(language, "prompt.pasted"))
    if len(lines) > 1 or len(first) > EDGE_CHARS:
        shown.append(("…" if len(last) > EDGE_CHARS else "") + last[-EDGE_CHARS:])
    return "\n".join(shown)


async def keep_paste(context: Context, turn: Turn, text: str) -> Document:
    """Keep a pasted text with its conversation. Raises StoreError."""
    pieces = await asyncio.to_thread(cut_pieces, [text], numbered=False)
    document = Document(
        source_of_paste(text),
        say(context.settings.language, "document.pasted"),
        DocumentState.READ,
        turn.turn_no,
        n_chars=len(text),
        n_pieces=len(pieces),
    )
    return await context.store.save_document(turn, document, pieces)
