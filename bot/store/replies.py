"""Replies as they grow: snapshots, the messages that show them, and the answer's own token ids.

Owns the tables replies, reply_parts and answer_tokens. "Disk is never behind the screen" is kept by the caller, who
commits here before it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.types import Outcome, PartState, ReplyPart, Snapshot
from bot.store.db import Database
from bot.store.tables import answer_tokens, replies, reply_parts


class Replies:
    """Works and queries on replies. Holds no state but the database and its ready-made statements."""

    def __init__(self, db: Database) -> None:
        self._db = db
        # Built once: putting a statement together costs more than running it.
        new_reply = db.insert(replies)
        self._put_reply = new_reply.on_conflict_do_update(
            index_elements=["turn_id"],
            set_=_all_but(replies, ["turn_id"], new_reply.excluded),
            # A process that was away while another one finished the answer must not make it grow again.
            where=sa.and_(
                new_reply.excluded.rev > replies.c.rev,
                sa.or_(
                    replies.c.outcome == Outcome.GROWING.value,
                    new_reply.excluded.outcome != Outcome.GROWING.value,
                ),
            ),
        )
        new_part = db.insert(reply_parts)
        self._put_part = new_part.on_conflict_do_update(
            index_elements=["turn_id", "n"],
            set_=_all_but(reply_parts, ["turn_id", "n"], new_part.excluded),
        )
        new_tokens = db.insert(answer_tokens)
        self._put_tokens = new_tokens.on_conflict_do_update(
            index_elements=["turn_id"],
            set_=_all_but(answer_tokens, ["turn_id"], new_tokens.excluded),
        )

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

        return await self._db.read(find)

    async def save_reply(
        self, turn_id: str, snapshot: Snapshot | None, part: ReplyPart | None
    ) -> None:
        """See ports.Store. One statement for each of the two. Raises ValueError for a part of another turn."""
        if part is not None and part.turn_id != turn_id:
            raise ValueError(f"the part belongs to turn {part.turn_id}, not {turn_id}")
        snapshot_row = None if snapshot is None else self._snapshot_row(turn_id, snapshot)
        part_row = None if part is None else {**asdict(part), "state": part.state.value}

        def work(connection: Connection) -> None:
            if snapshot_row is not None:
                connection.execute(self._put_reply, snapshot_row)
            if part_row is not None:
                connection.execute(self._put_part, part_row)

        await self._db.write(work)

    def _snapshot_row(self, turn_id: str, snapshot: Snapshot) -> dict[str, object]:
        return {
            "turn_id": turn_id,
            "rev": snapshot.rev,
            "text": snapshot.text,
            "token_ids": snapshot.token_ids,
            "outcome": snapshot.outcome.value,
            "notice": snapshot.notice,
            "updated_at": self._db.clock(),
        }

    async def save_answer_tokens(
        self, turn_id: str, fingerprint: str, answer_token_ids: Sequence[int], n_question: int = 0
    ) -> None:
        """See ports.Store."""
        row = {
            "turn_id": turn_id,
            "fingerprint": fingerprint,
            "token_ids": tuple(answer_token_ids),
            "n_question": n_question,
        }
        await self._db.write(lambda c: c.execute(self._put_tokens, row).close())


def _all_but(table: sa.Table, keys: list[str], excluded: Any) -> dict[str, Any]:
    """What an upsert changes: every column but the key's."""
    return {column.name: excluded[column.name] for column in table.c if column.name not in keys}
