"""What goes into the store and comes out of it: frozen copies, never live rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from bot.domain.types import (
    Attachment,
    ChatKind,
    Lane,
    Outcome,
    Quoted,
    ReplyTarget,
    Sender,
    SessionKey,
    Turn,
    TurnKind,
    WhileBusy,
)


@dataclass(frozen=True, slots=True)
class TurnDraft:
    """A turn to be queued. `session.epoch` is ignored: the store fills in the current one inside its transaction.

    `answer` is the fixed text of a NOTICE (its reply is stored final at once). `while_busy` applies to CHAT turns only.
    """

    session: SessionKey
    kind: TurnKind
    lane: Lane
    asker: Sender
    question: str
    target: ReplyTarget
    message_id: str
    chat_kind: ChatKind
    while_busy: WhileBusy = WhileBusy.QUEUE
    answer: str = ""
    attachments: tuple[Attachment, ...] = ()
    # The turn whose cut answer a CHAT turn goes on with.
    continues: str = ""
    # Earlier messages that the question refers to.
    quotes: tuple[Quoted, ...] = ()
    # A CHAT turn is not begun for so long: the next part of a long paste may join it. 0 = it waits for nothing.
    hold_s: float = 0.0
    # Joins the same person's question while that one is held.
    joins_paste: bool = False
    # The turn whose question is asked again: it is made of the same messages.
    again_of: str = ""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One event to store: its dedupe key and, when it makes work, the turn."""

    app_id: str
    dedupe_key: str
    event_id: str
    draft: TurnDraft | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of an event. `interrupted`: earlier turns, running or waiting, that end by it (WhileBusy.INTERRUPT)."""

    duplicate: bool
    turn_id: str = ""
    merged: bool = False
    interrupted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What became of a chat turn whose message a person took back. `turn`: as it was before.

    `goes_on`: it had not begun, and goes on with its other messages. One that had begun is cancelled silently, and its other
    messages, where there are any, are asked anew. One that had ended is as it was.
    """

    turn: Turn
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Canonical:
    """The canonical token list of a conversation for one model: system, then turns as sent, without thinking.

    It ends just behind the content of the last answer it covers, turn number `covers_turn_no`. `window_from_turn_no` is
    the first turn in it; older ones were cut out of the prompt (never out of the store). `boundaries` are the offsets at
    which each of its messages starts.
    """

    fingerprint: str
    token_ids: tuple[int, ...]
    boundaries: tuple[int, ...]
    window_from_turn_no: int
    covers_turn_no: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands in the prompt for the turns up to `covers_turn_no`. `rev` counts a session's summaries from 1.

    `how` it was made: "model" or "extract" (sentences taken over as they are). `n_tokens` is what it costs in the prompt.
    """

    session_id: str
    rev: int
    covers_turn_no: int
    text: str
    n_tokens: int
    how: str


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A conversation as stored. `noted_date` is the ISO date last told to the model; `last_turn_no` counts from 1."""

    id: str
    key: SessionKey
    created_at: datetime
    last_turn_no: int
    noted_date: str = ""
    # The first turn that prompts still show as it was said, as people were told last.
    told_from_turn_no: int = 0


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A finished chat turn as the prompt needs it.

    An answer that was cut and went on in later turns is one past turn, with the whole answer: it begins with turn `turn_no`
    and ends with turn `through_turn_no` (0 = the same).
    """

    turn_id: str
    turn_no: int
    asker: Sender
    prompt_text: str
    answer: str
    outcome: Outcome
    # Ids of the visible answer as this fingerprint's model generated them; empty when unknown.
    answer_token_ids: tuple[int, ...] = ()
    fingerprint: str = ""
    through_turn_no: int = 0
    # Tokens of the question in a prompt of that model, from its header to the reply's beginning; 0 = unknown.
    n_question: int = 0
    # The turns after `turn_id` in which the answer went on.
    more_turn_ids: tuple[str, ...] = ()

    @property
    def last_turn_id(self) -> str:
        """The turn at its end."""
        return self.more_turn_ids[-1] if self.more_turn_ids else self.turn_id

    @property
    def last_turn_no(self) -> int:
        """The number of the turn at its end."""
        return self.through_turn_no or self.turn_no


@dataclass(frozen=True, slots=True)
class Hit:
    """A past message that shares terms with a question. `speaker` is "" for the bot's answers, `reply` what a question got."""

    turn_no: int
    is_answer: bool
    speaker: str
    text: str
    said_at: datetime | None = None
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: the best hits by the terms' rarity, the best first.

    `counts` says how many messages have each term (not beyond a limit that is common enough), of `n_messages`. Turns up to
    `indexed_to` can be found.
    """

    hits: tuple[Hit, ...]
    counts: dict[str, int]
    n_messages: int
    indexed_to: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """A question and its answer for people to read again. `is_current`: of the topic that is going on."""

    turn_no: int
    is_current: bool
    asker: Sender
    question: str
    answer: str
    outcome: Outcome
    asked_at: datetime


@dataclass(frozen=True, slots=True)
class Erased:
    """A session whose content was erased: the engine may still know of it. `rev`: its last summary's, 0 = there was none."""

    session_id: str
    rev: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds something that only one process may hold ("" = nobody), and for how many seconds more at least.

    `for_s` is infinite where no other process can come near as long as this one lives.
    """

    holder: str
    for_s: float


class TimerKind(StrEnum):
    """REMIND says a text once; SCHEDULE asks the model again and again."""

    REMIND = "remind"
    SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True)
class Timer:
    """Something to be done in a chat at a time. `rule` tells a schedule's next times (bot.domain.timing).

    `made_by_turn` is the command that made it: it makes one only, also when it is taken up again after a crash.
    """

    id: int
    kind: TimerKind
    session: SessionKey
    asker: Sender
    chat_kind: ChatKind
    target: ReplyTarget
    text: str
    due_at: datetime
    rule: str = ""
    made_by_turn: str = ""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Figures for /status and /metrics."""

    turns_queued: int
    turns_running: int
    replies_undelivered: int
    database_bytes: int
    oldest_queued_age_s: float
    extra: dict[str, str] = field(default_factory=dict)
