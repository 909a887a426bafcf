"""What the service needs from the store. `bot.store.Store` implements it; every method is one transaction.

Writers are grouped: calls that wait at the same moment share one commit (and one fsync); one failure does not
undo its neighbours. A method returns only after the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bot.domain.records import Acceptance, Accepted, Canonical, PastTurn, SessionInfo, StoreFacts
from bot.domain.types import ReplyPart, SessionKey, SessionPolicy, Snapshot, Turn, TurnState


class Store(Protocol):
    """The database, owned by this process."""

    # -- inbox -------------------------------------------------------------------------------------------------------
    async def accept(self, acceptance: Acceptance) -> Accepted:
        """Store an event once: dedupe key, then session, turn and inbound message. A known key gives duplicate=True.

        MERGE: when the same person has a QUEUED chat turn in the session, the message joins it (texts joined by a
        newline, the newest message becomes the reply target). INTERRUPT: QUEUED chat turns of the same person are
        CANCELLED silently, RUNNING ones are marked cancel_requested and returned.
        """
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

    # -- turns -------------------------------------------------------------------------------------------------------
    async def claim(self, owner: str, lease_s: float, limit: int) -> list[Turn]:
        """Take the oldest QUEUED turn of each (session, lane) that has none RUNNING: one atomic UPDATE … RETURNING."""
        ...

    async def heartbeat(self, owner: str, lease_s: float) -> frozenset[str]:
        """Extend this owner's leases. Returns the ids of the turns still held."""
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
        """RUNNING → a terminal state. False when the lease was lost meanwhile."""
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
        """QUEUED and RUNNING chat turns of a session, oldest first."""
        ...

    async def last_chat_turn(self, session_id: str) -> Turn | None:
        """The newest finished CHAT turn, for /retry."""
        ...

    # -- replies -----------------------------------------------------------------------------------------------------
    async def reply(self, turn_id: str) -> tuple[Snapshot | None, tuple[ReplyPart, ...]]: ...

    async def save_reply(
        self, turn_id: str, snapshot: Snapshot | None, part: ReplyPart | None
    ) -> None:
        """Commit a snapshot (ignored when its rev is not newer) and/or a part, in one transaction."""
        ...

    async def save_answer_tokens(
        self, turn_id: str, fingerprint: str, answer_token_ids: Sequence[int]
    ) -> None:
        """The visible answer's ids, for the canonical list of later turns."""
        ...

    # -- history -----------------------------------------------------------------------------------------------------
    async def past_turns(
        self, session_id: str, *, from_turn_no: int = 0, limit: int = 1000
    ) -> list[PastTurn]:
        """Finished chat turns with an answer, oldest first. A turn replaced by /retry or Regenerate is left out."""
        ...

    async def mark_replaced(self, turn_id: str) -> None:
        """This turn was asked again: later prompts leave it out (the row stays)."""
        ...

    async def facts(self) -> StoreFacts: ...
