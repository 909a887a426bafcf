"""The tables, as the newest migration leaves them, and the column types that read the same on both databases.

Owns names, types and indexes; holds no queries. A test compares these with what `migrations/` really builds.
"""

# ruff: noqa: ARG002  (SQLAlchemy's hooks are handed a dialect that these types, alike on both, need not look at)
from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Dialect, Row
from sqlalchemy.types import TypeDecorator

# A row of any query; what is in it stands in the query beside its use.
AnyRow: TypeAlias = Row[*tuple[Any, ...]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 of an aware datetime; exact."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The aware UTC datetime of `to_micros`."""
    return _EPOCH + timedelta(microseconds=micros)


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit unsigned integers."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(blob: bytes) -> tuple[int, ...]:
    """The ids of `pack_ids`."""
    packed = array("I")
    packed.frombytes(blob)
    if sys.byteorder == "big":
        packed.byteswap()
    return tuple(packed)


def storable(text: str) -> str:
    """Text that every database takes: NUL (PostgreSQL refuses it) and lone surrogates become U+FFFD, length unchanged."""
    if text.isascii() and "\x00" not in text:
        return text
    return "".join("\ufffd" if c == "\x00" or "\ud800" <= c <= "\udfff" else c for c in text)


class Words(TypeDecorator[str]):
    """Text of any length, made storable on the way in: a message must never be refused for a stray character."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


class Moment(TypeDecorator[datetime]):
    """An aware datetime as integer microseconds since 1970: exact, sortable, equal on SQLite and PostgreSQL."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else to_micros(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else from_micros(value)


class TokenIds(TypeDecorator[Sequence[int]]):
    """Token ids (or offsets) as a compact blob."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Sequence[int] | None, dialect: Dialect) -> bytes | None:
        return None if value is None else pack_ids(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> tuple[int, ...] | None:
        return None if value is None else unpack_ids(value)


_Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

dedupe = sa.Table(
    "dedupe",
    metadata,
    sa.Column("hash", sa.LargeBinary, primary_key=True),
    sa.Column("seen_at", Moment, nullable=False),
    sa.Index("ix_dedupe_seen_at", "seen_at"),
    sqlite_with_rowid=False,
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("key_hash", sa.Text, nullable=False),
    sa.Column("app_id", Words, nullable=False),
    sa.Column("chat_id", Words, nullable=False),
    sa.Column("topic_id", Words),
    sa.Column("user_id", Words),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("is_current", sa.Integer, nullable=False),
    sa.Column("erased", sa.Integer, nullable=False),
    sa.Column("last_turn_no", sa.Integer, nullable=False),
    sa.Column("noted_date", Words, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    # The first turn that prompts still show as it was said, as people were told last.
    sa.Column("told_from_turn_no", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.UniqueConstraint("key_hash", "epoch"),
    sa.Index(
        "ux_sessions_current",
        "key_hash",
        unique=True,
        sqlite_where=sa.text("is_current = 1"),
        postgresql_where=sa.text("is_current = 1"),
    ),
    sa.Index("ix_sessions_chat", "app_id", "chat_id"),
)

canonical = sa.Table(
    "canonical",
    metadata,
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), primary_key=True),
    sa.Column("fingerprint", Words, nullable=False),
    sa.Column("token_ids", TokenIds, nullable=False),
    sa.Column("boundaries", TokenIds, nullable=False),
    sa.Column("window_from_turn_no", sa.Integer, nullable=False),
    sa.Column("covers_turn_no", sa.Integer, nullable=False),
    sa.Column("updated_at", Moment, nullable=False),
)

summaries = sa.Table(
    "summaries",
    metadata,
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), primary_key=True),
    sa.Column("rev", sa.Integer, nullable=False),
    sa.Column("covers_turn_no", sa.Integer, nullable=False),
    sa.Column("text", Words, nullable=False),
    sa.Column("n_tokens", sa.Integer, nullable=False),
    sa.Column("how", sa.Text, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
)

turns = sa.Table(
    "turns",
    metadata,
    # The order of arrival; the order inside a session is also turn_no.
    sa.Column("seq", _Serial, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("turn_no", sa.Integer, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("lane", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("asker_id", Words, nullable=False),
    sa.Column("asker_name", Words, nullable=False),
    sa.Column("asker_is_bot", sa.Integer, nullable=False),
    sa.Column("chat_kind", sa.Text, nullable=False),
    sa.Column("question", Words, nullable=False),
    sa.Column("prompt_text", Words, nullable=False),
    sa.Column("target", Words, nullable=False),
    sa.Column("attachments", Words, nullable=False),
    sa.Column("cancel_requested", sa.Integer, nullable=False),
    sa.Column("silent", sa.Integer, nullable=False),
    sa.Column("replaced", sa.Integer, nullable=False),
    sa.Column("error", Words, nullable=False),
    sa.Column("lease_owner", Words),
    sa.Column("lease_until", sa.BigInteger),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("finished_at", Moment),
    # The turn whose cut answer this one goes on with; "" = an ordinary question.
    sa.Column("continues", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("quotes", Words, nullable=False, server_default=sa.text("'[]'")),
    # Not begun before (microseconds by the database's clock): the next part of a long paste may come.
    sa.Column("hold_until", sa.BigInteger),
    sa.UniqueConstraint("id"),
    sa.UniqueConstraint("session_id", "turn_no"),
    # The rule of the house, kept by the database itself: one RUNNING turn per (session, lane).
    sa.Index(
        "ux_turns_running",
        "session_id",
        "lane",
        unique=True,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    ),
    # How much somebody asked today.
    sa.Index("ix_turns_asker", "asker_id", "created_at"),
    # Both hold only waiting turns, so that a claim costs the same however long the history is.
    sa.Index(
        "ix_turns_waiting",
        "seq",
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    ),
    sa.Index(
        "ix_turns_waiting_session",
        "session_id",
        "lane",
        "seq",
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    ),
    sqlite_autoincrement=True,
)

inbound = sa.Table(
    "inbound",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("app_id", Words, nullable=False),
    sa.Column("message_id", Words, nullable=False),
    sa.Column("event_id", Words, nullable=False),
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), nullable=False),
    sa.Column("received_at", Moment, nullable=False),
    # What it brought of the turn's question, files and quotes; NULL = the turn is not made of its messages.
    sa.Column("n_chars", sa.Integer),
    sa.Column("n_attachments", sa.Integer),
    sa.Column("n_quotes", sa.Integer),
    sa.Index("ix_inbound_message", "app_id", "message_id"),
    sa.Index("ix_inbound_turn", "turn_id"),
)

replies = sa.Table(
    "replies",
    metadata,
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("rev", sa.Integer, nullable=False),
    sa.Column("text", Words, nullable=False),
    sa.Column("token_ids", TokenIds, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("notice", Words, nullable=False),
    sa.Column("updated_at", Moment, nullable=False),
)

answer_tokens = sa.Table(
    "answer_tokens",
    metadata,
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("fingerprint", Words, nullable=False),
    sa.Column("token_ids", TokenIds, nullable=False),
    # What the question takes of a prompt of that model; 0 = unknown.
    sa.Column("n_question", sa.Integer, nullable=False, server_default=sa.text("0")),
)

reply_parts = sa.Table(
    "reply_parts",
    metadata,
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("n", sa.Integer, primary_key=True),
    sa.Column("kind", Words, nullable=False),
    sa.Column("idem_key", Words, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("remote_id", Words, nullable=False),
    sa.Column("message_id", Words, nullable=False),
    sa.Column("sequence", sa.Integer, nullable=False),
    sa.Column("covers_from_chars", sa.Integer, nullable=False),
    sa.Column("covers_to_chars", sa.Integer, nullable=False),
    sa.Column("confirmed_rev", sa.Integer, nullable=False),
    sa.Column("opened_at", Moment),
    sa.Column("attempted_at", Moment),
    # A message of ours that somebody refers to is looked up by its id.
    sa.Index("ix_reply_parts_message_id", "message_id"),
)

# How far a session's messages are in the index, how many they are, and the number under which they stand in it.
recall_sessions = sa.Table(
    "recall_sessions",
    metadata,
    sa.Column("number", _Serial, primary_key=True, autoincrement=True),
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("indexed_to", sa.Integer, nullable=False),
    sa.Column("n_messages", sa.Integer, nullable=False),
    sa.UniqueConstraint("session_id"),
    sqlite_autoincrement=True,
)

# The terms of one message (bot.domain.segment), joined by spaces. Its id holds the session's number, the turn's and which of
# the turn's two messages it is (bot.store.search), so that one session's are a range. On SQLite the virtual table recall_fts
# indexes it, on PostgreSQL a GIN index; both are made by the migration.
recall_messages = sa.Table(
    "recall_messages",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=False),
    sa.Column("terms", Words, nullable=False),
)

chat_settings = sa.Table(
    "chat_settings",
    metadata,
    sa.Column("app_id", Words, primary_key=True),
    sa.Column("chat_id", Words, primary_key=True),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("updated_at", Moment, nullable=False),
)

session_settings = sa.Table(
    "session_settings",
    metadata,
    # Of the session's key, whatever its epoch.
    sa.Column("key_hash", sa.Text, primary_key=True),
    sa.Column("system_text", Words, nullable=False),
    sa.Column("updated_at", Moment, nullable=False),
)

# Reminders (one row until it was said) and scheduled prompts (one row; due_at is the next time).
timers = sa.Table(
    "timers",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("key_hash", sa.Text, nullable=False),
    sa.Column("app_id", Words, nullable=False),
    sa.Column("chat_id", Words, nullable=False),
    sa.Column("topic_id", Words),
    sa.Column("user_id", Words),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("text", Words, nullable=False),
    sa.Column("asker_id", Words, nullable=False),
    sa.Column("asker_name", Words, nullable=False),
    sa.Column("chat_kind", sa.Text, nullable=False),
    sa.Column("target", Words, nullable=False),
    sa.Column("due_at", Moment, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("made_by_turn", sa.Text, nullable=False),
    sa.UniqueConstraint("made_by_turn"),
    sa.Index("ix_timers_due_at", "due_at"),
    sa.Index("ix_timers_key_hash", "key_hash"),
    sqlite_autoincrement=True,
)

# Files that people sent, as text. What was read once for a conversation is not fetched again by any turn of it.
documents = sa.Table(
    "documents",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("session_id", sa.Text, sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("turn_id", sa.Text, nullable=False),
    sa.Column("turn_no", sa.Integer, nullable=False),
    sa.Column("name", Words, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("n_pages", sa.Integer, nullable=False),
    sa.Column("n_chars", sa.Integer, nullable=False),
    sa.Column("n_pieces", sa.Integer, nullable=False),
    sa.Column("is_cut", sa.Integer, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.UniqueConstraint("session_id", "source"),
    sqlite_autoincrement=True,
)

# What the parts of a long text came to, while its summary is made. `document_id` 0 = the talk itself.
digest_parts = sa.Table(
    "digest_parts",
    metadata,
    sa.Column("turn_id", sa.Text, sa.ForeignKey("turns.id"), primary_key=True),
    sa.Column("n", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("document_id", sa.BigInteger, nullable=False),
    sa.Column("start", sa.BigInteger, nullable=False),
    sa.Column("end", sa.BigInteger, nullable=False),
    sa.Column("text", Words, nullable=False),
    sa.Column("how", sa.Text, nullable=False),
)

document_pieces = sa.Table(
    "document_pieces",
    metadata,
    sa.Column("document_id", sa.BigInteger, sa.ForeignKey("documents.id"), primary_key=True),
    sa.Column("n", sa.Integer, primary_key=True),
    sa.Column("start_chars", sa.Integer, nullable=False),
    sa.Column("page", sa.Integer, nullable=False),
    sa.Column("text", Words, nullable=False),
)

# What only one of several processes may hold, and until when by the database's clock (bot.store.leases).
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("until_us", sa.BigInteger, nullable=False),
)

# What was said in groups that are listened to, not to the bot (bot.store.heard). Kept for hours, not for ever.
heard = sa.Table(
    "heard",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("app_id", Words, nullable=False),
    sa.Column("chat_id", Words, nullable=False),
    sa.Column("message_id", Words, nullable=False),
    sa.Column("user_id", Words, nullable=False),
    sa.Column("user_name", Words, nullable=False),
    sa.Column("text", Words, nullable=False),
    sa.Column("said_at", Moment, nullable=False),
    sa.UniqueConstraint("app_id", "message_id"),
    sa.Index("ix_heard_chat", "app_id", "chat_id", "said_at"),
    sqlite_autoincrement=True,
)

# Groups that are listened to and were told so.
heard_chats = sa.Table(
    "heard_chats",
    metadata,
    sa.Column("app_id", Words, primary_key=True),
    sa.Column("chat_id", Words, primary_key=True),
    sa.Column("told_at", Moment, nullable=False),
)

# People of whom nothing is kept.
heard_not = sa.Table(
    "heard_not",
    metadata,
    sa.Column("app_id", Words, primary_key=True),
    sa.Column("user_id", Words, primary_key=True),
    sa.Column("since", Moment, nullable=False),
)
