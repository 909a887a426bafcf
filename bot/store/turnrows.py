"""How a turn lies in its row: drafts in, frozen copies out, and the two statements that cancel what waits.

Pure conversions and statements; runs nothing by itself but `load`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bot.domain.records import TurnDraft
from bot.domain.types import (
    Attachment,
    ChatKind,
    Lane,
    Quoted,
    ReplyTarget,
    Sender,
    Turn,
    TurnKind,
    TurnState,
)
from bot.store.sessions import read_key
from bot.store.tables import AnyRow, from_micros, inbound, reply_parts, sessions, to_micros, turns


def write_target(target: ReplyTarget) -> str:
    """A ReplyTarget as JSON."""
    expires = None if target.expires_at is None else to_micros(target.expires_at)
    return json.dumps([target.app_id, target.chat_id, target.reply_to, target.opaque, expires])


def read_target(text: str) -> ReplyTarget:
    """The ReplyTarget of `write_target`."""
    app_id, chat_id, reply_to, opaque, expires = json.loads(text)
    return ReplyTarget(
        app_id, chat_id, reply_to, opaque, None if expires is None else from_micros(expires)
    )


def write_attachments(attachments: Iterable[Attachment]) -> str:
    """Attachments as JSON."""
    return json.dumps([_fields(a) for a in attachments])


def _fields(attachment: Attachment) -> list[str]:
    a = attachment
    return [a.kind, a.name, a.remote_key, *([a.message_id] if a.message_id else [])]


def read_attachments(text: str) -> tuple[Attachment, ...]:
    """The attachments of `write_attachments`."""
    return tuple(Attachment(*fields) for fields in json.loads(text))


def write_quotes(quotes: Iterable[Quoted]) -> str:
    """Quotes as JSON."""
    return json.dumps(
        [
            [q.message_id, q.text, [_fields(a) for a in q.attachments], q.is_topic_root]
            for q in quotes
        ]
    )


def read_quotes(text: str) -> tuple[Quoted, ...]:
    """The quotes of `write_quotes`."""
    return tuple(
        Quoted(message_id, said, tuple(Attachment(*fields) for fields in files), is_root)
        for message_id, said, files, is_root in json.loads(text)
    )


def from_draft(draft: TurnDraft) -> dict[str, Any]:
    """The columns of a new QUEUED turn that its draft decides."""
    return {
        "kind": draft.kind.value,
        "lane": draft.lane.value,
        "state": TurnState.QUEUED.value,
        "attempt": 0,
        "asker_id": draft.asker.user_id,
        "asker_name": draft.asker.name,
        "asker_is_bot": int(draft.asker.is_bot),
        "chat_kind": draft.chat_kind.value,
        "question": draft.question,
        "prompt_text": "",
        "target": write_target(draft.target),
        "attachments": write_attachments(draft.attachments),
        "cancel_requested": 0,
        "silent": 0,
        "replaced": 0,
        "error": "",
        "continues": draft.continues,
        "quotes": write_quotes(draft.quotes),
    }


def read_sender(row: AnyRow) -> Sender:
    """Who asked."""
    return Sender(row.asker_id, row.asker_name, bool(row.asker_is_bot))


_WITH_SESSION = sa.select(
    turns,
    *(sessions.c[name] for name in ("app_id", "chat_id", "topic_id", "user_id", "epoch")),
).join(sessions, sessions.c.id == turns.c.session_id)


_OF_IDS = _WITH_SESSION.where(turns.c.id.in_(sa.bindparam("ids", expanding=True))).order_by(
    turns.c.seq
)
_MESSAGES_OF = (
    sa.select(inbound.c.turn_id, inbound.c.message_id)
    .where(inbound.c.turn_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(inbound.c.id)
)


def load(connection: Connection, where: sa.ColumnElement[bool]) -> list[Turn]:
    """The turns that match, in order of arrival, with their message ids: two statements however many there are."""
    rows = connection.execute(_WITH_SESSION.where(where).order_by(turns.c.seq)).all()
    return _with_messages(connection, rows)


def load_ids(connection: Connection, ids: Iterable[str]) -> list[Turn]:
    """The turns with these ids, in order of arrival: two statements, none for no ids."""
    wanted = list(ids)
    rows = connection.execute(_OF_IDS, {"ids": wanted}).all() if wanted else []
    return _with_messages(connection, rows)


def load_newest(
    connection: Connection, where: sa.ColumnElement[bool], newest: sa.UnaryExpression[int]
) -> Turn | None:
    """The first turn that matches in the order of `newest`."""
    rows = connection.execute(_WITH_SESSION.where(where).order_by(newest).limit(1)).all()
    return next(iter(_with_messages(connection, rows)), None)


def _with_messages(connection: Connection, rows: Sequence[AnyRow]) -> list[Turn]:
    if not rows:
        return []
    messages: dict[str, list[str]] = {row.id: [] for row in rows}
    for turn_id, message_id in connection.execute(_MESSAGES_OF, {"ids": list(messages)}):
        messages[turn_id].append(message_id)
    return [_read(row, tuple(messages[row.id])) for row in rows]


def _read(row: AnyRow, message_ids: tuple[str, ...]) -> Turn:
    return Turn(
        id=row.id,
        session_id=row.session_id,
        session=read_key(row),
        kind=TurnKind(row.kind),
        lane=Lane(row.lane),
        state=TurnState(row.state),
        attempt=row.attempt,
        asker=read_sender(row),
        question=row.question,
        target=read_target(row.target),
        message_ids=message_ids,
        created_at=row.created_at,
        chat_kind=ChatKind(row.chat_kind),
        turn_no=row.turn_no,
        prompt_text=row.prompt_text,
        cancel_requested=bool(row.cancel_requested),
        silent=bool(row.silent),
        attachments=read_attachments(row.attachments),
        continues=row.continues,
        quotes=read_quotes(row.quotes),
    )


def cancel_waiting(
    which: sa.ColumnElement[bool], now: datetime, *, silent: bool
) -> tuple[sa.Update, sa.Update]:
    """Two statements that cancel QUEUED turns: at once, or, where a crashed attempt left something on the screen, by a mark.

    Such a turn must run once more to end what people see; it is claimed with cancel_requested set.
    """
    shown = sa.exists().where(reply_parts.c.turn_id == turns.c.id)
    queued = sa.and_(which, sa.text("turns.state = 'queued'"))
    quiet: dict[str, Any] = {"silent": 1} if silent else {}
    return (
        sa.update(turns).where(queued, shown).values(cancel_requested=1, **quiet),
        sa.update(turns)
        .where(queued, ~shown)
        .values(state=TurnState.CANCELLED.value, cancel_requested=1, finished_at=now, **quiet),
    )
