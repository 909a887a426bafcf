"""The index of what was said: filled from finished turns, searched by terms, erased with a session's memory.

Owns recall_sessions, recall_messages and SQLite's recall_fts. It holds terms only; texts are read from the turns, so that a
turn that was replaced or taken back since is never found. Both databases give the same messages: each term's newest ones come
from the full-text index, and adding up is done here.

A message's id is (session's number, turn_no, question or answer) in one integer: one session's messages are a range, the newest
last.
"""

from __future__ import annotations

import asyncio
import functools
import math
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.records import Found, Hit
from bot.domain.segment import terms as terms_of
from bot.domain.types import Lane, Outcome, TurnKind, TurnState
from bot.store.db import Database
from bot.store.tables import AnyRow, recall_messages, recall_sessions, replies, sessions, turns

# More messages than this with a term tell nothing about which of them is meant.
MAX_PER_TERM = 500
MAX_TERMS = 64

_SESSION_SHIFT = 24
_ENDED = [TurnState.DONE.value, TurnState.FAILED.value, TurnState.CANCELLED.value]
_NOT_AN_ANSWER = [Outcome.GROWING.value, Outcome.SILENT.value]
_TEXTS = (
    sa.select(
        turns.c.turn_no, turns.c.asker_id, turns.c.asker_name, turns.c.question, turns.c.created_at, replies.c.text,
    )
    .join(sessions, sessions.c.id == turns.c.session_id)
    .join(replies, replies.c.turn_id == turns.c.id)
    .where(
        turns.c.session_id == sa.bindparam("session_id"),
        turns.c.kind == TurnKind.CHAT.value,
        turns.c.state.in_(_ENDED),
        turns.c.replaced == 0,
        sessions.c.erased == 0,
        replies.c.outcome.not_in(_NOT_AN_ANSWER),
        replies.c.text != "",
    )
)  # fmt: skip
_UNFINISHED = sa.union_all(
    *(
        sa.select(turns.c.turn_no).where(
            turns.c.session_id == sa.bindparam("session_id"),
            turns.c.kind == TurnKind.CHAT.value,
            turns.c.lane == Lane.CHAT.value,
            sa.text(f"turns.state = '{state}'"),
        )
        for state in ("queued", "running")
    )
)
_PLACE = sa.select(recall_sessions).where(
    recall_sessions.c.session_id == sa.bindparam("session_id")
)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Turns to be indexed: those after `after`, up to and including `up_to`."""

    after: int
    up_to: int
    rows: tuple[AnyRow, ...]
    is_last: bool


class Search:
    """Queries and works on the index. Holds no state but the database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    # -- filling -----------------------------------------------------------------------------------------------------
    async def index_history(self, session_id: str, *, limit: int) -> bool:
        """See ports.Store. Segmenting happens in neither the loop nor a transaction: a long history takes seconds."""
        chunk = await self._db.read(lambda c: _next_chunk(c, session_id, limit))
        if chunk is None:
            return True
        made = await asyncio.to_thread(_segmented, chunk.rows)

        def work(connection: Connection) -> None:
            self._add(connection, session_id, chunk, made)

        await self._db.write(work)
        return chunk.is_last

    def _add(
        self,
        connection: Connection,
        session_id: str,
        chunk: _Chunk,
        made: Sequence[tuple[int, str]],
    ) -> None:
        """Add what of a chunk was not erased meanwhile, unless another process was quicker."""
        is_erased = sa.select(sessions.c.erased).where(sessions.c.id == session_id)
        if connection.execute(is_erased).scalar() != 0:
            return
        still = _TEXTS.with_only_columns(turns.c.turn_no).where(
            turns.c.turn_no > chunk.after, turns.c.turn_no <= chunk.up_to
        )
        there = set(connection.execute(still, {"session_id": session_id}).scalars())
        made = [(place, text) for place, text in made if place // 2 in there]
        start = self._db.insert(recall_sessions).values(
            session_id=session_id, indexed_to=0, n_messages=0
        )
        connection.execute(start.on_conflict_do_nothing(index_elements=["session_id"]))
        move = (
            sa.update(recall_sessions)
            .where(
                recall_sessions.c.session_id == session_id,
                recall_sessions.c.indexed_to == chunk.after,
            )
            .values(indexed_to=chunk.up_to, n_messages=recall_sessions.c.n_messages + len(made))
            .returning(recall_sessions.c.number)
        )
        number = connection.execute(move).scalar()
        if number is None or not made:
            return
        # On PostgreSQL the session is a term as well: its index then answers without looking at other sessions' rows.
        mark = "" if self._db.place.is_sqlite else f" {_mark(number)}"
        rows = [
            {"id": (number << _SESSION_SHIFT) + place, "terms": text + mark} for place, text in made
        ]
        connection.execute(sa.insert(recall_messages), rows)
        if self._db.place.is_sqlite:
            connection.execute(
                sa.text("INSERT INTO recall_fts (rowid, terms) VALUES (:id, :terms)"), rows
            )

    # -- searching ---------------------------------------------------------------------------------------------------
    async def search(
        self, session_id: str, terms: Sequence[str], before_turn_no: int, limit: int
    ) -> Found:
        """See ports.Store. Three statements, whatever the length of the history."""
        wanted = list(dict.fromkeys(terms))[:MAX_TERMS]

        def find(connection: Connection) -> Found:
            place = connection.execute(_PLACE, {"session_id": session_id}).one_or_none()
            if place is None:
                return Found((), {}, 0)
            if not wanted:
                return Found((), {}, place.n_messages, place.indexed_to)
            low = place.number << _SESSION_SHIFT
            ids = self._ids_by_term(connection, wanted, low, low + 2 * before_turn_no - 1)
            counts = {term: len(found) for term, found in zip(wanted, ids, strict=True)}
            scores: Counter[int] = Counter()
            for term, found in zip(wanted, ids, strict=True):
                worth = math.log(1 + (place.n_messages + 0.5) / (counts[term] + 0.5))
                for message_id in found:
                    scores[message_id] += worth  # type: ignore[assignment]  # a Counter of floats
            best = sorted(scores, key=lambda message_id: (-scores[message_id], -message_id))[:limit]
            hits = _read_hits(connection, session_id, [message_id - low for message_id in best])
            return Found(hits, counts, place.n_messages, place.indexed_to)

        return await self._db.read(find)

    def _ids_by_term(
        self, connection: Connection, wanted: Sequence[str], low: int, high: int
    ) -> list[list[int]]:
        """For each term the newest messages that have it."""
        if self._db.place.is_sqlite:
            values: dict[str, object] = {f"t{n}": f'"{term}"' for n, term in enumerate(wanted)}
            query = _sqlite_query(len(wanted))
        else:
            values = {"terms": list(wanted), "mark": _mark(low >> _SESSION_SHIFT)}
            query = _POSTGRES_QUERY
            # The planner takes segmenting a row for cheap and would do it with all rows instead of using the index.
            connection.execute(sa.text("SET LOCAL enable_seqscan = off"))
        bounds = {"low": low, "high": high, "most": MAX_PER_TERM}
        found: list[list[int]] = [[] for _ in wanted]
        for n, ids in connection.execute(query, values | bounds):
            found[n] = list(map(int, ids.split(","))) if ids else []
        if not self._db.place.is_sqlite:
            connection.execute(sa.text("SET LOCAL enable_seqscan = on"))
        return found


def erase(connection: Connection, session_id: str, *, from_turn_no: int = 0) -> None:
    """Take a session's turns from a number on out of the index. Those that are still to be found are put in again later;
    once the session is marked as erased, none. Before SQLite 3.42 the words leave the file with `rewrite` only."""
    place = connection.execute(_PLACE, {"session_id": session_id}).one_or_none()
    if place is None:
        return
    low = place.number << _SESSION_SHIFT
    bounds = {"low": low + 2 * from_turn_no, "high": low + (1 << _SESSION_SHIFT) - 1}
    if connection.dialect.name == "sqlite":
        if _HAS_SECURE_DELETE:
            connection.execute(_DELETE_SECURELY)
        connection.execute(_FORGET_IN_FTS, bounds)
    gone = sa.delete(recall_messages).where(
        recall_messages.c.id.between(bounds["low"], bounds["high"])
    )
    n_gone = connection.execute(gone).rowcount
    this = recall_sessions.c.number == place.number
    if from_turn_no <= 1:
        connection.execute(sa.delete(recall_sessions).where(this))
        return
    connection.execute(
        sa.update(recall_sessions)
        .where(this)
        .values(
            indexed_to=min(place.indexed_to, from_turn_no - 1),
            n_messages=place.n_messages - n_gone,
        )
    )


async def rewrite(db: Database) -> None:
    """Write SQLite's index anew where it cannot delete securely, in steps between which others write. Raises StoreError."""
    if not db.place.is_sqlite or _HAS_SECURE_DELETE:
        return
    step = _BEGIN_REWRITE
    while await db.write(lambda c, step=step: _changes(c, step)) >= _LEAST_CHANGES:  # type: ignore[misc]
        step = _GO_ON_REWRITING


def _changes(connection: Connection, step: sa.TextClause) -> int:
    count = sa.text("SELECT total_changes()")
    before = connection.execute(count).scalar_one()
    connection.execute(step)
    return int(connection.execute(count).scalar_one() - before)


def _mark(number: int) -> str:
    """A term that no text has."""
    return f"§{number}"


# -- statements ----------------------------------------------------------------------------------------------------------
_FORGET_IN_FTS = sa.text(
    "INSERT INTO recall_fts (recall_fts, rowid, terms) "
    "SELECT 'delete', id, terms FROM recall_messages WHERE id BETWEEN :low AND :high"
)
# Deleted terms stay in an index's older parts unless FTS5 is told otherwise, which before 3.42 means to write it anew.
_HAS_SECURE_DELETE = sqlite3.sqlite_version_info >= (3, 42)
_DELETE_SECURELY = sa.text("INSERT INTO recall_fts (recall_fts, rank) VALUES ('secure-delete', 1)")
# So many pages of it at once; fewer changes than these mean that there was nothing left to do (FTS5's documentation).
_BEGIN_REWRITE = sa.text("INSERT INTO recall_fts (recall_fts, rank) VALUES ('merge', -200)")
_GO_ON_REWRITING = sa.text("INSERT INTO recall_fts (recall_fts, rank) VALUES ('merge', 200)")
_LEAST_CHANGES = 2
# The id is hidden from the planner for the same reason: its range would do as well, and read everything.
_POSTGRES_QUERY = sa.text(
    """
    SELECT asked.n - 1, (
        SELECT string_agg(CAST(newest.id AS text), ',') FROM (
            SELECT m.id FROM recall_messages m
            WHERE array_to_tsvector(string_to_array(m.terms, ' '))
                  @@ CAST('''' || asked.term || ''' & ''' || :mark || '''' AS tsquery)
              AND m.id + 0 BETWEEN :low AND :high
            ORDER BY m.id + 0 DESC LIMIT :most
        ) newest
    ) FROM unnest(CAST(:terms AS text[])) WITH ORDINALITY AS asked(term, n)
    """
)


@functools.lru_cache(maxsize=MAX_TERMS)
def _sqlite_query(n_terms: int) -> sa.TextClause:
    one = (
        "SELECT {n}, (SELECT group_concat(id) FROM (SELECT rowid AS id FROM recall_fts "
        "WHERE recall_fts MATCH :t{n} AND rowid BETWEEN :low AND :high ORDER BY rowid DESC LIMIT :most))"
    )
    return sa.text(" UNION ALL ".join(one.format(n=n) for n in range(n_terms)))


def _next_chunk(connection: Connection, session_id: str, limit: int) -> _Chunk | None:
    """The turns that come next; None when all finished ones are in, or the session is not to be found in."""
    this = {"session_id": session_id}
    place = connection.execute(_PLACE, this).one_or_none()
    after = place.indexed_to if place else 0
    last = connection.execute(
        sa.select(sessions.c.last_turn_no).where(
            sessions.c.id == session_id, sessions.c.erased == 0
        )
    ).scalar()
    # A turn that still runs ends later: what comes behind it waits. (One of the background gets a new number then.)
    unfinished = connection.execute(_UNFINISHED, this).scalars().all()
    end = min([*unfinished, (last or 0) + 1]) - 1
    if end <= after:
        return None
    query = (
        _TEXTS.where(turns.c.turn_no > after, turns.c.turn_no <= end)
        .order_by(turns.c.turn_no)
        .limit(limit)
    )
    rows = tuple(connection.execute(query, this))
    is_last = len(rows) < limit
    return _Chunk(after, end if is_last else rows[-1].turn_no, rows, is_last)


def _segmented(rows: Sequence[AnyRow]) -> list[tuple[int, str]]:
    """(place in the session, terms) of the messages of some turns; who asked is part of a question's terms."""
    made = []
    for row in rows:
        for is_answer, text in ((0, f"{row.asker_name} {row.question}"), (1, row.text)):
            unique = dict.fromkeys(terms_of(text))
            if unique:
                made.append((2 * row.turn_no + is_answer, " ".join(unique)))
    return made


def _read_hits(connection: Connection, session_id: str, places: Sequence[int]) -> tuple[Hit, ...]:
    """The messages at these places that may still be shown, in the same order."""
    numbers = sorted({place // 2 for place in places})
    if not numbers:
        return ()
    query = _TEXTS.where(turns.c.turn_no.in_(numbers))
    found = {row.turn_no: row for row in connection.execute(query, {"session_id": session_id})}
    hits = []
    for place in places:
        row = found.get(place // 2)
        if row is None:
            continue
        is_answer = bool(place % 2)
        speaker = "" if is_answer else row.asker_name or row.asker_id[-4:]
        text = row.text if is_answer else row.question
        reply = "" if is_answer else row.text
        hits.append(Hit(row.turn_no, is_answer, speaker, text, row.created_at, reply))
    return tuple(hits)
