"""Files that people sent, as text: kept once per conversation in pieces, erased with its memory.

Owns documents and document_pieces. A file that could not be read is kept as well, without pieces, so that it is not fetched
again only to fail again.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.documents import Document, DocumentState, Piece
from bot.domain.types import Turn
from bot.store.db import Database
from bot.store.tables import AnyRow, document_pieces, sessions, turns
from bot.store.tables import documents as table

_OF_SESSION = (
    sa.select(table)
    .join(sessions, sessions.c.id == table.c.session_id)
    .where(table.c.session_id == sa.bindparam("session_id"), sessions.c.erased == 0)
    .order_by(table.c.id)
)
# A forgotten turn has lost its words and attachments: what it still reads is not kept.
_MAY_KEEP = (
    sa.select(turns.c.id)
    .join(sessions, sessions.c.id == turns.c.session_id)
    .where(
        turns.c.id == sa.bindparam("turn_id"),
        sa.or_(turns.c.question != "", turns.c.attachments != "[]", turns.c.quotes != "[]"),
        sessions.c.erased == 0,
    )
)


class Documents:
    """Queries and works on documents. Holds no state but the database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def save_document(
        self, turn: Turn, document: Document, pieces: Sequence[Piece]
    ) -> Document:
        """See ports.Store."""

        def work(connection: Connection) -> Document:
            if connection.execute(_MAY_KEEP, {"turn_id": turn.id}).first() is None:
                return document
            add = self._db.insert(table).values(
                session_id=turn.session_id,
                source=document.source,
                turn_id=turn.id,
                turn_no=document.turn_no,
                name=document.name,
                state=document.state.value,
                n_pages=document.n_pages,
                n_chars=document.n_chars,
                n_pieces=len(pieces),
                is_cut=int(document.is_cut),
                created_at=self._db.clock(),
            )
            once = add.on_conflict_do_nothing(index_elements=["session_id", "source"])
            row = connection.execute(once.returning(table)).one_or_none()
            if row is None:  # another turn was quicker
                return _find(connection, turn.session_id, document.source) or document
            values = [
                {
                    "document_id": row.id,
                    "n": piece.n,
                    "start_chars": piece.start_chars,
                    "page": piece.page,
                    "text": piece.text,
                }
                for piece in pieces
            ]
            if values:
                connection.execute(sa.insert(document_pieces), values)
            return _read(row)

        return await self._db.write(work)

    async def document(self, session_id: str, source: str) -> Document | None:
        """See ports.Store."""
        return await self._db.read(lambda c: _find(c, session_id, source))

    async def documents(self, session_id: str) -> list[Document]:
        """See ports.Store."""
        return await self._db.read(
            lambda c: [_read(row) for row in c.execute(_OF_SESSION, {"session_id": session_id})]
        )

    async def document_pieces(self, document_id: int) -> list[Piece]:
        """See ports.Store."""
        of_document = (
            sa.select(document_pieces)
            .where(document_pieces.c.document_id == document_id)
            .order_by(document_pieces.c.n)
        )
        return await self._db.read(
            lambda c: [
                Piece(row.n, row.start_chars, row.page, row.text) for row in c.execute(of_document)
            ]
        )


def erase_session(connection: Connection, session_id: str) -> None:
    """All documents of a session, rows and all."""
    _erase(connection, table.c.session_id == session_id)


def erase_turns(connection: Connection, turn_ids: sa.Select[str]) -> None:
    """The documents that came with these turns, rows and all."""
    _erase(connection, table.c.turn_id.in_(turn_ids))


def _erase(connection: Connection, which: sa.ColumnElement[bool]) -> None:
    ids = sa.select(table.c.id).where(which)
    connection.execute(sa.delete(document_pieces).where(document_pieces.c.document_id.in_(ids)))
    connection.execute(sa.delete(table).where(which))


def _find(connection: Connection, session_id: str, source: str) -> Document | None:
    this = _OF_SESSION.where(table.c.source == source)
    row = connection.execute(this, {"session_id": session_id}).one_or_none()
    return None if row is None else _read(row)


def _read(row: AnyRow) -> Document:
    return Document(
        source=row.source,
        name=row.name,
        state=DocumentState(row.state),
        turn_no=row.turn_no,
        n_pages=row.n_pages,
        n_chars=row.n_chars,
        n_pieces=row.n_pieces,
        is_cut=bool(row.is_cut),
        id=row.id,
    )
