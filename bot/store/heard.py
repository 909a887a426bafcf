"""What was said in groups that are listened to; kept for a time, never of people who do not want it.

Owns the tables heard, heard_chats (groups that were told of it) and heard_not (people of whom nothing is kept).
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.listening import Heard
from bot.domain.records import Acceptance
from bot.domain.types import Sender
from bot.store.db import Database
from bot.store.inbox import Inbox
from bot.store.tables import heard, heard_chats, heard_not, sessions, turns


def _here(app_id: str, chat_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(heard.c.app_id == app_id, heard.c.chat_id == chat_id)


class HeardTalk:
    """Works and queries on what was heard. Holds no state but the database."""

    def __init__(self, db: Database, inbox: Inbox) -> None:
        self._db = db
        self._inbox = inbox

    async def hear(self, app_id: str, chat_id: str, said: Heard, keep: int) -> bool:
        """See ports.Store."""
        values = {
            "app_id": app_id,
            "chat_id": chat_id,
            "message_id": said.message_id,
            "user_id": said.sender.user_id,
            "user_name": said.sender.name,
            "text": said.text,
            "said_at": said.said_at,
        }
        add = self._db.insert(heard).values(values).on_conflict_do_nothing().returning(heard.c.id)
        excluded = sa.select(heard_not.c.since).where(
            heard_not.c.app_id == app_id, heard_not.c.user_id == said.sender.user_id
        )
        here = _here(app_id, chat_id)
        oldest_kept = (
            sa.select(heard.c.id).where(here).order_by(heard.c.id.desc()).offset(keep - 1).limit(1)
        )

        def work(connection: Connection) -> bool:
            if connection.execute(excluded).first() is not None:
                return False
            if connection.execute(add).first() is None:
                return False
            oldest = connection.execute(oldest_kept).scalar()
            if oldest is not None:
                connection.execute(sa.delete(heard).where(here, heard.c.id < oldest))
            return True

        return await self._db.write(work)

    async def heard(self, app_id: str, chat_id: str, after: datetime, limit: int) -> list[Heard]:
        """See ports.Store."""
        query = (
            sa.select(heard)
            .where(_here(app_id, chat_id), heard.c.said_at > after)
            .order_by(heard.c.said_at.desc(), heard.c.id.desc())
            .limit(limit)
        )

        def find(connection: Connection) -> list[Heard]:
            return [
                Heard(row.message_id, Sender(row.user_id, row.user_name), row.text, row.said_at)
                for row in connection.execute(query).all()[::-1]
            ]

        return await self._db.read(find)

    async def last_said(
        self, app_id: str, chat_id: str, user_id: str, before: datetime
    ) -> datetime | None:
        """See ports.Store."""
        overheard = sa.select(sa.func.max(heard.c.said_at, type_=heard.c.said_at.type)).where(
            _here(app_id, chat_id), heard.c.user_id == user_id, heard.c.said_at < before
        )
        asked = (
            sa.select(sa.func.max(turns.c.created_at, type_=turns.c.created_at.type))
            .join(sessions, sessions.c.id == turns.c.session_id)
            .where(
                sessions.c.app_id == app_id,
                sessions.c.chat_id == chat_id,
                turns.c.asker_id == user_id,
                turns.c.created_at < before,
            )
        )

        def find(connection: Connection) -> datetime | None:
            found = [connection.execute(query).scalar() for query in (overheard, asked)]
            return max((moment for moment in found if moment is not None), default=None)

        return await self._db.read(find)

    # -- what goes ---------------------------------------------------------------------------------------------------
    async def unhear(
        self, app_id: str, *, chat_id: str = "", message_id: str = "", user_id: str = ""
    ) -> int:
        """See ports.Store."""
        which = [heard.c.app_id == app_id]
        if chat_id:
            which.append(heard.c.chat_id == chat_id)
        if message_id:
            which.append(heard.c.message_id == message_id)
        if user_id:
            which.append(heard.c.user_id == user_id)
        return await self._delete(sa.and_(*which))

    async def prune_heard(self, before: datetime) -> int:
        """See ports.Store."""
        return await self._delete(heard.c.said_at < before)

    async def _delete(self, which: sa.ColumnElement[bool]) -> int:
        def work(connection: Connection) -> int:
            self._shred(connection)
            return connection.execute(sa.delete(heard).where(which)).rowcount

        return await self._db.write(work)

    def _shred(self, connection: Connection) -> None:
        """SQLite: what is deleted is overwritten, not only unlinked."""
        if self._db.place.is_sqlite:
            connection.exec_driver_sql("PRAGMA secure_delete = ON").close()

    # -- people and groups -------------------------------------------------------------------------------------------
    async def exclude(self, app_id: str, user_id: str, *, excluded: bool) -> int:
        """See ports.Store."""
        mine = sa.and_(heard_not.c.app_id == app_id, heard_not.c.user_id == user_id)
        values = {"app_id": app_id, "user_id": user_id, "since": self._db.clock()}
        add = self._db.insert(heard_not).values(values).on_conflict_do_nothing()

        def work(connection: Connection) -> int:
            if not excluded:
                connection.execute(sa.delete(heard_not).where(mine))
                return 0
            self._shred(connection)
            connection.execute(add)
            theirs = sa.and_(heard.c.app_id == app_id, heard.c.user_id == user_id)
            return connection.execute(sa.delete(heard).where(theirs)).rowcount

        return await self._db.write(work)

    async def people_heard(self) -> list[tuple[str, str]]:
        """See ports.Store."""
        query = sa.select(heard.c.app_id, heard.c.user_id).distinct()
        return await self._db.read(
            lambda c: [(row.app_id, row.user_id) for row in c.execute(query)]
        )

    async def begin_listening(self, app_id: str, chat_id: str, told: Acceptance) -> bool:
        """See ports.Store."""
        values = {"app_id": app_id, "chat_id": chat_id, "told_at": self._db.clock()}
        add = (
            self._db.insert(heard_chats)
            .values(values)
            .on_conflict_do_nothing()
            .returning(heard_chats.c.told_at)
        )

        def work(connection: Connection) -> bool:
            if connection.execute(add).first() is None:
                return False
            self._inbox.accept_in(connection, told)
            return True

        return await self._db.write(work)

    async def chats_heard(self) -> list[tuple[str, str]]:
        """See ports.Store."""
        query = sa.select(heard_chats.c.app_id, heard_chats.c.chat_id)
        return await self._db.read(
            lambda c: [(row.app_id, row.chat_id) for row in c.execute(query)]
        )

    async def end_listening(self, app_id: str, chat_id: str) -> None:
        """See ports.Store."""
        chat = sa.and_(heard_chats.c.app_id == app_id, heard_chats.c.chat_id == chat_id)

        def work(connection: Connection) -> None:
            self._shred(connection)
            connection.execute(sa.delete(heard).where(_here(app_id, chat_id)))
            connection.execute(sa.delete(heard_chats).where(chat))

        await self._db.write(work)
