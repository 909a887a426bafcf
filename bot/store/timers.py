"""Reminders and scheduled prompts, and the settings of a single conversation.

Owns the tables timers and session_settings. What a timer makes is stored in the transaction that takes the timer away (or
moves it to its next time): it is neither lost nor made twice, whatever crashes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.records import Acceptance, Accepted, Timer, TimerKind
from bot.domain.types import ChatKind, Sender, SessionKey
from bot.store import turnrows
from bot.store.db import Database
from bot.store.inbox import Inbox
from bot.store.sessions import key_hash
from bot.store.tables import AnyRow, session_settings, sessions, timers


class Timers:
    """Works and queries on timers and settings. Holds no state but the database."""

    def __init__(self, db: Database, inbox: Inbox) -> None:
        self._db = db
        self._inbox = inbox

    # -- timers ------------------------------------------------------------------------------------------------------
    async def add_timer(self, timer: Timer) -> None:
        """See ports.Store."""
        key = timer.session
        values = {
            "key_hash": key_hash(key),
            "app_id": key.app_id,
            "chat_id": key.chat_id,
            "topic_id": key.topic_id,
            "user_id": key.user_id,
            "kind": timer.kind.value,
            "rule": timer.rule,
            "text": timer.text,
            "asker_id": timer.asker.user_id,
            "asker_name": timer.asker.name,
            "chat_kind": timer.chat_kind.value,
            "target": turnrows.write_target(timer.target),
            "due_at": timer.due_at,
            "created_at": self._db.clock(),
            "made_by_turn": timer.made_by_turn,
        }
        add = self._db.insert(timers).values(values).on_conflict_do_nothing()
        await self._db.write(lambda c: c.execute(add).close())

    async def timers_of(self, key: SessionKey) -> list[Timer]:
        """See ports.Store."""
        return await self._find(timers.c.key_hash == key_hash(key), timers.c.id)

    async def due_timers(self, now: datetime, limit: int) -> list[Timer]:
        """See ports.Store."""
        return await self._find(timers.c.due_at <= now, timers.c.due_at, limit)

    async def next_due(self) -> datetime | None:
        """See ports.Store."""
        query = sa.select(timers.c.due_at).order_by(timers.c.due_at).limit(1)
        found: datetime | None = await self._db.read(lambda c: c.execute(query).scalar())
        return found

    async def remove_timer(self, timer_id: int) -> bool:
        """See ports.Store."""
        delete = sa.delete(timers).where(timers.c.id == timer_id)
        return await self._db.write(lambda c: c.execute(delete).rowcount == 1)

    async def fire_timer(
        self, timer: Timer, acceptance: Acceptance | None, next_due: datetime | None
    ) -> Accepted | None:
        """See ports.Store."""
        this = sa.and_(timers.c.id == timer.id, timers.c.due_at == timer.due_at)

        def work(connection: Connection) -> Accepted | None:
            step: Any = (
                sa.delete(timers).where(this)
                if next_due is None
                else sa.update(timers).where(this).values(due_at=next_due)
            )
            if connection.execute(step).rowcount != 1:  # another process was quicker
                return None
            return None if acceptance is None else self._inbox.accept_in(connection, acceptance)

        return await self._db.write(work)

    async def _find(
        self, where: sa.ColumnElement[bool], order: sa.Column[Any], limit: int = 1000
    ) -> list[Timer]:
        query = sa.select(timers).where(where).order_by(order).limit(limit)
        return await self._db.read(lambda c: [_read(row) for row in c.execute(query)])

    # -- settings ----------------------------------------------------------------------------------------------------
    async def session_system(self, key: SessionKey) -> str:
        """See ports.Store."""
        mine = session_settings.c.key_hash == key_hash(key)
        query = sa.select(session_settings.c.system_text).where(mine)
        return await self._db.read(lambda c: c.execute(query).scalar() or "")

    async def set_session_system(self, key: SessionKey, text: str) -> None:
        """See ports.Store."""
        values = {"key_hash": key_hash(key), "system_text": text, "updated_at": self._db.clock()}
        insert = self._db.insert(session_settings).values(values)
        put = insert.on_conflict_do_update(
            index_elements=["key_hash"],
            set_={name: insert.excluded[name] for name in ("system_text", "updated_at")},
        )
        drop = sa.delete(session_settings).where(session_settings.c.key_hash == key_hash(key))
        await self._db.write(lambda c: c.execute(put if text else drop).close())

    async def note_told_from(self, session_id: str, turn_no: int) -> None:
        """See ports.Store."""
        note = sa.update(sessions).where(sessions.c.id == session_id)
        await self._db.write(lambda c: c.execute(note.values(told_from_turn_no=turn_no)).close())


def _read(row: AnyRow) -> Timer:
    return Timer(
        id=row.id,
        kind=TimerKind(row.kind),
        session=SessionKey(row.app_id, row.chat_id, row.topic_id, row.user_id),
        asker=Sender(row.asker_id, row.asker_name),
        chat_kind=ChatKind(row.chat_kind),
        target=turnrows.read_target(row.target),
        text=row.text,
        due_at=row.due_at,
        rule=row.rule,
        made_by_turn=row.made_by_turn,
    )
