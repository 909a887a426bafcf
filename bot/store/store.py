"""`Store`: everything the service may ask of the database, in one place. It only passes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from bot.domain.records import Acceptance, Accepted, Canonical, PastTurn, SessionInfo, StoreFacts
from bot.domain.types import ReplyPart, SessionKey, SessionPolicy, Snapshot, Turn, TurnState
from bot.store.db import Database
from bot.store.history import History
from bot.store.inbox import SHORTEST_DEDUPE, Inbox
from bot.store.replies import Replies
from bot.store.sessions import Sessions
from bot.store.turns import Turns

if TYPE_CHECKING:
    from bot.domain import ports


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Store:
    """The database. Owner: the application, which opens it once and closes it last. Contract: bot.domain.ports.Store.

    `url` is storage.url: sqlite:////absolute/path or postgresql://…; `migrations` another folder than the built-in one;
    `dedupe_hours` is never taken as less than 8; `backups` how many copies from before a migration are kept (SQLite).
    Every method raises StoreError when the database fails or is closed.
    """

    def __init__(
        self,
        url: str,
        *,
        migrations: Path | None = None,
        dedupe_hours: float = 24,
        backups: int = 3,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._db = Database(url, migrations=migrations, backups=backups, clock=clock)
        self._sessions = Sessions(self._db)
        self._inbox = Inbox(
            self._db, self._sessions, max(timedelta(hours=dedupe_hours), SHORTEST_DEDUPE)
        )
        self._turns = Turns(self._db)
        self._replies = Replies(self._db)
        self._history = History(self._db)

    async def open(self) -> None:
        """Take the file's lock, migrate, begin to write. Raises StoreError with one sentence."""
        await self._db.open()

    async def close(self) -> None:
        """Write what waits and let go of the database; later calls raise StoreError."""
        await self._db.close()

    # -- inbox -------------------------------------------------------------------------------------------------------
    async def accept(self, acceptance: Acceptance) -> Accepted:
        return await self._inbox.accept(acceptance)

    async def prune(self) -> int:
        return await self._inbox.prune()

    # -- sessions ----------------------------------------------------------------------------------------------------
    async def session(self, key: SessionKey) -> SessionInfo:
        return await self._sessions.session(key)

    async def next_epoch(
        self, key: SessionKey, *, erase_from_prompt: bool
    ) -> tuple[SessionInfo, SessionInfo]:
        return await self._sessions.next_epoch(key, erase_from_prompt=erase_from_prompt)

    async def chat_policy(self, app_id: str, chat_id: str) -> SessionPolicy | None:
        return await self._sessions.chat_policy(app_id, chat_id)

    async def set_chat_policy(
        self, app_id: str, chat_id: str, policy: SessionPolicy | None
    ) -> None:
        await self._sessions.set_chat_policy(app_id, chat_id, policy)

    async def canonical(self, session_id: str) -> Canonical | None:
        return await self._sessions.canonical(session_id)

    async def save_canonical(self, session_id: str, canonical: Canonical | None) -> None:
        await self._sessions.save_canonical(session_id, canonical)

    # -- turns -------------------------------------------------------------------------------------------------------
    async def claim(self, owner: str, lease_s: float, limit: int) -> list[Turn]:
        return await self._turns.claim(owner, lease_s, limit)

    async def heartbeat(self, owner: str, lease_s: float) -> frozenset[str]:
        return await self._turns.heartbeat(owner, lease_s)

    async def release(self, turn_id: str, owner: str) -> None:
        await self._turns.release(turn_id, owner)

    async def recover(self, owner: str) -> int:
        return await self._turns.recover(owner)

    async def finish_turn(
        self, turn_id: str, owner: str, state: TurnState, *, error: str = ""
    ) -> bool:
        return await self._turns.finish_turn(turn_id, owner, state, error=error)

    async def fix_prompt(self, turn_id: str, prompt_text: str, *, noted_date: str = "") -> None:
        await self._turns.fix_prompt(turn_id, prompt_text, noted_date=noted_date)

    async def request_cancel(self, turn_id: str, *, silent: bool = False) -> TurnState | None:
        return await self._turns.request_cancel(turn_id, silent=silent)

    async def turn(self, turn_id: str) -> Turn | None:
        return await self._turns.turn(turn_id)

    async def turn_of_message(self, app_id: str, message_id: str) -> Turn | None:
        return await self._turns.turn_of_message(app_id, message_id)

    async def unfinished_turns(self, session_id: str) -> list[Turn]:
        return await self._turns.unfinished_turns(session_id)

    async def last_chat_turn(self, session_id: str) -> Turn | None:
        return await self._turns.last_chat_turn(session_id)

    # -- replies -----------------------------------------------------------------------------------------------------
    async def reply(self, turn_id: str) -> tuple[Snapshot | None, tuple[ReplyPart, ...]]:
        return await self._replies.reply(turn_id)

    async def save_reply(
        self, turn_id: str, snapshot: Snapshot | None, part: ReplyPart | None
    ) -> None:
        await self._replies.save_reply(turn_id, snapshot, part)

    async def save_answer_tokens(
        self, turn_id: str, fingerprint: str, answer_token_ids: Sequence[int]
    ) -> None:
        await self._replies.save_answer_tokens(turn_id, fingerprint, answer_token_ids)

    # -- history -----------------------------------------------------------------------------------------------------
    async def past_turns(
        self, session_id: str, *, from_turn_no: int = 0, limit: int = 1000
    ) -> list[PastTurn]:
        return await self._history.past_turns(session_id, from_turn_no=from_turn_no, limit=limit)

    async def mark_replaced(self, turn_id: str) -> None:
        await self._history.mark_replaced(turn_id)

    async def facts(self) -> StoreFacts:
        return await self._history.facts()


if TYPE_CHECKING:

    def _keeps_the_contract(store: Store) -> ports.Store:
        return store
