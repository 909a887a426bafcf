"""What the service needs from the store. `bot.store.Store` implements it; every method is one transaction.

Writers are grouped: calls that wait at the same moment share one commit (and one fsync); one failure does not
undo its neighbours. A method returns only after the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from bot.domain.digest import DigestPart
from bot.domain.documents import Document, Piece
from bot.domain.listening import Heard
from bot.domain.records import (
    Acceptance,
    Accepted,
    Canonical,
    Erased,
    Found,
    Lease,
    PastTurn,
    SessionInfo,
    StoreFacts,
    Summary,
    TakenBack,
    Timer,
    Told,
)
from bot.domain.types import ReplyPart, SessionKey, SessionPolicy, Snapshot, Turn, TurnState


class Store(Protocol):
    """The database, owned by this process."""

    # -- inbox -------------------------------------------------------------------------------------------------------
    async def accept(self, acceptance: Acceptance) -> Accepted:
        """Store an event once: dedupe key, then session, turn and inbound message. A known key gives duplicate=True.

        MERGE: when the same person has a QUEUED chat turn in the session, the message joins it (texts joined by a
        newline, the newest message becomes the reply target). So does, whatever `while_busy`, a message that comes while
        such a turn is held (`hold_s`); the turn is then held as the newest message asks. INTERRUPT: QUEUED chat turns of the same person are
        CANCELLED silently, RUNNING ones are marked cancel_requested and returned.
        """
        ...

    async def take_back(self, app_id: str, message_id: str) -> TakenBack | None:
        """Take a message out of its newest chat turn, if that is unfinished; where other messages are in it, they go on, in
        the turn itself or in a new one. None where no chat turn has the message. Repeating it changes nothing more."""
        ...

    async def prune(self) -> int:
        """Delete dedupe keys older than the configured age (never under 8 h). Returns how many."""
        ...

    # -- sessions ----------------------------------------------------------------------------------------------------
    async def session(self, key: SessionKey) -> SessionInfo:
        """The current epoch's session for a key (its epoch is ignored); created when there is none."""
        ...

    async def next_epoch(
        self, key: SessionKey, *, erase_from_prompt: bool
    ) -> tuple[SessionInfo, SessionInfo]:
        """Begin the next epoch: returns (old, new). `erase_from_prompt` (/reset) also drops the old canonical tokens."""
        ...

    async def chat_policy(self, app_id: str, chat_id: str) -> SessionPolicy | None:
        """The override set for one chat, if any."""
        ...

    async def set_chat_policy(
        self, app_id: str, chat_id: str, policy: SessionPolicy | None
    ) -> None: ...

    async def canonical(self, session_id: str) -> Canonical | None: ...

    async def save_canonical(self, session_id: str, canonical: Canonical | None) -> None: ...

    async def summary(self, session_id: str) -> Summary | None:
        """What stands for the oldest turns of a session, if anything does."""
        ...

    async def save_summary(self, summary: Summary, canonical: Canonical) -> bool:
        """Switch to a new summary: the row and the canonical list that begins with it, in one transaction.

        False, and nothing changed, when the session was erased or has a summary of this rev or a newer one.
        """
        ...

    # -- turns -------------------------------------------------------------------------------------------------------
    async def claim(
        self, owner: str, lease_s: float, limit: int, *, without: frozenset[str] = frozenset()
    ) -> list[Turn]:
        """Take the oldest QUEUED turn of each (session, lane) that has none RUNNING: one atomic UPDATE … RETURNING.

        `without`: app ids whose turns are left to another process.
        """
        ...

    async def heartbeat(self, owner: str, lease_s: float) -> frozenset[str]:
        """Extend this owner's leases. Returns the ids of the turns still held."""
        ...

    async def holds(self, turn_id: str, owner: str) -> bool:
        """Whether a turn is RUNNING and this owner's."""
        ...

    async def release(self, turn_id: str, owner: str) -> None:
        """Give a RUNNING turn back (RUNNING → QUEUED) because this process stops."""
        ...

    async def recover(self, owner: str) -> int:
        """RUNNING → QUEUED for expired leases, and on SQLite (one process holds the file) for every other owner's."""
        ...

    async def finish_turn(
        self, turn_id: str, owner: str, state: TurnState, *, error: str = ""
    ) -> bool:
        """RUNNING → a terminal state. False when the lease was lost meanwhile.

        A turn of the background lane that ends behind later ones gets the next number: it is the newest of the talk now.
        """
        ...

    async def fix_prompt(self, turn_id: str, prompt_text: str, *, noted_date: str = "") -> None:
        """Store what the model is shown for this turn, and the date now told to it."""
        ...

    async def request_cancel(self, turn_id: str, *, silent: bool = False) -> TurnState | None:
        """QUEUED → CANCELLED at once; RUNNING is marked. Returns the state found before, None for an unknown turn."""
        ...

    async def turn(self, turn_id: str) -> Turn | None: ...

    async def turn_of_message(self, app_id: str, message_id: str) -> Turn | None: ...

    async def unfinished_turns(self, session_id: str) -> list[Turn]:
        """QUEUED and RUNNING chat turns of a session, those of the background lane too, oldest first."""
        ...

    async def last_chat_turn(self, session_id: str) -> Turn | None:
        """The newest finished CHAT turn, for /retry."""
        ...

    # -- leases ------------------------------------------------------------------------------------------------------
    async def take_lease(self, name: str, owner: str, lease_s: float) -> Lease:
        """Take a lease that nobody holds, or keep one's own for `lease_s` from now; else tells who holds it."""
        ...

    async def drop_lease(self, name: str, owner: str) -> None:
        """Give a lease back; one that another owner has is left alone."""
        ...

    # -- replies -----------------------------------------------------------------------------------------------------
    async def reply(self, turn_id: str) -> tuple[Snapshot | None, tuple[ReplyPart, ...]]: ...

    async def save_reply(
        self, turn_id: str, snapshot: Snapshot | None, part: ReplyPart | None
    ) -> None:
        """Commit a snapshot (ignored when its rev is not newer) and/or a part, in one transaction."""
        ...

    async def save_answer_tokens(
        self, turn_id: str, fingerprint: str, answer_token_ids: Sequence[int], n_question: int = 0
    ) -> None:
        """The visible answer's ids and its question's tokens, for the canonical list and the budget of later turns."""
        ...

    # -- history -----------------------------------------------------------------------------------------------------
    async def past_turns(
        self, session_id: str, *, from_turn_no: int = 0, limit: int = 1000
    ) -> list[PastTurn]:
        """Finished chat turns with an answer, oldest first. A turn replaced by /retry or Regenerate is left out."""
        ...

    async def said_in(self, app_id: str, chat_id: str, message_id: str) -> str:
        """What a message of a chat said, if it was one of ours (that part of the answer) or a question to us; else ""."""
        ...

    async def knows_message(self, turn: Turn, message_id: str) -> bool:
        """Whether an earlier question of the turn's session is this message, or refers to it."""
        ...

    async def index_history(self, session_id: str, *, limit: int) -> bool:
        """Make the next `limit` finished turns of a session findable. True when none is left. Nothing of an erased one is."""
        ...

    async def search(
        self, session_id: str, terms: Sequence[str], before_turn_no: int, limit: int
    ) -> Found:
        """The messages of earlier turns that share terms, at most `limit`. Only what `index_history` has seen."""
        ...

    async def mark_replaced(self, turn_id: str) -> None:
        """This turn was asked again: later prompts leave it out (the row stays)."""
        ...

    async def told(self, key: SessionKey, limit: int) -> list[Told]:
        """The newest `limit` questions and answers of a conversation, oldest first, over all epochs but those that /reset
        or /forget ended."""
        ...

    async def n_asked(self, app_id: str, user_id: str, since: datetime) -> int:
        """How many questions of a person a bot took since a moment, whatever became of them."""
        ...

    async def long_conversations(self, n_tokens: int, limit: int) -> list[Turn]:
        """The newest chat turn of current sessions whose canonical list has at least `n_tokens`."""
        ...

    # -- erasing -----------------------------------------------------------------------------------------------------
    async def forget_session(self, key: SessionKey, *, but_turn: str) -> list[Erased]:
        """Erase every word of a conversation's epochs up to the key's, but for one turn, and its settings and timers.

        Current epochs are left alone: begin the next one first. Returns what the engine may still know.
        """
        ...

    async def forget_turns(
        self, session_id: str, *, from_turn_no: int, before_turn_no: int, asker_id: str | None
    ) -> Erased:
        """Erase the words of ended turns in a range (`asker_id`: of that person's questions only), and whatever may tell of
        them: summary, canonical list, index."""
        ...

    async def erased_sessions(self, limit: int) -> list[Erased]:
        """The newest sessions that /reset or /forget ended: the engine should know nothing of them any more."""
        ...

    async def erase_leftovers(self) -> int:
        """Erase what turns wrote that ended after their session was forgotten. Returns how many there were."""
        ...

    async def empty_log(self) -> bool:
        """Have what was erased leave the database's log too, where it keeps one beside its file. False: not now, something
        reads it."""
        ...

    async def delete_older(self, before: datetime, limit: int) -> list[Erased]:
        """Delete at most `limit` sessions whose last turn is older, rows and all. Dedupe hashes stay as long as ever."""
        ...

    # -- groups that are listened to ---------------------------------------------------------------------------------
    async def hear(self, app_id: str, chat_id: str, said: Heard, keep: int) -> bool:
        """Keep a message of a group, and no more than the newest `keep` of it. False for one that is kept already, or is of
        somebody of whom nothing is kept."""
        ...

    async def heard(self, app_id: str, chat_id: str, after: datetime, limit: int) -> list[Heard]:
        """The newest `limit` messages of a group said after a moment, oldest first."""
        ...

    async def last_said(
        self, app_id: str, chat_id: str, user_id: str, before: datetime
    ) -> datetime | None:
        """When a person last said something in a chat, to the bot or not, as far as it is known."""
        ...

    async def unhear(
        self, app_id: str, *, chat_id: str = "", message_id: str = "", user_id: str = ""
    ) -> int:
        """Erase what was heard: of a chat, a message, a person. Returns how many messages."""
        ...

    async def prune_heard(self, before: datetime) -> int:
        """Erase what was said before a moment."""
        ...

    async def exclude(self, app_id: str, user_id: str, *, excluded: bool) -> int:
        """From now on nothing of this person is kept, and what was is erased (how many messages); or it may be again."""
        ...

    async def people_heard(self) -> list[tuple[str, str]]:
        """App id and user id of everybody of whom something is kept."""
        ...

    async def begin_listening(self, app_id: str, chat_id: str, told: Acceptance) -> bool:
        """Mark a group as listened to and store what tells it so, in one transaction. False when that was done before."""
        ...

    async def chats_heard(self) -> list[tuple[str, str]]:
        """App id and chat id of every group that was told."""
        ...

    async def end_listening(self, app_id: str, chat_id: str) -> None:
        """Erase what was heard in a group; listening to it again would be told again."""
        ...

    # -- timers and settings -----------------------------------------------------------------------------------------
    async def add_timer(self, timer: Timer) -> None:
        """Store a timer (its id is ignored). One command makes one."""
        ...

    async def timers_of(self, key: SessionKey) -> list[Timer]:
        """The timers of a conversation, in the order they were made."""
        ...

    async def due_timers(self, now: datetime, limit: int) -> list[Timer]:
        """Timers whose time has come, the earliest first."""
        ...

    async def next_due(self) -> datetime | None:
        """When the next timer is due."""
        ...

    async def remove_timer(self, timer_id: int) -> bool:
        """False when it is gone already."""
        ...

    async def fire_timer(
        self, timer: Timer, acceptance: Acceptance | None, next_due: datetime | None
    ) -> Accepted | None:
        """Store what a due timer makes and, in the same transaction, move it to `next_due` or delete it.

        None when it was fired already, or made nothing.
        """
        ...

    async def session_system(self, key: SessionKey) -> str:
        """What was set with /system for a conversation; "" = nothing."""
        ...

    async def set_session_system(self, key: SessionKey, text: str) -> None: ...

    async def note_told_from(self, session_id: str, turn_no: int) -> None:
        """People were told that prompts show turns as they were said only from this one on."""
        ...

    # -- documents ---------------------------------------------------------------------------------------------------
    async def save_document(
        self, turn: Turn, document: Document, pieces: Sequence[Piece]
    ) -> Document:
        """Keep a file as text with a turn's session. The first to come stays; nothing is kept of what was forgotten."""
        ...

    async def document(self, session_id: str, source: str) -> Document | None:
        """A file that was read for this session before."""
        ...

    async def documents(self, session_id: str) -> list[Document]:
        """The files of a session, oldest first; none of an erased one."""
        ...

    async def document_pieces(self, document_id: int) -> list[Piece]:
        """A file's text, in order."""
        ...

    async def digest_parts(self, turn_id: str) -> list[DigestPart]:
        """What the parts of a long text came to so far, in order; none once the turn has ended."""
        ...

    async def save_digest_part(self, turn_id: str, part: DigestPart) -> None:
        """Keep a part's summary until the turn ends. The first to come stays; nothing is kept of what was forgotten."""
        ...

    async def facts(self) -> StoreFacts: ...
