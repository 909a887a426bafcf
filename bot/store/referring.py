"""What an earlier message said that somebody refers to by its id: one of ours, or a question to us. Reads only."""

from __future__ import annotations

import json
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.types import Turn, TurnKind
from bot.store.db import Database
from bot.store.tables import inbound, replies, reply_parts, sessions, turns


@dataclass(frozen=True, slots=True)
class Referring:
    """Queries by the ids of platforms' messages. Holds no state but the database."""

    db: Database

    async def said_in(self, app_id: str, chat_id: str, message_id: str) -> str:
        """See ports.Store."""
        here = sa.and_(
            sessions.c.app_id == app_id, sessions.c.chat_id == chat_id, sessions.c.erased == 0
        )
        # Negative parts are signs of life, which stand on the question.
        answer = (
            sa.select(
                replies.c.text, reply_parts.c.covers_from_chars, reply_parts.c.covers_to_chars
            )
            .join(turns, turns.c.id == reply_parts.c.turn_id)
            .join(replies, replies.c.turn_id == turns.c.id)
            .join(sessions, sessions.c.id == turns.c.session_id)
            .where(reply_parts.c.message_id == message_id, reply_parts.c.n >= 0, here)
            .limit(1)
        )
        question = (
            sa.select(turns.c.question)
            .join(inbound, inbound.c.turn_id == turns.c.id)
            .join(sessions, sessions.c.id == turns.c.session_id)
            .where(inbound.c.app_id == app_id, inbound.c.message_id == message_id, here)
            .limit(1)
        )

        def find(connection: Connection) -> str:
            row = connection.execute(answer).one_or_none()
            if row is not None:
                part = row.text[row.covers_from_chars : row.covers_to_chars]
                return str(part or row.text)
            return connection.execute(question).scalar() or ""

        return await self.db.read(find) if message_id else ""

    async def knows_message(self, turn: Turn, message_id: str) -> bool:
        """See ports.Store."""
        asked = sa.exists().where(
            inbound.c.turn_id == turns.c.id, inbound.c.message_id == message_id
        )
        quoted = turns.c.quotes.contains(json.dumps(message_id), autoescape=True)
        query = (
            sa.select(turns.c.id)
            .where(
                turns.c.session_id == turn.session_id,
                turns.c.turn_no < turn.turn_no,
                turns.c.kind == TurnKind.CHAT.value,
                sa.or_(asked, quoted),
            )
            .limit(1)
        )
        return await self.db.read(lambda c: c.execute(query).first() is not None)
