"""What was said: past turns for the prompt, and the figures of the whole database.

Reads only, but for the mark that a turn was asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.records import PastTurn, StoreFacts, Told
from bot.domain.types import Outcome, SessionKey, Turn, TurnKind, TurnState
from bot.store import turnrows
from bot.store.db import Database
from bot.store.sessions import IS_CURRENT, key_hash
from bot.store.tables import AnyRow, answer_tokens, canonical, replies, sessions, turns

_ENDED = [TurnState.DONE.value, TurnState.FAILED.value, TurnState.CANCELLED.value]
# A growing reply has no answer yet; a silent one was taken back by the person who asked.
_NOT_AN_ANSWER = [Outcome.GROWING.value, Outcome.SILENT.value]


def _count(state: str) -> sa.Select[int, datetime | None]:
    # The state is written out, or no partial index would be used and the whole history read.
    return sa.select(sa.func.count(), sa.func.min(turns.c.created_at)).where(
        sa.text(f"turns.state = '{state}'")
    )


def _undelivered(state: str) -> sa.Select[int]:
    return (
        sa.select(sa.func.count())
        .select_from(turns.join(replies, replies.c.turn_id == turns.c.id))
        .where(sa.text(f"turns.state = '{state}'"), replies.c.outcome.not_in(_NOT_AN_ANSWER))
    )


_QUEUED, _RUNNING = _count("queued"), _count("running")
_UNDELIVERED = (_undelivered("queued"), _undelivered("running"))


@dataclass(frozen=True, slots=True)
class History:
    """Queries on what is over. Holds no state but the database."""

    db: Database

    async def past_turns(
        self, session_id: str, *, from_turn_no: int = 0, limit: int = 1000
    ) -> list[PastTurn]:
        """See ports.Store. The newest `limit` of them; none for a session that /reset has erased."""
        query = (
            sa.select(
                turns.c.id,
                turns.c.turn_no,
                turns.c.asker_id,
                turns.c.asker_name,
                turns.c.asker_is_bot,
                turns.c.question,
                turns.c.prompt_text,
                turns.c.continues,
                replies.c.text,
                replies.c.outcome,
                answer_tokens.c.token_ids,
                answer_tokens.c.fingerprint,
                answer_tokens.c.n_question,
            )
            .join(sessions, sessions.c.id == turns.c.session_id)
            .join(replies, replies.c.turn_id == turns.c.id)
            .outerjoin(answer_tokens, answer_tokens.c.turn_id == turns.c.id)
            .where(
                turns.c.session_id == session_id,
                turns.c.turn_no >= from_turn_no,
                turns.c.kind == TurnKind.CHAT.value,
                turns.c.state.in_(_ENDED),
                turns.c.replaced == 0,
                sessions.c.erased == 0,
                replies.c.outcome.not_in(_NOT_AN_ANSWER),
                replies.c.text != "",
            )
            .order_by(turns.c.turn_no.desc())
            .limit(limit)
        )

        def find(connection: Connection) -> list[PastTurn]:
            return _joined(connection.execute(query).all()[::-1])

        return await self.db.read(find)

    async def told(self, key: SessionKey, limit: int) -> list[Told]:
        """See ports.Store."""
        query = (
            sa.select(
                turns.c.turn_no,
                turns.c.asker_id,
                turns.c.asker_name,
                turns.c.asker_is_bot,
                turns.c.question,
                turns.c.created_at,
                sessions.c.is_current,
                replies.c.text,
                replies.c.outcome,
            )
            .join(sessions, sessions.c.id == turns.c.session_id)
            .join(replies, replies.c.turn_id == turns.c.id)
            .where(
                sessions.c.key_hash == key_hash(key),
                sessions.c.erased == 0,
                turns.c.kind == TurnKind.CHAT.value,
                turns.c.state.in_(_ENDED),
                turns.c.replaced == 0,
                replies.c.outcome.not_in(_NOT_AN_ANSWER),
                replies.c.text != "",
            )
            # In the order of two indexes: newest first without reading and sorting years of talk.
            .order_by(sessions.c.epoch.desc(), turns.c.turn_no.desc())
            .limit(limit)
        )

        def find(connection: Connection) -> list[Told]:
            return [
                Told(
                    turn_no=row.turn_no,
                    is_current=bool(row.is_current),
                    asker=turnrows.read_sender(row),
                    question=row.question,
                    answer=row.text,
                    outcome=Outcome(row.outcome),
                    asked_at=row.created_at,
                )
                for row in connection.execute(query).all()[::-1]
            ]

        return await self.db.read(find)

    async def n_asked(self, app_id: str, user_id: str, since: datetime) -> int:
        """See ports.Store."""
        count = (
            sa.select(sa.func.count())
            .select_from(turns)
            .join(sessions, sessions.c.id == turns.c.session_id)
            .where(
                turns.c.asker_id == user_id,
                turns.c.created_at >= since,
                turns.c.kind == TurnKind.CHAT.value,
                sessions.c.app_id == app_id,
            )
        )
        return await self.db.read(lambda c: c.execute(count).scalar_one())

    async def long_conversations(self, n_tokens: int, limit: int) -> list[Turn]:
        """See ports.Store. Told by the length of the stored list alone: the turns of the others are not looked at."""
        newest = (
            sa.select(turns.c.seq)
            .where(
                turns.c.session_id == canonical.c.session_id, turns.c.kind == TurnKind.CHAT.value
            )
            .order_by(turns.c.turn_no.desc())
            .limit(1)
            .scalar_subquery()
        )
        long = (
            sa.select(newest)
            .select_from(canonical)
            .join(sessions, sessions.c.id == canonical.c.session_id)
            .where(
                IS_CURRENT,
                sa.func.length(canonical.c.token_ids, type_=sa.Integer) >= 4 * n_tokens,
            )
            .order_by(canonical.c.updated_at.desc())
            .limit(limit)
        )

        def find(connection: Connection) -> list[Turn]:
            found = [seq for seq in connection.execute(long).scalars() if seq is not None]
            return turnrows.load(connection, turns.c.seq.in_(found))

        return await self.db.read(find)

    async def mark_replaced(self, turn_id: str) -> None:
        """See ports.Store. What goes on with the turn's answer goes with it."""

        def work(connection: Connection) -> None:
            ids = [turn_id]
            while ids:
                mark = sa.update(turns).where(turns.c.id.in_(ids)).values(replaced=1)
                connection.execute(mark)
                following = sa.select(turns.c.id).where(
                    turns.c.continues.in_(ids), turns.c.replaced == 0
                )
                ids = list(connection.execute(following).scalars())

        await self.db.write(work)

    async def facts(self) -> StoreFacts:
        """See ports.Store. `replies_undelivered`: final replies whose turn has not ended, since it ends when they are out."""

        def find(connection: Connection) -> StoreFacts:
            queued, oldest = connection.execute(_QUEUED).one()
            running, _ = connection.execute(_RUNNING).one()
            undelivered = sum(connection.execute(query).scalar_one() for query in _UNDELIVERED)
            age_s = 0.0 if oldest is None else (self.db.clock() - oldest).total_seconds()
            return StoreFacts(
                turns_queued=queued,
                turns_running=running,
                replies_undelivered=undelivered,
                database_bytes=self._bytes(connection),
                oldest_queued_age_s=max(0.0, age_s),
                extra=self._extra(),
            )

        return await self.db.read(find)

    def _bytes(self, connection: Connection) -> int:
        if self.db.place.is_sqlite:
            pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
            return int(connection.exec_driver_sql(pages).scalar_one())
        return int(
            connection.execute(
                sa.select(sa.func.pg_database_size(sa.func.current_database()))
            ).scalar_one()
        )

    def _extra(self) -> dict[str, str]:
        figures = self.db.figures
        return {
            "database": "sqlite" if self.db.place.is_sqlite else "postgresql",
            "writes": str(figures.writes),
            "commits": str(figures.commits),
            "largest_group": str(figures.largest_group),
            "failed_groups": str(figures.failed_groups),
        }


def _joined(rows: Sequence[AnyRow]) -> list[PastTurn]:
    """Rows, oldest first, as past turns; an answer that went on from its ids in the very next turn is one answer.

    Such a continuation has no prompt of its own. One that was asked for in words has, and is a turn like any other.
    """
    found: list[PastTurn] = []
    for row in rows:
        part = PastTurn(
            turn_id=row.id,
            turn_no=row.turn_no,
            asker=turnrows.read_sender(row),
            prompt_text=row.prompt_text or row.question,
            answer=row.text,
            outcome=Outcome(row.outcome),
            answer_token_ids=row.token_ids or (),
            fingerprint=row.fingerprint or "",
            n_question=row.n_question or 0,
        )
        goes_on = row.continues and not row.prompt_text
        if goes_on and found and found[-1].last_turn_id == row.continues:
            found[-1] = _with(found[-1], part)
        else:
            found.append(part)
    return found


def _with(begun: PastTurn, part: PastTurn) -> PastTurn:
    """A cut answer with what was added to it; its ids are known only where those of both are one model's."""
    same = (
        begun.fingerprint == part.fingerprint and begun.answer_token_ids and part.answer_token_ids
    )
    return replace(
        begun,
        answer=begun.answer + part.answer,
        outcome=part.outcome,
        answer_token_ids=(*begun.answer_token_ids, *part.answer_token_ids) if same else (),
        fingerprint=begun.fingerprint if same else "",
        n_question=begun.n_question if same else 0,
        through_turn_no=part.turn_no,
        more_turn_ids=(*begun.more_turn_ids, part.turn_id),
    )
