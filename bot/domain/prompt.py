"""What the model is shown: texts of the system message and of a user's turn, and the arithmetic of the token budget.

Pure: counting and rendering happen in `bot.service.prompting`. Nothing that changes from turn to turn (time, queue, memory
figures) goes into the system message, so that the prefix of every prompt stays the same (cases D17).
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bot.domain.catalogue import Language, say
from bot.domain.records import Canonical, PastTurn
from bot.domain.types import Attachment, Outcome, Sender

NAME_MAX_CHARS = 32


class CannotFit(Exception):
    """Not even the system message, a scrap of the question and a short reply fit into the window."""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """A prompt that fits: `n_prompt_tokens + max_new_tokens ≤ n_ctx`, always.

    `first_turn_no` is the oldest turn in it (the new turn's own number when no past turn is). `boundaries` are the
    offsets of its messages. `tokens` is empty for backends without ids (`exact` is False).
    """

    tokens: tuple[int, ...]
    n_prompt_tokens: int
    max_new_tokens: int
    first_turn_no: int
    boundaries: tuple[int, ...]
    n_shared_prefix: int
    thinking_open: bool = False
    exact: bool = True


def reserve_tokens(max_new_tokens: int, n_ctx_tokens: int) -> int:
    """Room that is always kept for the reply."""
    return max(1, min(max_new_tokens, n_ctx_tokens // 4))


def system_text(language: Language, prompt: str, bot_name: str, *, shared: bool) -> str:
    """The system message: the configured text, the bot's own name (cases C10), and how speakers are marked."""
    lines = [prompt.strip()]
    if bot_name:
        lines.append(say(language, "prompt.name", name=clean_name(bot_name)))
    if shared:
        lines.append(say(language, "prompt.shared"))
    return "\n".join(line for line in lines if line)


def conversation_fingerprint(model_fingerprint: str, system: str) -> str:
    """Names what a canonical token list was made with: another model or system message makes it worthless."""
    return f"{model_fingerprint}+{hashlib.sha256(system.encode()).hexdigest()[:12]}"


def same_model(fingerprint: str, model_fingerprint: str) -> bool:
    """Whether a conversation's fingerprint belongs to this model, whatever the system message says by now."""
    return fingerprint.rpartition("+")[0] == model_fingerprint


def clean_name(name: str) -> str:
    """A display name that cannot pass for markup: no control characters, brackets or line breaks; bounded."""
    kept = "".join(" " if char.isspace() else char for char in name)
    kept = "".join(
        char
        for char in kept
        if unicodedata.category(char)[0] != "C" and char not in "[]<>{}【】［］|:："
    )
    return " ".join(kept.split())[:NAME_MAX_CHARS].strip()


def speaker_name(language: Language, sender: Sender) -> str:
    """How a person is called in a shared conversation; the end of the id where the platform gives no name."""
    return clean_name(sender.name) or say(
        language, "prompt.nobody", suffix=clean_name(sender.user_id[-4:])
    )


def date_note(language: Language, now: datetime) -> str:
    """The line that tells the model day and time (`now` is in the configured time zone)."""
    weekday = say(language, "prompt.weekdays").split()[now.weekday()]
    return say(
        language,
        "prompt.date",
        date=now.date().isoformat(),
        weekday=weekday,
        time=now.strftime("%H:%M"),
    )


def user_text(
    language: Language,
    question: str,
    *,
    speaker: str = "",
    date: str = "",
    attachments: Sequence[Attachment] = (),
) -> str:
    """A person's turn as the model is shown it."""
    lines = [date] if date else []
    if attachments:
        names = [say(language, f"attachment.{kind_of(a)}") for a in attachments]
        lines.append(say(language, "prompt.attachments", names=", ".join(dict.fromkeys(names))))
    lines.append(f"[{speaker}] {question}" if speaker else question)
    return "\n".join(lines)


def kind_of(attachment: Attachment) -> str:
    """The attachment's kind as the catalogue names it."""
    known = {"image", "file", "audio", "video", "sticker"}
    return attachment.kind if attachment.kind in known else "other"


def usable(past: Sequence[PastTurn]) -> list[PastTurn]:
    """Turns that belong into later prompts: an answer was seen and the question was not taken back."""
    return [turn for turn in past if turn.answer and turn.outcome is not Outcome.SILENT]


def covers(canonical: Canonical | None, fingerprint: str, past: Sequence[PastTurn]) -> bool:
    """Whether the canonical list is exactly these past turns, so that a prompt is the list plus a tail.

    Its boundaries count the messages in it; a turn that was replaced or forgotten since makes them differ.
    """
    return (
        canonical is not None
        and bool(canonical.token_ids)
        and bool(past)
        and canonical.fingerprint == fingerprint
        and canonical.covers_turn_no == past[-1].turn_no
        and canonical.window_from_turn_no == past[0].turn_no
        and len(canonical.boundaries) == 1 + 2 * len(past)
    )


def turns_to_keep(starts: Sequence[int], n_tokens: int, low_water_tokens: int) -> int:
    """How many of the newest past turns fit under the low-water mark beside the system and the newest message.

    `starts` are the offsets of system, then user and assistant of each past turn, then the newest message. Cutting to a
    low mark in one block keeps the prefix the same for many turns after (cases D20).
    """
    n_past = (len(starts) - 2) // 2
    n_system = starts[1]
    for kept in range(n_past, 0, -1):
        first = 1 + 2 * (n_past - kept)
        if n_system + n_tokens - starts[first] <= low_water_tokens:
            return kept
    return 0


def cut_middle(text: str, keep_chars: int, marker: str) -> str:
    """The head and the tail of a text with a marker for what is left out between them."""
    if keep_chars >= len(text):
        return text
    head = keep_chars * 2 // 3
    tail = keep_chars - head
    return f"{text[:head]}\n{marker}\n{text[len(text) - tail :]}"


def next_canonical(
    plan: PromptPlan,
    fingerprint: str,
    turn_no: int,
    answer_ids: Sequence[int],
) -> Canonical:
    """The canonical list after this turn's answer, without thinking.

    Where the template itself opened a thinking block the prompt's end is not what later prompts contain, and without
    ids there is no list: then only the window is remembered and the next prompt is rendered whole.
    """
    whole = bool(plan.tokens) and bool(answer_ids) and not plan.thinking_open
    return Canonical(
        fingerprint=fingerprint,
        token_ids=(*plan.tokens, *answer_ids) if whole else (),
        boundaries=(*plan.boundaries, len(plan.tokens)) if whole else (),
        window_from_turn_no=plan.first_turn_no,
        covers_turn_no=turn_no,
    )
