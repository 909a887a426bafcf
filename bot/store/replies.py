"""Replies as they grow: snapshots, the messages that show them, and the answer's own token ids.

Owns the tables replies, reply_parts and answer_tokens. "Disk is never behind the screen" is kept by the caller, who
commits here before it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.types import Outcome, PartState, ReplyPart, Snapshot
from bot.store.db import Database
from bot.store.tables import answer_tokens, replies, reply_parts

_PART_KEY = ("turn_id", "n")


@dataclass(frozen=True, slots=True)
class Replies:
    """Works and queries on replies. Holds no state but the database."""

    db: Database

    async def reply(self, turn_id: str) -> tuple[Snapshot | None, tuple[ReplyPart, ...]]:
        """See ports.Store."""

        def find(connection: Connection) -> tuple[Snapshot | None, tuple[ReplyPart, ...]]:
            row = connection.execute(
                sa.select(replies).where(replies.c.turn_id == turn_id)
            ).one_or_none()
            snapshot = (
                None
                if row is None
                else Snapshot(row.rev, row.text, row.token_ids, Outcome(row.outcome), row.notice)
            )
            rows = connection.execute(
                sa.select(reply_parts)
                .where(reply_parts.c.turn_id == turn_id)
                .order_by(reply_parts.c.n)
            ).mappings()
            return snapshot, tuple(
                ReplyPart(**{**part, "state": PartState(part["state"])}) for part in rows
            )

        return await self.db.read(find)

    async def save_reply(
        self, turn_id: str, snapshot: Snapshot | None, part: ReplyPart | None
    ) -> None:
        """See ports.Store. One statement for each of the two. Raises ValueError for a part of another turn."""
        if part is not None and part.turn_id != turn_id:
            raise ValueError(f"the part belongs to turn {part.turn_id}, not {turn_id}")
        statements = []
        if snapshot is not None:
            statements.append(self._put_snapshot(turn_id, snapshot))
        if part is not None:
            statements.append(self._put_part(part))

        def work(connection: Connection) -> None:
            for statement in statements:
                connection.execute(statement)

        if statements:
            await self.db.write(work)

    def _put_snapshot(self, turn_id: str, snapshot: Snapshot) -> sa.Executable:
        insert = self.db.insert(replies).values(
            turn_id=turn_id,
            rev=snapshot.rev,
            text=snapshot.text,
            token_ids=snapshot.token_ids,
            outcome=snapshot.outcome.value,
            notice=snapshot.notice,
            updated_at=self.db.clock(),
        )
        new = insert.excluded
        statement: sa.Executable = insert.on_conflict_do_update(
            index_elements=["turn_id"],
            set_={
                name: new[name]
                for name in ("rev", "text", "token_ids", "outcome", "notice", "updated_at")
            },
            where=new.rev > replies.c.rev,
        )
        return statement

    def _put_part(self, part: ReplyPart) -> sa.Executable:
        insert = self.db.insert(reply_parts).values({**asdict(part), "state": part.state.value})
        changed = {
            column.name: insert.excluded[column.name]
            for column in reply_parts.c
            if column.name not in _PART_KEY
        }
        statement: sa.Executable = insert.on_conflict_do_update(
            index_elements=list(_PART_KEY), set_=changed
        )
        return statement

    async def save_answer_tokens(
        self, turn_id: str, fingerprint: str, answer_token_ids: Sequence[int]
    ) -> None:
        """See ports.Store."""
        insert = self.db.insert(answer_tokens).values(
            turn_id=turn_id, fingerprint=fingerprint, token_ids=tuple(answer_token_ids)
        )
        upsert = insert.on_conflict_do_update(
            index_elements=["turn_id"],
            set_={
                "fingerprint": insert.excluded.fingerprint,
                "token_ids": insert.excluded.token_ids,
            },
        )
        await self.db.write(lambda c: c.execute(upsert).close())
