"""What was said: past turns for the prompt, and the figures of the whole database.

Reads only, but for the mark that a turn was asked again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.records import PastTurn, StoreFacts
from bot.domain.types import Outcome, TurnKind, TurnState
from bot.store import turnrows
from bot.store.db import Database
from bot.store.tables import answer_tokens, replies, sessions, turns

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
                replies.c.text,
                replies.c.outcome,
                answer_tokens.c.token_ids,
                answer_tokens.c.fingerprint,
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
            found = [
                PastTurn(
                    turn_id=row.id,
                    turn_no=row.turn_no,
                    asker=turnrows.read_sender(row),
                    prompt_text=row.prompt_text or row.question,
                    answer=row.text,
                    outcome=Outcome(row.outcome),
                    answer_token_ids=row.token_ids or (),
                    fingerprint=row.fingerprint or "",
                )
                for row in connection.execute(query)
            ]
            return found[::-1]

        return await self.db.read(find)

    async def mark_replaced(self, turn_id: str) -> None:
        """See ports.Store."""
        mark = sa.update(turns).where(turns.c.id == turn_id).values(replaced=1)
        await self.db.write(lambda c: c.execute(mark).close())

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
