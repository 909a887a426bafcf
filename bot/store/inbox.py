"""The inbox: an event becomes a turn exactly once, whatever arrives twice, at the same time, or in mid-crash.

Owns the tables dedupe and inbound, and the way turns begin. Their later life is in turns.py.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.records import Acceptance, Accepted, TakenBack, TurnDraft
from bot.domain.types import Lane, Outcome, TurnKind, WhileBusy
from bot.store import takingback, turnrows
from bot.store.db import Database
from bot.store.sessions import IS_CURRENT, Sessions, key_hash
from bot.store.tables import dedupe, inbound, replies, sessions, turns

# Platforms redeliver for up to 7 hours (feishu.md §2); no setting may forget a key sooner.
SHORTEST_DEDUPE = timedelta(hours=8)
_PRUNE_BATCH = 2000


def dedupe_hash(app_id: str, dedupe_key: str) -> bytes:
    """What is kept of a key: it survives /forget, so it must not tell who wrote."""
    return hashlib.sha256(json.dumps([app_id, dedupe_key]).encode()).digest()


_ADD_TURN = sa.insert(turns)
_ADD_INBOUND = sa.insert(inbound)
_ADD_REPLY = sa.insert(replies)


def _find_waiting(now: sa.ColumnElement[int]) -> sa.Select[Any]:
    """A person's newest waiting question, one that is held for the rest of a long paste before all others.

    A turn that began is not joined: its prompt is fixed, and half its answer may be on the screen.
    """
    is_held = sa.func.coalesce(turns.c.hold_until > now, sa.false())
    return (
        sa.select(
            turns.c.id,
            turns.c.question,
            turns.c.attachments,
            turns.c.quotes,
            is_held.label("is_held"),
        )
        .join(sessions, sessions.c.id == turns.c.session_id)
        .where(
            sessions.c.key_hash == sa.bindparam("key"),
            IS_CURRENT,
            sa.text("turns.state = 'queued'"),
            turns.c.kind == TurnKind.CHAT.value,
            turns.c.lane == sa.bindparam("lane"),
            turns.c.asker_id == sa.bindparam("asker"),
            turns.c.attempt == 0,
            turns.c.continues == "",
        )
        .order_by(is_held.desc(), turns.c.seq.desc())
        .limit(1)
        .with_for_update(of=turns)
    )


class Inbox:
    """Works that let events in. Holds no state but the database and its ready-made statements."""

    def __init__(self, db: Database, sessions_: Sessions, dedupe_age: timedelta) -> None:
        self._db = db
        self._sessions = sessions_
        self._dedupe_age = dedupe_age
        self._see = db.insert(dedupe).on_conflict_do_nothing().returning(dedupe.c.seen_at)
        self._find_waiting = _find_waiting(db.now())

    async def accept(self, acceptance: Acceptance) -> Accepted:
        """See ports.Store."""
        # A platform waits for this one with a deadline of seconds; everything else can be a moment later.
        return await self._db.write(lambda c: self.accept_in(c, acceptance), urgent=True)

    async def take_back(self, app_id: str, message_id: str) -> TakenBack | None:
        """See ports.Store."""

        def work(connection: Connection) -> TakenBack | None:
            found = takingback.take_back(connection, app_id, message_id, self._db.clock())
            if found is None:
                return None
            if found.rest is not None:
                queued = self._queue(connection, Acceptance(app_id, "", ""), found.rest)
                takingback.drop_messages(connection, queued.turn_id, [message_id])
            return TakenBack(found.turn, found.goes_on)

        return await self._db.write(work, urgent=True)

    def accept_in(self, connection: Connection, acceptance: Acceptance) -> Accepted:
        """The work of `accept`, for those who have more to do in the same transaction."""
        now = self._db.clock()
        key = dedupe_hash(acceptance.app_id, acceptance.dedupe_key)
        if connection.execute(self._see, {"hash": key, "seen_at": now}).first() is None:
            return Accepted(duplicate=True)
        draft = acceptance.draft
        if draft is None:
            return Accepted(duplicate=False)
        merges = draft.while_busy is WhileBusy.MERGE or draft.joins_paste
        if draft.kind is TurnKind.CHAT and merges:
            joined = self._merge(connection, draft)
            if joined is not None:
                self._add_inbound(connection, acceptance, draft, joined)
                return Accepted(duplicate=False, turn_id=joined, merged=True)
        return self._queue(connection, acceptance, draft)

    def _queue(self, connection: Connection, acceptance: Acceptance, draft: TurnDraft) -> Accepted:
        session = self._sessions.open_current(connection, draft.session, new_turns=1)
        interrupted: tuple[str, ...] = ()
        if draft.kind is TurnKind.CHAT and draft.while_busy is WhileBusy.INTERRUPT:
            interrupted = self._interrupt(connection, session.id, draft.asker.user_id)
        turn_id = uuid.uuid4().hex
        values = {
            "id": turn_id,
            "session_id": session.id,
            "turn_no": session.last_turn_no,
            "created_at": self._db.clock(),
        }
        connection.execute(_ADD_TURN, turnrows.from_draft(draft) | values)
        if draft.hold_s:
            self._hold(connection, turn_id, draft.hold_s)
        self._add_inbound(connection, acceptance, draft, turn_id)
        if draft.again_of:
            takingback.copy_messages(connection, draft.again_of, turn_id)
        if draft.kind is TurnKind.NOTICE:
            self._add_answer(connection, turn_id, draft.answer)
        return Accepted(duplicate=False, turn_id=turn_id, interrupted=interrupted)

    def _add_answer(self, connection: Connection, turn_id: str, answer: str) -> None:
        final = {
            "turn_id": turn_id,
            "rev": 1,
            "text": answer,
            "token_ids": (),
            "outcome": Outcome.COMPLETE.value,
            "notice": "",
            "updated_at": self._db.clock(),
        }
        connection.execute(_ADD_REPLY, final)

    def _add_inbound(
        self, connection: Connection, acceptance: Acceptance, draft: TurnDraft, turn_id: str
    ) -> None:
        if not draft.message_id:
            return
        values = {
            "app_id": acceptance.app_id,
            "message_id": draft.message_id,
            "event_id": acceptance.event_id,
            "turn_id": turn_id,
            "received_at": self._db.clock(),
            **takingback.share(draft),
        }
        connection.execute(_ADD_INBOUND, values)

    def _merge(self, connection: Connection, draft: TurnDraft) -> str | None:
        """Join the same person's waiting turn, if there is one that may be joined.

        A question that is held is a long paste which its client cut into messages: what follows within the time belongs to
        it, whatever `while_busy` says of further questions.
        """
        whose = {
            "key": key_hash(draft.session),
            "lane": draft.lane.value,
            "asker": draft.asker.user_id,
        }
        row = connection.execute(self._find_waiting, whose | self._db.now_values()).one_or_none()
        if row is None:
            return None
        if draft.while_busy is not WhileBusy.MERGE and not row.is_held:
            return None
        attachments = (*turnrows.read_attachments(row.attachments), *draft.attachments)
        quotes = (*turnrows.read_quotes(row.quotes), *draft.quotes)
        joined = {
            # A line feed also between the parts of a paste: where its client cut it is not known, and a break too many
            # harms less than two lines that became one.
            "question": "\n".join(text for text in (row.question, draft.question) if text),
            "attachments": turnrows.write_attachments(attachments),
            "quotes": turnrows.write_quotes(quotes),
            "target": turnrows.write_target(draft.target),
            "hold_until": None,
        }
        connection.execute(sa.update(turns).where(turns.c.id == row.id), joined)
        if draft.hold_s:
            self._hold(connection, row.id, draft.hold_s)
        return str(row.id)

    def _hold(self, connection: Connection, turn_id: str, hold_s: float) -> None:
        """Leave a turn unclaimed for a time. It is stored all the same: a crash meanwhile loses nothing."""
        until = self._db.now() + round(hold_s * 1_000_000)
        hold = sa.update(turns).where(turns.c.id == turn_id).values(hold_until=until)
        connection.execute(hold, self._db.now_values())

    def _interrupt(self, connection: Connection, session_id: str, asker_id: str) -> tuple[str, ...]:
        """Cancel what the same person has waiting, mark what is running. Returns the ids of all of them."""
        mine = sa.and_(
            turns.c.session_id == session_id,
            turns.c.asker_id == asker_id,
            turns.c.kind == TurnKind.CHAT.value,
            turns.c.lane == Lane.CHAT.value,
        )
        waiting: list[str] = []
        for cancel in turnrows.cancel_waiting(mine, self._db.clock(), silent=True):
            waiting += connection.execute(cancel.returning(turns.c.id)).scalars()
        running = (
            sa.update(turns)
            .where(mine, sa.text("turns.state = 'running'"))
            .values(cancel_requested=1)
            .returning(turns.c.id)
        )
        return (*waiting, *connection.execute(running).scalars())

    async def prune(self) -> int:
        """See ports.Store. In batches, so that no accept waits long behind it."""
        oldest_kept = self._db.clock() - self._dedupe_age
        batch = sa.select(dedupe.c.hash).where(dedupe.c.seen_at < oldest_kept).limit(_PRUNE_BATCH)
        delete = sa.delete(dedupe).where(dedupe.c.hash.in_(batch))
        total = 0
        while True:
            deleted = await self._db.write(lambda c: c.execute(delete).rowcount)
            total += deleted
            if deleted < _PRUNE_BATCH:
                return total
