"""What makes stored words go: /forget, /forget last, and retention. Ids and dedupe hashes stay where their rows stay.

A session that /forget ended is marked `erased = 2` (1 is /reset's: its words stay on record), so that what a turn that ran
at that moment still writes can be erased after it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.records import Erased
from bot.domain.types import SessionKey, TurnKind, TurnState
from bot.store import digests, documents, search
from bot.store.db import Database
from bot.store.place import say
from bot.store.sessions import erase_memory, key_hash
from bot.store.tables import (
    answer_tokens,
    canonical,
    inbound,
    replies,
    reply_parts,
    session_settings,
    sessions,
    summaries,
    timers,
    turns,
)

FORGOTTEN = 2
# So long others may have to wait for the log to be emptied, and that for them.
_LOG_WAIT_S = 1.0
# Turns whose words go in one transaction.
_AT_ONCE = 200
_ENDED = [TurnState.DONE.value, TurnState.FAILED.value, TurnState.CANCELLED.value]
_NO_WORDS: dict[str, Any] = {
    "question": "",
    "prompt_text": "",
    "asker_name": "",
    "attachments": "[]",
    "quotes": "[]",
    "error": "",
    "replaced": 1,
}
_NO_ANSWER: dict[str, Any] = {"text": "", "token_ids": (), "notice": ""}


class Erasing:
    """Works that erase. Holds no state but the database."""

    def __init__(self, db: Database) -> None:
        self._db = db
        # Whether the index's file may hold erased words: after a start nobody knows.
        self._must_rewrite = True

    async def forget_session(self, key: SessionKey, *, but_turn: str) -> list[Erased]:
        """See ports.Store. Nothing is shown from the first transaction on; the words of a long talk take several, between
        which others write."""
        mine = sa.and_(
            sessions.c.key_hash == key_hash(key),
            sessions.c.epoch <= key.epoch,
            sessions.c.is_current == 0,
        )

        def work(connection: Connection) -> list[Erased]:
            self._shred(connection)
            found = connection.execute(
                sa.select(sessions.c.id, summaries.c.rev)
                .outerjoin(summaries, summaries.c.session_id == sessions.c.id)
                .where(mine)
            ).all()
            ids = [row.id for row in found]
            connection.execute(
                sa.update(sessions).where(mine).values(erased=FORGOTTEN, noted_date="")
            )
            for session_id in ids:
                erase_memory(connection, session_id)
            for table in (session_settings, timers):
                connection.execute(sa.delete(table).where(table.c.key_hash == key_hash(key)))
            return [Erased(row.id, row.rev or 0) for row in found]

        erased = await self._db.write(work)
        for one in erased:
            await self._forget_words(one.session_id, but_turn)
        self._must_rewrite = True
        return erased

    async def _forget_words(self, session_id: str, but_turn: str) -> None:
        of_session = (
            sa.select(turns.c.id)
            .where(turns.c.session_id == session_id, turns.c.id != but_turn)
            .order_by(turns.c.turn_no)
        )
        ids = await self._db.read(lambda c: list(c.execute(of_session).scalars()))
        for start in range(0, len(ids), _AT_ONCE):
            await self._db.write(partial(self._erase_ids, ids[start : start + _AT_ONCE]))

    def _erase_ids(self, ids: Sequence[str], connection: Connection) -> None:
        self._shred(connection)
        _erase_words(connection, turns.c.id.in_(ids))

    async def forget_turns(
        self, session_id: str, *, from_turn_no: int, before_turn_no: int, asker_id: str | None
    ) -> Erased:
        """See ports.Store."""
        which = sa.and_(
            turns.c.session_id == session_id,
            turns.c.turn_no >= from_turn_no,
            turns.c.turn_no < before_turn_no,
            turns.c.state.in_(_ENDED),
        )
        if asker_id is not None:
            # Answers to commands may repeat what was said: they go, whoever gave them.
            which = sa.and_(
                which,
                sa.or_(turns.c.asker_id == asker_id, turns.c.kind != TurnKind.CHAT.value),
            )

        def work(connection: Connection) -> Erased:
            self._shred(connection)
            _erase_words(connection, which)
            reaches, rev = _renew_summary(connection, session_id, from_turn_no, self._db.clock())
            window: dict[str, Any] = {"token_ids": (), "boundaries": (), "covers_turn_no": 0}
            if reaches:
                window["window_from_turn_no"] = 0
            connection.execute(
                sa.update(canonical).where(canonical.c.session_id == session_id).values(window)
            )
            search.erase(connection, session_id, from_turn_no=from_turn_no)
            return Erased(session_id, rev)

        self._must_rewrite = True
        return await self._db.write(work)

    async def erased_sessions(self, limit: int) -> list[Erased]:
        """See ports.Store."""
        newest = (
            sa.select(sessions.c.id, summaries.c.rev)
            .outerjoin(summaries, summaries.c.session_id == sessions.c.id)
            .where(sessions.c.erased > 0)
            .order_by(sessions.c.created_at.desc())
            .limit(limit)
        )
        return await self._db.read(
            lambda c: [Erased(row.id, row.rev or 0) for row in c.execute(newest)]
        )

    async def erase_leftovers(self) -> int:
        """See ports.Store."""
        forgotten = sa.select(sessions.c.id).where(sessions.c.erased == FORGOTTEN)
        late = (
            sa.select(turns.c.id)
            .join(replies, replies.c.turn_id == turns.c.id)
            .where(
                turns.c.session_id.in_(forgotten),
                turns.c.state.in_(_ENDED),
                sa.or_(
                    turns.c.question != "",
                    turns.c.prompt_text != "",
                    replies.c.text != "",
                    sa.exists().where(answer_tokens.c.turn_id == turns.c.id),
                ),
            )
        )
        ids = await self._db.read(lambda c: list(c.execute(late).scalars()))
        for start in range(0, len(ids), _AT_ONCE):
            await self._db.write(partial(self._erase_ids, ids[start : start + _AT_ONCE]))
        return len(ids)

    async def empty_log(self) -> bool:
        """See ports.Store. SQLite's log keeps old pages until they happen to be overwritten, its index old words."""
        path = self._db.place.path
        if path is None:
            return True
        if self._must_rewrite:
            self._must_rewrite = False
            try:
                await search.rewrite(self._db)
            except BaseException:
                self._must_rewrite = True
                raise
        try:
            return await asyncio.to_thread(_empty_log, path)
        except sqlite3.Error as error:
            raise say(self._db.place, error) from error

    async def delete_older(self, before: datetime, limit: int) -> list[Erased]:
        """See ports.Store."""
        newest = (
            sa.select(turns.c.created_at)
            .where(turns.c.session_id == sessions.c.id)
            .order_by(turns.c.turn_no.desc())
            .limit(1)
            .scalar_subquery()
        )
        other = sessions.alias("other")
        is_last_of_key = ~sa.exists().where(
            other.c.key_hash == sessions.c.key_hash, other.c.id != sessions.c.id
        )
        waiting = sa.exists().where(
            turns.c.session_id == sessions.c.id,
            sa.or_(sa.text("turns.state = 'queued'"), sa.text("turns.state = 'running'")),
        )
        # The newest epoch of a key goes last: the next message would begin at an epoch that still exists.
        old = (
            sa.select(sessions.c.id, sessions.c.key_hash, sessions.c.is_current, summaries.c.rev)
            .outerjoin(summaries, summaries.c.session_id == sessions.c.id)
            .where(
                sa.func.coalesce(newest, sessions.c.created_at) < before,
                ~waiting,
                sa.or_(sessions.c.is_current == 0, is_last_of_key),
            )
            .order_by(sessions.c.created_at)
            .limit(limit)
        )

        def work(connection: Connection) -> list[Erased]:
            self._shred(connection)
            found = connection.execute(old).all()
            for row in found:
                _delete_session(connection, row.id)
                if row.is_current:
                    connection.execute(
                        sa.delete(session_settings).where(
                            session_settings.c.key_hash == row.key_hash
                        )
                    )
            return [Erased(row.id, row.rev or 0) for row in found]

        self._must_rewrite = True
        return await self._db.write(work)

    def _shred(self, connection: Connection) -> None:
        """SQLite: what is deleted is overwritten, not only unlinked."""
        if self._db.place.is_sqlite:
            connection.exec_driver_sql("PRAGMA secure_delete = ON").close()


def _empty_log(path: Path) -> bool:
    connection = sqlite3.connect(path, timeout=_LOG_WAIT_S, isolation_level=None)
    try:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.close()
    return not busy


def _erase_words(connection: Connection, which: sa.ColumnElement[bool]) -> None:
    ids = sa.select(turns.c.id).where(which)
    documents.erase_turns(connection, ids)
    digests.erase_turns(connection, ids)
    connection.execute(sa.delete(answer_tokens).where(answer_tokens.c.turn_id.in_(ids)))
    connection.execute(sa.update(replies).where(replies.c.turn_id.in_(ids)).values(_NO_ANSWER))
    connection.execute(sa.update(turns).where(which).values(_NO_WORDS))


def _delete_session(connection: Connection, session_id: str) -> None:
    erase_memory(connection, session_id)
    connection.execute(sa.delete(summaries).where(summaries.c.session_id == session_id))
    ids = sa.select(turns.c.id).where(turns.c.session_id == session_id)
    digests.erase_turns(connection, ids)
    for table in (answer_tokens, reply_parts, replies, inbound):
        connection.execute(sa.delete(table).where(table.c.turn_id.in_(ids)))
    connection.execute(sa.delete(turns).where(turns.c.session_id == session_id))
    connection.execute(sa.delete(sessions).where(sessions.c.id == session_id))


def _renew_summary(
    connection: Connection, session_id: str, from_turn_no: int, now: datetime
) -> tuple[bool, int]:
    """Void a summary that may tell of turns from `from_turn_no` on, and the one that may just be written: its rev is taken.

    Returns whether there was one that may, and the rev before. The turns that it stood for come back as they were said, to
    be cut or compressed anew.
    """
    mine = summaries.c.session_id == session_id
    old = connection.execute(sa.select(summaries).where(mine)).one_or_none()
    rev = old.rev if old is not None else 0
    reaches = old is not None and old.covers_turn_no >= from_turn_no
    fresh: dict[str, Any] = {"rev": rev + 2}
    if old is None or reaches:
        fresh |= {"covers_turn_no": 0, "text": "", "n_tokens": 0, "how": "extract"}
    if old is None:
        fresh |= {"session_id": session_id, "created_at": now}
        connection.execute(sa.insert(summaries).values(fresh))
    else:
        connection.execute(sa.update(summaries).where(mine).values(fresh))
    return reaches, rev
