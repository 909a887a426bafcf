"""What was said in a group that is listened to: how it is kept, how it is written for the model, who asks for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from bot.domain.catalogue import Language, say
from bot.domain.prompt import kind_of
from bot.domain.types import Attachment, Sender

MAX_HEARD_CHARS = 1000

_ASKS = re.compile(
    r"错过了?(?:什么|啥|哪些)|(?:刚才|刚刚|前面|上面|之前|群里)(?:大家|都|你们|他们)*(?:在)?(?:聊|说|讨论|讲)了?(?:些)?(?:什么|啥)"
    r"|总结(?:一下)?(?:刚才|群里|上面|前面)|爬楼"
    r"|what (?:did|have) i miss|what.?s? (?:i )?missed|catch me up|what (?:was|were|has been) (?:said|discussed|going on)"
    r"|what (?:are|were) (?:they|you all|people) talking about|summari[sz]e (?:the|this) (?:chat|group|discussion)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of a group that was not said to the bot."""

    message_id: str
    sender: Sender
    text: str
    said_at: datetime


def asks_what_was_missed(question: str) -> bool:
    """Whether a question is about what was said in the group meanwhile."""
    return bool(_ASKS.search(question))


def kept_text(language: Language, text: str, attachments: Iterable[Attachment]) -> str:
    """What is kept of a message: its words, bounded, and what came with it by its kind."""
    text = text.strip()
    if len(text) > MAX_HEARD_CHARS:
        text = text[:MAX_HEARD_CHARS] + "…"
    kinds = dict.fromkeys(f"[{say(language, f'attachment.{kind_of(a)}')}]" for a in attachments)
    return " ".join([*([text] if text else []), *kinds])


def listens(entries: Sequence[str], bot_name: str, chat_id: str) -> bool:
    """Whether `[chat] listen` names a group: "<bot name here>:<chat id>", `*` for every group of a bot."""
    return f"{bot_name}:{chat_id}" in entries or f"{bot_name}:*" in entries
