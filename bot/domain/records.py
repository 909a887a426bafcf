"""What goes into the store and comes out of it: frozen copies, never live rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from bot.domain.types import (
    Attachment,
    ChatKind,
    Lane,
    Outcome,
    ReplyTarget,
    Sender,
    SessionKey,
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
class SessionInfo:
    """A conversation as stored. `noted_date` is the ISO date last told to the model; `last_turn_no` counts from 1."""

    id: str
    key: SessionKey
    created_at: datetime
    last_turn_no: int
    noted_date: str = ""


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A finished chat turn as the prompt needs it."""

    turn_id: str
    turn_no: int
    asker: Sender
    prompt_text: str
    answer: str
    outcome: Outcome
    # Ids of the visible answer as this fingerprint's model generated them; empty when unknown.
    answer_token_ids: tuple[int, ...] = ()
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Figures for /status and /metrics."""

    turns_queued: int
    turns_running: int
    replies_undelivered: int
    database_bytes: int
    oldest_queued_age_s: float
    extra: dict[str, str] = field(default_factory=dict)
