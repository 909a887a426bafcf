"""The bot's nouns: frozen, slotted, units in their names. Pure data; no I/O, no platform types.

Times are aware UTC datetimes. Ids of platforms are opaque strings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class SessionPolicy(StrEnum):
    """Who shares a conversation in a group."""

    PER_USER = "per_user"
    SHARED = "shared"
    PER_TOPIC = "per_topic"


class WhileBusy(StrEnum):
    """What a person's further message does while an earlier one waits or runs."""

    MERGE = "merge"
    QUEUE = "queue"
    INTERRUPT = "interrupt"


class ChatKind(StrEnum):
    """Where a message was written."""

    DIRECT = "direct"
    GROUP = "group"


class TurnState(StrEnum):
    """QUEUED → RUNNING → DONE | FAILED | CANCELLED; RUNNING → QUEUED only by recovery."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Lane(StrEnum):
    """Turns of one session run one after another inside a lane. Commands never wait behind chat."""

    CHAT = "chat"
    CONTROL = "control"
    # Long work beside the talk, which goes on meanwhile: a summary of a long text.
    BACKGROUND = "background"


class TurnKind(StrEnum):
    """What a turn does: ask the model, run a command, or say a fixed text (greeting, refusal, hint)."""

    CHAT = "chat"
    COMMAND = "command"
    NOTICE = "notice"


class PartState(StrEnum):
    """PLANNED → ATTEMPTED (committed before the call) → CONFIRMED | AMBIGUOUS; CLOSED when nothing more will be sent."""

    PLANNED = "planned"
    ATTEMPTED = "attempted"
    CONFIRMED = "confirmed"
    AMBIGUOUS = "ambiguous"
    CLOSED = "closed"


class Outcome(StrEnum):
    """How a reply stands. Everything but GROWING is final."""

    GROWING = "growing"
    COMPLETE = "complete"
    LENGTH = "length"  # cut at max_new_tokens
    STOPPED = "stopped"  # a person pressed Stop or sent /stop, or interrupted
    FAILED = "failed"  # the notice says why, in one friendly sentence
    SILENT = "silent"  # nothing more may be shown (the question was recalled)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Names one conversation. Made only by `bot.domain.sessions.session_key`.

    `app_id` is the platform's (renaming a bot in the config must not orphan history). Which of topic_id and user_id are
    set is the policy. `epoch` counts up with `/new` and `/reset`.
    """

    app_id: str
    chat_id: str
    topic_id: str | None
    user_id: str | None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Sender:
    """Who wrote. `name` may be empty when the platform does not say."""

    user_id: str
    name: str = ""
    is_bot: bool = False


@dataclass(frozen=True, slots=True)
class ReplyTarget:
    """Where an answer goes. Only the adapter looks inside `opaque` (it is stored as JSON)."""

    app_id: str
    chat_id: str
    reply_to: str
    opaque: dict[str, str] = field(default_factory=dict)
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """Something that is not text: kind is image, file, audio, video, sticker or other.

    `message_id` is the message that brought it, where that is another one than the question: one that it refers to.
    """

    kind: str
    name: str = ""
    remote_key: str = ""
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class Quoted:
    """An earlier message that a message refers to: context for the model, never a command, bounded in length.

    What the platform tells of it. Where it only names it (`text` and `attachments` are empty, `message_id` is not) it is
    looked up when the question is answered. `is_topic_root`: every message of its topic refers to it, so that it is shown
    once in a conversation.
    """

    message_id: str = ""
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    is_topic_root: bool = False


@dataclass(frozen=True, slots=True)
class InboundMessage:
    """A message from a person, verified and parsed.

    `text` has the bot's own mention stripped and others turned into names, and nothing of what it quotes (`quoted`).
    `dedupe_key` is (app id, message id).
    """

    app_id: str
    dedupe_key: str
    event_id: str
    message_id: str
    chat_id: str
    chat_kind: ChatKind
    topic_id: str | None
    sender: Sender
    text: str
    mentions_bot: bool
    sent_at: datetime
    target: ReplyTarget
    attachments: tuple[Attachment, ...] = ()
    quoted: Quoted | None = None


@dataclass(frozen=True, slots=True)
class MessageRecalled:
    """A person took a message back: its running reply is cancelled and stays silent; what else was asked with it goes on."""

    app_id: str
    dedupe_key: str
    event_id: str
    message_id: str
    chat_id: str


@dataclass(frozen=True, slots=True)
class BotAdded:
    """The bot joined a chat: it greets once."""

    app_id: str
    dedupe_key: str
    event_id: str
    chat_id: str
    target: ReplyTarget


@dataclass(frozen=True, slots=True)
class ChatEntered:
    """A person opened the direct chat, and the platform asks for a welcome within seconds. Only its adapter reads `target`."""

    app_id: str
    dedupe_key: str
    event_id: str
    sender: Sender
    target: ReplyTarget


@dataclass(frozen=True, slots=True)
class AnswerRated:
    """A person judged an answer in the platform's own way. `verdict` is good, bad or withdrawn; `reasons` are the platform's
    words for a bad one. What the person wrote beside it is not taken in."""

    app_id: str
    dedupe_key: str
    event_id: str
    verdict: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ButtonPressed:
    """A button of one of our cards. `action` is stop, regenerate, continue or new_topic; `turn_id` comes from the button's value."""

    app_id: str
    dedupe_key: str
    event_id: str
    chat_id: str
    message_id: str
    operator_id: str
    action: str
    turn_id: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A verified event that we do not know or cannot read: acknowledged, logged once, no work."""

    app_id: str
    event_id: str
    reason: str


InboundEvent = (
    InboundMessage
    | MessageRecalled
    | BotAdded
    | ChatEntered
    | AnswerRated
    | ButtonPressed
    | Unreadable
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A reply as it stands. `rev` counts up with each change; `token_ids` are the model's (thinking included)."""

    rev: int
    text: str
    token_ids: tuple[int, ...] = ()
    outcome: Outcome = Outcome.GROWING
    notice: str = ""

    @property
    def final(self) -> bool:
        """Nothing will be added."""
        return self.outcome is not Outcome.GROWING


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """One message or card of a reply. `n` counts from 0; `covers_from_chars`..`covers_to_chars` is its slice of the text.

    `idem_key` is fixed when the part is planned. `remote_id` is the card entity, `message_id` the message that shows it.
    `sequence` is the highest ever handed to a call on this card. `confirmed_rev` is the last rev known to be shown.
    """

    turn_id: str
    n: int
    kind: str
    idem_key: str
    state: PartState = PartState.PLANNED
    remote_id: str = ""
    message_id: str = ""
    sequence: int = 0
    covers_from_chars: int = 0
    covers_to_chars: int = 0
    confirmed_rev: int = 0
    opened_at: datetime | None = None
    attempted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and what became of it. The store is its only owner; this is a copy.

    `question` is what the person wrote (merged messages joined by newlines); `prompt_text` what the model is shown for it
    (speaker name, date note), fixed when the turn first runs. `attempt` counts claims.
    """

    id: str
    session_id: str
    session: SessionKey
    kind: TurnKind
    lane: Lane
    state: TurnState
    attempt: int
    asker: Sender
    question: str
    target: ReplyTarget
    message_ids: tuple[str, ...]
    created_at: datetime
    chat_kind: ChatKind = ChatKind.GROUP
    turn_no: int = 0
    prompt_text: str = ""
    cancel_requested: bool = False
    silent: bool = False
    attachments: tuple[Attachment, ...] = ()
    # The turn whose cut answer this one goes on with.
    continues: str = ""
    # Earlier messages that the question refers to, as the platform told of them.
    quotes: tuple[Quoted, ...] = ()
