"""Sessions: which epoch of a conversation is current, its canonical tokens, and the policy set for a chat.

Owns the tables sessions, canonical, summaries and chat_settings.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.records import Canonical, SessionInfo, Summary
from bot.domain.types import SessionKey, SessionPolicy
from bot.store import documents, search
from bot.store.db import Database
from bot.store.tables import AnyRow, canonical, chat_settings, sessions, summaries


def key_hash(key: SessionKey) -> str:
    """One text for the parts that name a conversation (its epoch is not among them); None and "" stay different."""
    parts = json.dumps([key.app_id, key.chat_id, key.topic_id, key.user_id])
    return hashlib.sha256(parts.encode()).hexdigest()


def read_key(row: AnyRow) -> SessionKey:
    """The key in a row that has the session's columns."""
    return SessionKey(row.app_id, row.chat_id, row.topic_id, row.user_id, row.epoch)


def _read_info(row: AnyRow) -> SessionInfo:
    return SessionInfo(
        id=row.id,
        key=read_key(row),
        created_at=row.created_at,
        last_turn_no=row.last_turn_no,
        noted_date=row.noted_date,
        told_from_turn_no=row.told_from_turn_no,
    )


def _is_erased(connection: Connection, session_id: str) -> bool:
    """Whether /reset has ended a session: whatever still runs for it must not bring it back."""
    query = sa.select(sessions.c.erased).where(sessions.c.id == session_id)
    return bool(connection.execute(query).scalar())


def erase_memory(connection: Connection, session_id: str) -> None:
    """What a session's turns were made into goes. Of its summary the number stays: by it the engine's copies are named, and
    whoever drops them may come later, after a crash."""
    connection.execute(sa.delete(canonical).where(canonical.c.session_id == session_id))
    blank = sa.update(summaries).where(summaries.c.session_id == session_id)
    connection.execute(blank.values(text="", n_tokens=0, covers_turn_no=0))
    documents.erase_session(connection, session_id)
    search.erase(connection, session_id)


# Written out: a plan prepared for any parameter cannot use an index that holds current sessions only.
IS_CURRENT = sa.text("sessions.is_current = 1")
_FIND_CURRENT = sa.select(sessions).where(sessions.c.key_hash == sa.bindparam("key"), IS_CURRENT)


# Policies are asked for with every message and hardly ever change; another process's change is seen this much later.
_POLICY_FRESH_S = 5.0
_POLICIES_KEPT = 4096


class Sessions:
    """Queries and works on sessions. Holds no state but the database, its ready-made statements, and fresh chat policies."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._policies: dict[tuple[str, str], tuple[float, SessionPolicy | None]] = {}
        # Built once: putting a statement together costs more than running it.
        insert = db.insert(sessions)
        self._open = insert.on_conflict_do_update(
            index_elements=[sessions.c.key_hash],
            index_where=sa.text("is_current = 1"),
            set_={"last_turn_no": sessions.c.last_turn_no + insert.excluded.last_turn_no},
        ).returning(sessions)

    def open_current(self, connection: Connection, key: SessionKey, *, new_turns: int) -> AnyRow:
        """The current session's row, created when there is none, its turn counter raised: one statement."""
        fresh = self._fresh(key, epoch=0, last_turn_no=new_turns)
        row: AnyRow = connection.execute(self._open, fresh).one()
        return row

    def _fresh(self, key: SessionKey, *, epoch: int, last_turn_no: int = 0) -> dict[str, object]:
        return {
            "id": uuid.uuid4().hex,
            "key_hash": key_hash(key),
            "app_id": key.app_id,
            "chat_id": key.chat_id,
            "topic_id": key.topic_id,
            "user_id": key.user_id,
            "epoch": epoch,
            "is_current": 1,
            "erased": 0,
            "last_turn_no": last_turn_no,
            "noted_date": "",
            "told_from_turn_no": 0,
            "created_at": self._db.clock(),
        }

    async def session(self, key: SessionKey) -> SessionInfo:
        """See ports.Store."""

        def find(connection: Connection) -> SessionInfo | None:
            row = connection.execute(_FIND_CURRENT, {"key": key_hash(key)}).one_or_none()
            return _read_info(row) if row else None

        found = await self._db.read(find)
        if found is not None:
            return found
        return await self._db.write(lambda c: _read_info(self.open_current(c, key, new_turns=0)))

    async def next_epoch(
        self, key: SessionKey, *, erase_from_prompt: bool
    ) -> tuple[SessionInfo, SessionInfo]:
        """See ports.Store. With `erase_from_prompt` the old session's turns are gone from every later prompt as well."""

        def work(connection: Connection) -> tuple[SessionInfo, SessionInfo]:
            old_id = self.open_current(connection, key, new_turns=0).id
            closing = (
                sa.update(sessions)
                .where(sessions.c.id == old_id)
                .values(is_current=0, erased=int(erase_from_prompt))
            )
            old = connection.execute(closing.returning(sessions)).one()
            if erase_from_prompt:
                erase_memory(connection, old_id)
            fresh = sa.insert(sessions).values(self._fresh(key, epoch=old.epoch + 1))
            return _read_info(old), _read_info(connection.execute(fresh.returning(sessions)).one())

        return await self._db.write(work)

    # -- canonical tokens --------------------------------------------------------------------------------------------
    async def canonical(self, session_id: str) -> Canonical | None:
        """See ports.Store."""

        def find(connection: Connection) -> Canonical | None:
            row = connection.execute(
                sa.select(canonical).where(canonical.c.session_id == session_id)
            ).one_or_none()
            if row is None:
                return None
            return Canonical(
                row.fingerprint,
                row.token_ids,
                row.boundaries,
                row.window_from_turn_no,
                row.covers_turn_no,
            )

        return await self._db.read(find)

    async def save_canonical(self, session_id: str, tokens: Canonical | None) -> None:
        """See ports.Store. A session that /reset has erased takes none: a turn that ends late must not bring it back."""

        def work(connection: Connection) -> None:
            self._put_canonical(connection, session_id, tokens)

        await self._db.write(work)

    def _put_canonical(
        self, connection: Connection, session_id: str, tokens: Canonical | None
    ) -> None:
        connection.execute(sa.delete(canonical).where(canonical.c.session_id == session_id))
        if tokens is None or _is_erased(connection, session_id):
            return
        connection.execute(
            sa.insert(canonical).values(
                session_id=session_id,
                fingerprint=tokens.fingerprint,
                token_ids=tokens.token_ids,
                boundaries=tokens.boundaries,
                window_from_turn_no=tokens.window_from_turn_no,
                covers_turn_no=tokens.covers_turn_no,
                updated_at=self._db.clock(),
            )
        )

    # -- summaries ---------------------------------------------------------------------------------------------------
    async def summary(self, session_id: str) -> Summary | None:
        """See ports.Store."""

        def find(connection: Connection) -> Summary | None:
            row = connection.execute(
                sa.select(summaries).where(summaries.c.session_id == session_id)
            ).one_or_none()
            if row is None:
                return None
            return Summary(
                row.session_id, row.rev, row.covers_turn_no, row.text, row.n_tokens, row.how
            )

        return await self._db.read(find)

    async def save_summary(self, summary: Summary, tokens: Canonical) -> bool:
        """See ports.Store."""

        def work(connection: Connection) -> bool:
            mine = summaries.c.session_id == summary.session_id
            rev = connection.execute(sa.select(summaries.c.rev).where(mine)).scalar()
            if _is_erased(connection, summary.session_id) or (rev or 0) >= summary.rev:
                return False
            connection.execute(sa.delete(summaries).where(mine))
            connection.execute(
                sa.insert(summaries).values(
                    session_id=summary.session_id,
                    rev=summary.rev,
                    covers_turn_no=summary.covers_turn_no,
                    text=summary.text,
                    n_tokens=summary.n_tokens,
                    how=summary.how,
                    created_at=self._db.clock(),
                )
            )
            self._put_canonical(connection, summary.session_id, tokens)
            return True

        return await self._db.write(work)

    # -- chats -------------------------------------------------------------------------------------------------------
    async def chat_policy(self, app_id: str, chat_id: str) -> SessionPolicy | None:
        """See ports.Store."""
        now = time.monotonic()
        known = self._policies.get((app_id, chat_id))
        if known is not None and now - known[0] < _POLICY_FRESH_S:
            return known[1]
        where = sa.and_(chat_settings.c.app_id == app_id, chat_settings.c.chat_id == chat_id)
        found = await self._db.read(
            lambda c: c.execute(sa.select(chat_settings.c.policy).where(where)).scalar()
        )
        policy = SessionPolicy(found) if found else None
        if len(self._policies) >= _POLICIES_KEPT:
            self._policies.clear()
        self._policies[app_id, chat_id] = (now, policy)
        return policy

    async def set_chat_policy(
        self, app_id: str, chat_id: str, policy: SessionPolicy | None
    ) -> None:
        """See ports.Store."""
        try:
            await self._write_chat_policy(app_id, chat_id, policy)
        finally:
            self._policies.pop((app_id, chat_id), None)

    async def _write_chat_policy(
        self, app_id: str, chat_id: str, policy: SessionPolicy | None
    ) -> None:
        where = sa.and_(chat_settings.c.app_id == app_id, chat_settings.c.chat_id == chat_id)
        if policy is None:
            await self._db.write(lambda c: c.execute(sa.delete(chat_settings).where(where)).close())
            return
        values = {
            "app_id": app_id,
            "chat_id": chat_id,
            "policy": policy.value,
            "updated_at": self._db.clock(),
        }
        insert = self._db.insert(chat_settings).values(values)
        upsert = insert.on_conflict_do_update(
            index_elements=["app_id", "chat_id"],
            set_={"policy": insert.excluded.policy, "updated_at": insert.excluded.updated_at},
        )
        await self._db.write(lambda c: c.execute(upsert).close())
