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
    """Not even the system message, a scrap of the question and a short reply fit into the window.

    `system_fills`: the system message leaves hardly any room to whatever is asked.
    """

    def __init__(self, *, system_fills: bool = False) -> None:
        super().__init__("the system message fills the window" if system_fills else "too long")
        self.system_fills = system_fills


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """A prompt that fits: `n_prompt_tokens + max_new_tokens ≤ n_ctx`, always.

    `first_turn_no` is the oldest turn in it (the new turn's own number when no past turn is). `boundaries` are the
    offsets of its messages. `tokens` is empty for backends without ids (`exact` is False). `plain_tokens` is the prompt
    without what only this turn is shown (recalled quotes): what later prompts go on from, and what `boundaries` belong to.
    """

    tokens: tuple[int, ...]
    n_prompt_tokens: int
    max_new_tokens: int
    first_turn_no: int
    boundaries: tuple[int, ...]
    n_shared_prefix: int
    plain_tokens: tuple[int, ...] = ()
    thinking_open: bool = False
    exact: bool = True

    @property
    def n_question(self) -> int:
        """What the newest message takes, from its header to the reply's beginning; 0 = later prompts show it otherwise."""
        if self.thinking_open or not self.boundaries:
            return 0
        return len(self.plain_tokens) - self.boundaries[-1]

    @property
    def has_extras(self) -> bool:
        """Whether this turn is shown something that later prompts do not contain."""
        return self.tokens != self.plain_tokens


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


def conversation_fingerprint(model_fingerprint: str, system: str, summary: str = "") -> str:
    """Names what a canonical token list was made with: another model, system message or summary makes it worthless."""
    head = f"{system}\0{summary}" if summary else system
    return f"{model_fingerprint}+{hashlib.sha256(head.encode()).hexdigest()[:12]}"


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
    documents: Sequence[str] = (),
) -> str:
    """A person's turn as the model is shown it. `attachments` cannot be seen; `documents` are the names of files that can."""
    lines = [date] if date else []
    if documents:
        lines.append(say(language, "prompt.documents", names=", ".join(documents)))
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


def covers(
    canonical: Canonical | None, fingerprint: str, past: Sequence[PastTurn], n_head: int = 1
) -> bool:
    """Whether the canonical list is exactly these past turns, so that a prompt is the list plus a tail.

    Its boundaries count the messages in it; a turn that was replaced or forgotten since makes them differ. `n_head`: the
    messages before the turns (system, and a summary's two).
    """
    return (
        canonical is not None
        and bool(canonical.token_ids)
        and bool(past)
        and canonical.fingerprint == fingerprint
        and canonical.covers_turn_no == past[-1].last_turn_no
        and canonical.window_from_turn_no == past[0].turn_no
        and len(canonical.boundaries) == n_head + 2 * len(past)
    )


def least_tokens(past: Sequence[PastTurn], model_fingerprint: str) -> int:
    """What past turns take of a prompt at the least, by the counts stored with them; 0 for a turn without any."""
    return sum(_known_tokens(turn, model_fingerprint) for turn in past)


def newest_that_may_fit(
    past: Sequence[PastTurn], model_fingerprint: str, n_tokens: int
) -> list[PastTurn]:
    """The newest turns, without those that surely do not fit into `n_tokens` beside them."""
    first = len(past)
    while first and (n_tokens := n_tokens - _known_tokens(past[first - 1], model_fingerprint)) >= 0:
        first -= 1
    return list(past[first:])


def _known_tokens(turn: PastTurn, model_fingerprint: str) -> int:
    known = turn.fingerprint == model_fingerprint
    return turn.n_question + len(turn.answer_token_ids) if known else 0


def turns_to_keep(
    starts: Sequence[int], n_tokens: int, low_water_tokens: int, n_head: int = 1
) -> int:
    """How many of the newest past turns fit under the low-water mark beside the head and the newest message.

    `starts` are the offsets of the head's messages (system, and a summary's two), then user and assistant of each past
    turn, then the newest message. Cutting to a low mark in one block keeps the prefix the same for many turns after
    (cases D20).
    """
    n_past = (len(starts) - n_head - 1) // 2
    n_fixed = starts[n_head]
    for kept in range(n_past, 0, -1):
        first = n_head + 2 * (n_past - kept)
        if n_fixed + n_tokens - starts[first] <= low_water_tokens:
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
    whole = bool(plan.plain_tokens) and bool(answer_ids) and not plan.thinking_open
    return Canonical(
        fingerprint=fingerprint,
        token_ids=(*plan.plain_tokens, *answer_ids) if whole else (),
        boundaries=(*plan.boundaries, len(plan.plain_tokens)) if whole else (),
        window_from_turn_no=plan.first_turn_no,
        covers_turn_no=turn_no,
    )
