"""The life of a turn after it was accepted: claimed, held by a lease, finished, recovered, cancelled.

Owns every change of turns.state; the only way into RUNNING is `claim`. The database itself keeps the rule "one RUNNING
turn per (session, lane)" by a partial unique index.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from bot.domain.types import Lane, Turn, TurnKind, TurnState
from bot.errors import StoreError
from bot.store import digests, turnrows
from bot.store.db import Database
from bot.store.tables import inbound, sessions, turns

_FINISHED = frozenset({TurnState.DONE, TurnState.FAILED, TurnState.CANCELLED})
# States are written out in SQL: a plan prepared for any parameter cannot use an index that holds one state only.
_QUEUED = sa.text("turns.state = 'queued'")
_RUNNING = sa.text("turns.state = 'running'")


def _first_in_line(now: sa.ColumnElement[int], *, lock: bool, sparing: bool) -> sa.Select[Any]:
    """The oldest QUEUED turn of each (session, lane) without a RUNNING one, oldest first.

    One that is held for the rest of a long paste waits, and those behind it wait with it.

    With `lock` (PostgreSQL) rows that another process is claiming are passed over. The turn behind such a row is not
    taken instead: this statement still sees the row as QUEUED and earlier. With `sparing` turns of the app ids `without`
    are left alone.
    """
    ahead, busy = turns.alias("ahead"), turns.alias("busy")
    query = (
        sa.select(turns.c.id)
        .where(
            _QUEUED,
            sa.or_(turns.c.hold_until.is_(None), turns.c.hold_until <= now),
            ~sa.exists().where(
                busy.c.session_id == turns.c.session_id,
                busy.c.lane == turns.c.lane,
                sa.text("busy.state = 'running'"),
            ),
            ~sa.exists().where(
                ahead.c.session_id == turns.c.session_id,
                ahead.c.lane == turns.c.lane,
                sa.text("ahead.state = 'queued'"),
                ahead.c.seq < turns.c.seq,
            ),
        )
        .order_by(turns.c.seq)
        .limit(sa.bindparam("at_most", type_=sa.Integer))
    )
    if sparing:
        spared = sessions.c.app_id.in_(sa.bindparam("without", expanding=True))
        query = query.where(turns.c.session_id.not_in(sa.select(sessions.c.id).where(spared)))
    return query.with_for_update(of=turns, skip_locked=True) if lock else query


class Turns:
    """Works and queries on turns. Holds no state but the database and its ready-made statements."""

    def __init__(self, db: Database) -> None:
        self._db = db
        lease_end = db.now() + sa.bindparam("lease_us", type_=sa.BigInteger)
        lock = not db.place.is_sqlite
        now = db.now()
        self._take = _take(_first_in_line(now, lock=lock, sparing=False), lease_end)
        self._take_sparing = _take(_first_in_line(now, lock=lock, sparing=True), lease_end)
        self._extend = (
            sa.update(turns)
            .where(_RUNNING, turns.c.lease_owner == sa.bindparam("owner"))
            .values(lease_until=lease_end)
            .returning(turns.c.id)
        )

    # -- running -----------------------------------------------------------------------------------------------------
    async def claim(
        self, owner: str, lease_s: float, limit: int, *, without: frozenset[str] = frozenset()
    ) -> list[Turn]:
        """See ports.Store. Three statements, however many turns are taken and however long the history is."""
        if limit < 1:
            return []
        values = self._lease(owner, lease_s) | {"at_most": limit}
        take = self._take
        if without:
            take, values = self._take_sparing, values | {"without": sorted(without)}

        def work(connection: Connection) -> list[Turn]:
            return turnrows.load_ids(connection, connection.execute(take, values).scalars())

        try:
            return await self._db.write(work)
        except StoreError as error:
            if isinstance(error.__cause__, IntegrityError):  # another process was quicker
                return []
            raise

    def _lease(self, owner: str, lease_s: float) -> dict[str, Any]:
        return {"owner": owner, "lease_us": round(lease_s * 1_000_000), **self._db.now_values()}

    async def heartbeat(self, owner: str, lease_s: float) -> frozenset[str]:
        """See ports.Store."""
        values = self._lease(owner, lease_s)
        return await self._db.write(lambda c: frozenset(c.execute(self._extend, values).scalars()))

    async def holds(self, turn_id: str, owner: str) -> bool:
        """See ports.Store."""
        mine = sa.select(turns.c.seq).where(
            turns.c.id == turn_id, _RUNNING, turns.c.lease_owner == owner
        )
        return await self._db.read(lambda c: c.execute(mine).first() is not None)

    async def release(self, turn_id: str, owner: str) -> None:
        """See ports.Store."""
        held = sa.and_(turns.c.id == turn_id, _RUNNING, turns.c.lease_owner == owner)
        await self._db.write(lambda c: c.execute(_requeue(held)).close())

    async def recover(self, owner: str) -> int:
        """See ports.Store."""
        lost: sa.ColumnElement[bool] = turns.c.lease_until < self._db.now()
        if self._db.place.is_sqlite:
            # This process holds the file's lock: whoever else ran a turn is dead.
            lost = sa.or_(lost, turns.c.lease_owner != owner)
        back, values = _requeue(sa.and_(_RUNNING, lost)), self._db.now_values()
        return await self._db.write(lambda c: c.execute(back, values).rowcount)

    async def finish_turn(
        self, turn_id: str, owner: str, state: TurnState, *, error: str = ""
    ) -> bool:
        """See ports.Store. Raises ValueError for a state that is not terminal."""
        if state not in _FINISHED:
            raise ValueError(f"a turn cannot be finished as {state.value}")
        finish = (
            sa.update(turns)
            .where(turns.c.id == turn_id, _RUNNING, turns.c.lease_owner == owner)
            .values(
                state=state.value,
                error=error,
                finished_at=self._db.clock(),
                lease_owner=None,
                lease_until=None,
            )
        )

        def work(connection: Connection) -> bool:
            lane = connection.execute(finish.returning(turns.c.lane)).scalar()
            if lane == Lane.BACKGROUND.value:
                digests.finish(connection, turn_id)
            return lane is not None

        return await self._db.write(work)

    async def fix_prompt(self, turn_id: str, prompt_text: str, *, noted_date: str = "") -> None:
        """See ports.Store."""

        def work(connection: Connection) -> None:
            fix = sa.update(turns).where(turns.c.id == turn_id).values(prompt_text=prompt_text)
            session_id = connection.execute(fix.returning(turns.c.session_id)).scalar()
            if noted_date and session_id is not None:
                connection.execute(
                    sa.update(sessions)
                    .where(sessions.c.id == session_id)
                    .values(noted_date=noted_date)
                )

        await self._db.write(work)

    async def request_cancel(self, turn_id: str, *, silent: bool = False) -> TurnState | None:
        """See ports.Store. A QUEUED turn that already shows something stays QUEUED, marked: whoever claims it ends it."""

        def work(connection: Connection) -> TurnState | None:
            this = turns.c.id == turn_id
            found = connection.execute(
                sa.select(turns.c.state).where(this).with_for_update()
            ).scalar()
            if found is None:
                return None
            cancel_in(connection, turn_id, self._db.clock(), silent=silent)
            return TurnState(found)

        return await self._db.write(work)

    # -- looking -----------------------------------------------------------------------------------------------------
    async def turn(self, turn_id: str) -> Turn | None:
        """See ports.Store."""
        found = await self._db.read(lambda c: turnrows.load_ids(c, [turn_id]))
        return found[0] if found else None

    async def turn_of_message(self, app_id: str, message_id: str) -> Turn | None:
        """See ports.Store. The newest, where a message was asked again."""
        this = sa.and_(inbound.c.app_id == app_id, inbound.c.message_id == message_id)
        of_message = turns.c.id.in_(sa.select(inbound.c.turn_id).where(this))
        newest = turns.c.seq.desc()
        return await self._db.read(lambda c: turnrows.load_newest(c, of_message, newest))

    async def unfinished_turns(self, session_id: str) -> list[Turn]:
        """See ports.Store."""
        # Two parts rather than one OR: each is answered by a partial index, however long the session's history is.
        ids = sa.union_all(
            *(
                sa.select(turns.c.id).where(
                    turns.c.session_id == session_id, turns.c.kind == TurnKind.CHAT.value, state
                )
                for state in (_QUEUED, _RUNNING)
            )
        )
        return await self._db.read(lambda c: turnrows.load_ids(c, c.execute(ids).scalars()))

    async def last_chat_turn(self, session_id: str) -> Turn | None:
        """See ports.Store. Neither one that was asked again nor one whose question was taken back."""
        which = sa.and_(
            turns.c.session_id == session_id,
            turns.c.kind == TurnKind.CHAT.value,
            turns.c.state.in_([state.value for state in _FINISHED]),
            turns.c.replaced == 0,
            turns.c.silent == 0,
        )
        newest = turns.c.turn_no.desc()
        return await self._db.read(lambda c: turnrows.load_newest(c, which, newest))


def cancel_in(connection: Connection, turn_id: str, now: datetime, *, silent: bool) -> None:
    """The work of `request_cancel`."""
    this = turns.c.id == turn_id
    digests.erase_turns(connection, turn_id)
    for cancel in turnrows.cancel_waiting(this, now, silent=silent):
        connection.execute(cancel)
    quiet: dict[str, Any] = {"silent": 1} if silent else {}
    connection.execute(sa.update(turns).where(this, _RUNNING).values(cancel_requested=1, **quiet))


def _take(first_in_line: sa.Select[Any], lease_end: sa.ColumnElement[int]) -> Any:
    """The claim: an UPDATE … RETURNING of the turns' ids."""
    # A CTE, since PostgreSQL may run a plain sub-select with LIMIT more than once.
    picked = first_in_line.cte("picked").prefix_with("MATERIALIZED")
    return (
        sa.update(turns)
        .where(turns.c.id.in_(sa.select(picked.c.id)), _QUEUED)
        .values(
            state=TurnState.RUNNING.value,
            attempt=turns.c.attempt + 1,
            lease_owner=sa.bindparam("owner"),
            lease_until=lease_end,
        )
        .returning(turns.c.id)
    )


def _requeue(which: sa.ColumnElement[bool]) -> sa.Update:
    back = {"state": TurnState.QUEUED.value, "lease_owner": None, "lease_until": None}
    return sa.update(turns).where(which).values(back)
