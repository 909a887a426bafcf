"""`Store`: everything the service may ask of the database, in one place. It only passes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

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
from bot.store.db import Database
from bot.store.digests import Digests
from bot.store.documents import Documents
from bot.store.erasing import Erasing
from bot.store.heard import HeardTalk
from bot.store.history import History
from bot.store.inbox import SHORTEST_DEDUPE, Inbox
from bot.store.leases import Leases
from bot.store.referring import Referring
from bot.store.replies import Replies
from bot.store.search import Search
from bot.store.sessions import Sessions
from bot.store.timers import Timers
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
        self._referring = Referring(self._db)
        self._search = Search(self._db)
        self._documents = Documents(self._db)
        self._digests = Digests(self._db)
        self._erasing = Erasing(self._db)
        self._timers = Timers(self._db, self._inbox)
        self._heard = HeardTalk(self._db, self._inbox)
        self._leases = Leases(self._db)

    async def open(self) -> None:
        """Take the file's lock, migrate, begin to write. Raises StoreError with one sentence."""
        await self._db.open()

    async def close(self) -> None:
        """Write what waits and let go of the database; later calls raise StoreError."""
        await self._db.close()

    # -- inbox -------------------------------------------------------------------------------------------------------
    async def accept(self, acceptance: Acceptance) -> Accepted:
        return await self._inbox.accept(acceptance)

    async def take_back(self, app_id: str, message_id: str) -> TakenBack | None:
        return await self._inbox.take_back(app_id, message_id)

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

    async def summary(self, session_id: str) -> Summary | None:
        return await self._sessions.summary(session_id)

    async def save_summary(self, summary: Summary, canonical: Canonical) -> bool:
        return await self._sessions.save_summary(summary, canonical)

    # -- turns -------------------------------------------------------------------------------------------------------
    async def claim(
        self, owner: str, lease_s: float, limit: int, *, without: frozenset[str] = frozenset()
    ) -> list[Turn]:
        return await self._turns.claim(owner, lease_s, limit, without=without)

    async def heartbeat(self, owner: str, lease_s: float) -> frozenset[str]:
        return await self._turns.heartbeat(owner, lease_s)

    async def holds(self, turn_id: str, owner: str) -> bool:
        return await self._turns.holds(turn_id, owner)

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

    # -- leases ------------------------------------------------------------------------------------------------------
    async def take_lease(self, name: str, owner: str, lease_s: float) -> Lease:
        return await self._leases.take_lease(name, owner, lease_s)

    async def drop_lease(self, name: str, owner: str) -> None:
        await self._leases.drop_lease(name, owner)

    # -- replies -----------------------------------------------------------------------------------------------------
    async def reply(self, turn_id: str) -> tuple[Snapshot | None, tuple[ReplyPart, ...]]:
        return await self._replies.reply(turn_id)

    async def save_reply(
        self, turn_id: str, snapshot: Snapshot | None, part: ReplyPart | None
    ) -> None:
        await self._replies.save_reply(turn_id, snapshot, part)

    async def save_answer_tokens(
        self, turn_id: str, fingerprint: str, answer_token_ids: Sequence[int], n_question: int = 0
    ) -> None:
        await self._replies.save_answer_tokens(turn_id, fingerprint, answer_token_ids, n_question)

    # -- history -----------------------------------------------------------------------------------------------------
    async def past_turns(
        self, session_id: str, *, from_turn_no: int = 0, limit: int = 1000
    ) -> list[PastTurn]:
        return await self._history.past_turns(session_id, from_turn_no=from_turn_no, limit=limit)

    async def said_in(self, app_id: str, chat_id: str, message_id: str) -> str:
        return await self._referring.said_in(app_id, chat_id, message_id)

    async def knows_message(self, turn: Turn, message_id: str) -> bool:
        return await self._referring.knows_message(turn, message_id)

    async def index_history(self, session_id: str, *, limit: int) -> bool:
        return await self._search.index_history(session_id, limit=limit)

    async def search(
        self, session_id: str, terms: Sequence[str], before_turn_no: int, limit: int
    ) -> Found:
        return await self._search.search(session_id, terms, before_turn_no, limit)

    async def mark_replaced(self, turn_id: str) -> None:
        await self._history.mark_replaced(turn_id)

    async def told(self, key: SessionKey, limit: int) -> list[Told]:
        return await self._history.told(key, limit)

    async def n_asked(self, app_id: str, user_id: str, since: datetime) -> int:
        return await self._history.n_asked(app_id, user_id, since)

    async def long_conversations(self, n_tokens: int, limit: int) -> list[Turn]:
        return await self._history.long_conversations(n_tokens, limit)

    # -- erasing -----------------------------------------------------------------------------------------------------
    async def forget_session(self, key: SessionKey, *, but_turn: str) -> list[Erased]:
        return await self._erasing.forget_session(key, but_turn=but_turn)

    async def forget_turns(
        self, session_id: str, *, from_turn_no: int, before_turn_no: int, asker_id: str | None
    ) -> Erased:
        return await self._erasing.forget_turns(
            session_id,
            from_turn_no=from_turn_no,
            before_turn_no=before_turn_no,
            asker_id=asker_id,
        )

    async def erased_sessions(self, limit: int) -> list[Erased]:
        return await self._erasing.erased_sessions(limit)

    async def erase_leftovers(self) -> int:
        return await self._erasing.erase_leftovers()

    async def empty_log(self) -> bool:
        return await self._erasing.empty_log()

    async def delete_older(self, before: datetime, limit: int) -> list[Erased]:
        return await self._erasing.delete_older(before, limit)

    # -- groups that are listened to ---------------------------------------------------------------------------------
    async def hear(self, app_id: str, chat_id: str, said: Heard, keep: int) -> bool:
        return await self._heard.hear(app_id, chat_id, said, keep)

    async def heard(self, app_id: str, chat_id: str, after: datetime, limit: int) -> list[Heard]:
        return await self._heard.heard(app_id, chat_id, after, limit)

    async def last_said(
        self, app_id: str, chat_id: str, user_id: str, before: datetime
    ) -> datetime | None:
        return await self._heard.last_said(app_id, chat_id, user_id, before)

    async def unhear(
        self, app_id: str, *, chat_id: str = "", message_id: str = "", user_id: str = ""
    ) -> int:
        return await self._heard.unhear(
            app_id, chat_id=chat_id, message_id=message_id, user_id=user_id
        )

    async def prune_heard(self, before: datetime) -> int:
        return await self._heard.prune_heard(before)

    async def exclude(self, app_id: str, user_id: str, *, excluded: bool) -> int:
        return await self._heard.exclude(app_id, user_id, excluded=excluded)

    async def people_heard(self) -> list[tuple[str, str]]:
        return await self._heard.people_heard()

    async def begin_listening(self, app_id: str, chat_id: str, told: Acceptance) -> bool:
        return await self._heard.begin_listening(app_id, chat_id, told)

    async def chats_heard(self) -> list[tuple[str, str]]:
        return await self._heard.chats_heard()

    async def end_listening(self, app_id: str, chat_id: str) -> None:
        await self._heard.end_listening(app_id, chat_id)

    # -- timers and settings -----------------------------------------------------------------------------------------
    async def add_timer(self, timer: Timer) -> None:
        await self._timers.add_timer(timer)

    async def timers_of(self, key: SessionKey) -> list[Timer]:
        return await self._timers.timers_of(key)

    async def due_timers(self, now: datetime, limit: int) -> list[Timer]:
        return await self._timers.due_timers(now, limit)

    async def next_due(self) -> datetime | None:
        return await self._timers.next_due()

    async def remove_timer(self, timer_id: int) -> bool:
        return await self._timers.remove_timer(timer_id)

    async def fire_timer(
        self, timer: Timer, acceptance: Acceptance | None, next_due: datetime | None
    ) -> Accepted | None:
        return await self._timers.fire_timer(timer, acceptance, next_due)

    async def session_system(self, key: SessionKey) -> str:
        return await self._timers.session_system(key)

    async def set_session_system(self, key: SessionKey, text: str) -> None:
        await self._timers.set_session_system(key, text)

    async def note_told_from(self, session_id: str, turn_no: int) -> None:
        await self._timers.note_told_from(session_id, turn_no)

    # -- documents ---------------------------------------------------------------------------------------------------
    async def save_document(
        self, turn: Turn, document: Document, pieces: Sequence[Piece]
    ) -> Document:
        return await self._documents.save_document(turn, document, pieces)

    async def document(self, session_id: str, source: str) -> Document | None:
        return await self._documents.document(session_id, source)

    async def documents(self, session_id: str) -> list[Document]:
        return await self._documents.documents(session_id)

    async def document_pieces(self, document_id: int) -> list[Piece]:
        return await self._documents.document_pieces(document_id)

    async def digest_parts(self, turn_id: str) -> list[DigestPart]:
        return await self._digests.digest_parts(turn_id)

    async def save_digest_part(self, turn_id: str, part: DigestPart) -> None:
        await self._digests.save_digest_part(turn_id, part)

    async def facts(self) -> StoreFacts:
        return await self._history.facts()


if TYPE_CHECKING:

    def _keeps_the_contract(store: Store) -> ports.Store:
        return store
