"""Leases: what only one of several processes on one database may hold at a time, such as a bot's long connection.

Owns the table leases. Time is the database server's, so that the clocks of the processes need not agree. On SQLite no row is
ever written: the file's lock (lockfile.py) keeps every other process out, and the kernel drops it when its holder dies.
"""

from __future__ import annotations

import math
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.records import Lease
from bot.store.db import Database
from bot.store.tables import leases


class Leases:
    """Works on leases. Holds no state but the database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def take_lease(self, name: str, owner: str, lease_s: float) -> Lease:
        """See ports.Store. One statement decides; a second one only names who was quicker."""
        if self._db.place.is_sqlite:
            return Lease(owner, math.inf)
        now = self._db.now()
        insert = self._db.insert(leases).values(
            name=name, owner=owner, until_us=now + sa.bindparam("lease_us", type_=sa.BigInteger)
        )
        take = insert.on_conflict_do_update(
            index_elements=[leases.c.name],
            set_={"owner": insert.excluded.owner, "until_us": insert.excluded.until_us},
            where=sa.or_(leases.c.owner == owner, leases.c.until_us < now),
        ).returning(leases.c.owner)
        look = sa.select(leases.c.owner, leases.c.until_us - now).where(leases.c.name == name)

        def work(connection: Connection) -> Lease:
            values: dict[str, Any] = {"lease_us": round(lease_s * 1_000_000)}
            if connection.execute(take, values).scalar() is not None:
                return Lease(owner, lease_s)
            row = connection.execute(look).first()
            # None: its holder gave it back between the two statements.
            return Lease("", 0.0) if row is None else Lease(row[0], max(0.0, row[1] / 1_000_000))

        return await self._db.write(work, urgent=True)

    async def drop_lease(self, name: str, owner: str) -> None:
        """See ports.Store."""
        if self._db.place.is_sqlite:
            return
        mine = sa.delete(leases).where(leases.c.name == name, leases.c.owner == owner)
        await self._db.write(lambda c: c.execute(mine).close())
