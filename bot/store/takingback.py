"""One message taken back out of several that became one question: what remains of it. Used by the inbox's transactions.

Each row of `inbound` knows how much of its turn's question, files and quotes its message brought, in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.records import TurnDraft
from bot.domain.types import Turn, TurnKind, TurnState
from bot.store import turnrows
from bot.store.tables import AnyRow, inbound, reply_parts, turns
from bot.store.turns import cancel_in

_One = TypeVar("_One")
_SHARE = ("n_chars", "n_attachments", "n_quotes")
_COPIED = ("app_id", "message_id", "event_id", "received_at", *_SHARE)


@dataclass(frozen=True, slots=True)
class Found:
    """What there was, and the question that is to be asked anew."""

    turn: Turn
    goes_on: bool = False
    rest: TurnDraft | None = None


def share(draft: TurnDraft) -> dict[str, int | None]:
    """The columns that say what a draft's message brings; nothing is known where the question is that of other messages."""
    if draft.again_of or draft.continues:
        return dict.fromkeys(_SHARE)
    counts = (len(draft.question), len(draft.attachments), len(draft.quotes))
    return dict(zip(_SHARE, counts, strict=True))


def copy_messages(connection: Connection, turn_id: str, to_turn_id: str) -> None:
    """The messages of one turn are those of another one as well, in the same order; what it has itself stays behind them."""
    rows = connection.execute(_messages_of(turn_id)).all()
    drop_messages(connection, to_turn_id, [row.message_id for row in rows])
    for row in rows:
        values = {name: getattr(row, name) for name in _COPIED}
        connection.execute(sa.insert(inbound).values(turn_id=to_turn_id, **values))


def drop_messages(connection: Connection, turn_id: str, message_ids: Sequence[str]) -> None:
    """These messages are no longer in a turn."""
    gone = sa.and_(inbound.c.turn_id == turn_id, inbound.c.message_id.in_(message_ids))
    connection.execute(sa.delete(inbound).where(gone))


def take_back(connection: Connection, app_id: str, message_id: str, now: datetime) -> Found | None:
    """Take a message out of its newest turn. One that ended is left as it is."""
    this = sa.and_(inbound.c.app_id == app_id, inbound.c.message_id == message_id)
    of_message = turns.c.id.in_(sa.select(inbound.c.turn_id).where(this))
    turn = turnrows.load_newest(connection, of_message, turns.c.seq.desc())
    if turn is None or turn.kind is not TurnKind.CHAT:
        return None
    locked = sa.select(turns.c.state).where(turns.c.id == turn.id).with_for_update()
    state = TurnState(connection.execute(locked).scalar_one())
    turn = replace(turn, state=state)
    if state not in {TurnState.QUEUED, TurnState.RUNNING}:
        return Found(turn)
    rows = connection.execute(_messages_of(turn.id)).all()
    rest = None if turn.cancel_requested else _without(turn, rows, message_id)
    if rest is None:
        cancel_in(connection, turn.id, now, silent=True)
        return Found(turn)
    if state is TurnState.QUEUED and not _has_begun(connection, turn):
        drop_messages(connection, turn.id, [message_id])
        values = {
            "question": rest.question,
            "attachments": turnrows.write_attachments(rest.attachments),
            "quotes": turnrows.write_quotes(rest.quotes),
            "target": turnrows.write_target(rest.target),
        }
        connection.execute(sa.update(turns).where(turns.c.id == turn.id).values(values))
        return Found(turn, goes_on=True)
    cancel_in(connection, turn.id, now, silent=True)
    return Found(turn, rest=rest)


def _messages_of(turn_id: str) -> sa.Select[Any]:
    return sa.select(inbound).where(inbound.c.turn_id == turn_id).order_by(inbound.c.id)


def _has_begun(connection: Connection, turn: Turn) -> bool:
    shown = sa.select(reply_parts.c.n).where(reply_parts.c.turn_id == turn.id).limit(1)
    return turn.attempt > 0 or connection.execute(shown).first() is not None


def _without(turn: Turn, rows: Sequence[AnyRow], message_id: str) -> TurnDraft | None:
    """The turn's question without what one message brought; None where nothing is left, or it is not known what."""
    known = [row for row in rows if row.n_chars is not None]
    if not any(row.message_id == message_id for row in known):
        return None
    texts = _cut([row.n_chars for row in known], turn.question)
    files = _slices([row.n_attachments for row in known], turn.attachments)
    quotes = _slices([row.n_quotes for row in known], turn.quotes)
    if texts is None or files is None or quotes is None:
        return None
    kept = [n for n, row in enumerate(known) if row.message_id != message_id]
    question = "\n".join(texts[n] for n in kept if texts[n])
    attachments = tuple(one for n in kept for one in files[n])
    if not question and not attachments:
        return None
    target = turn.target
    if target.reply_to == message_id:
        target = replace(target, reply_to=known[kept[-1]].message_id)
    return TurnDraft(
        session=turn.session,
        kind=turn.kind,
        lane=turn.lane,
        asker=turn.asker,
        question=question,
        target=target,
        message_id="",
        chat_kind=turn.chat_kind,
        attachments=attachments,
        quotes=tuple(one for n in kept for one in quotes[n]),
        again_of=turn.id,
    )


def _cut(lengths: Iterable[int], joined: str) -> list[str] | None:
    """The texts that were joined by line feeds, empty ones left out; None where the lengths do not fit."""
    texts, at = [], 0
    for length in lengths:
        if length and at:
            at += 1
        texts.append(joined[at : at + length])
        at += length
    return texts if at == len(joined) else None


def _slices(lengths: Iterable[int], joined: Sequence[_One]) -> list[Sequence[_One]] | None:
    found, at = [], 0
    for length in lengths:
        found.append(joined[at : at + length])
        at += length
    return found if at == len(joined) else None
