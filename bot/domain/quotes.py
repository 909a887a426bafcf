"""What a message refers to: bounded on the way in, written for the model as lines that cannot pass for the question. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bot.domain.catalogue import Language, say
from bot.domain.documents import shown_name
from bot.domain.prompt import kind_of
from bot.domain.types import Attachment, Quoted

MAX_QUOTE_CHARS = 2000
# Of messages that were merged into one question: more are left out, the oldest first.
MAX_QUOTES = 4
_MAX_FILES = 8


def quoted(
    message_id: str,
    text: str,
    attachments: Sequence[Attachment] = (),
    *,
    is_topic_root: bool = False,
) -> Quoted | None:
    """A Quoted of bounded size; None where there is nothing to refer to. Its files know the message that brought them."""
    text = text.strip()
    if len(text) > MAX_QUOTE_CHARS:
        text = text[:MAX_QUOTE_CHARS] + "…"
    files = tuple(replace(a, message_id=message_id) for a in attachments[:_MAX_FILES])
    if not (message_id or text or files):
        return None
    return Quoted(message_id, text, files, is_topic_root)


def is_told(quote: Quoted) -> bool:
    """Whether anything is known of it but its id."""
    return bool(quote.text or quote.attachments)


def quote_text(language: Language, quotes: Sequence[Quoted]) -> str:
    """What stands before the question in its prompt: a heading and the words as Markdown quotes, files by their names.

    "" for no quotes. One that nobody could look up is said to be unreadable, so that the model does not guess.
    """
    blocks = [_block(language, quote) for quote in quotes[-MAX_QUOTES:]]
    return "\n".join(blocks)


def _block(language: Language, quote: Quoted) -> str:
    if not is_told(quote):
        return say(language, "prompt.quote_unknown")
    lines = [say(language, "prompt.quote")]
    lines += [f"> {line}" for line in quote.text.splitlines()]
    lines += [f"> [{_label(language, a)}]" for a in quote.attachments]
    return "\n".join(lines)


def _label(language: Language, attachment: Attachment) -> str:
    kind, name = say(language, f"attachment.{kind_of(attachment)}"), shown_name(attachment.name)
    return f"{kind} {name}" if name else kind
