"""What the parts of a long text came to, while its summary is being made: gone with the turn's end.

Owns digest_parts, and what becomes of a turn's number when it ends behind later ones.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.digest import DigestPart
from bot.domain.types import Lane
from bot.store.db import Database
from bot.store.tables import digest_parts as table
from bot.store.tables import sessions, turns

_OF_TURN = sa.select(table).where(table.c.turn_id == sa.bindparam("of")).order_by(table.c.n)
# Of a conversation that was erased meanwhile, nothing more is kept.
_MAY_KEEP = (
    sa.select(turns.c.id)
    .join(sessions, sessions.c.id == turns.c.session_id)
    .where(
        turns.c.id == sa.bindparam("of"),
        turns.c.question != "",
        sa.text("turns.state = 'running'"),
        sessions.c.erased == 0,
    )
)
_LAST_NO = (
    sa.select(sessions.c.id, sessions.c.last_turn_no)
    .join(turns, turns.c.session_id == sessions.c.id)
    .where(
        turns.c.id == sa.bindparam("of"),
        turns.c.lane == Lane.BACKGROUND.value,
        turns.c.turn_no < sessions.c.last_turn_no,
    )
    .with_for_update(of=sessions)
)


class Digests:
    """Queries and works on parts. Holds no state but the database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def digest_parts(self, turn_id: str) -> list[DigestPart]:
        """See ports.Store."""
        rows = await self._db.read(lambda c: c.execute(_OF_TURN, {"of": turn_id}).all())
        return [
            DigestPart(row.n, row.document_id, row.start, row.end, row.text, row.how)
            for row in rows
        ]

    async def save_digest_part(self, turn_id: str, part: DigestPart) -> None:
        """See ports.Store."""
        put = self._db.insert(table).values(
            turn_id=turn_id,
            n=part.n,
            document_id=part.document_id,
            start=part.start,
            end=part.end,
            text=part.text,
            how=part.how,
        )
        once = put.on_conflict_do_nothing(index_elements=["turn_id", "n"])

        def work(connection: Connection) -> None:
            if connection.execute(_MAY_KEEP, {"of": turn_id}).first() is not None:
                connection.execute(once)

        await self._db.write(work)


def finish(connection: Connection, turn_id: str) -> None:
    """A turn ends: its parts go. One of the background that ends behind later turns is the newest of the talk now.

    Everything that follows a talk by its turns' numbers (summaries, the index, the prompt's window) has passed the old one.
    """
    erase_turns(connection, turn_id)
    late = connection.execute(_LAST_NO, {"of": turn_id}).one_or_none()
    if late is None:
        return
    newest = late.last_turn_no + 1
    connection.execute(
        sa.update(sessions).where(sessions.c.id == late.id).values(last_turn_no=newest)
    )
    connection.execute(sa.update(turns).where(turns.c.id == turn_id).values(turn_no=newest))


def erase_turns(connection: Connection, which: sa.Select[str] | str) -> None:
    """The parts of some turns' texts."""
    mine = table.c.turn_id == which if isinstance(which, str) else table.c.turn_id.in_(which)
    connection.execute(sa.delete(table).where(mine))
