"""The first tables: dedupe keys, sessions, turns, replies, chat settings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _required(name: str, kind: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, kind, nullable=False)


def _texts(*names: str) -> list[sa.Column]:
    return [_required(name, sa.Text()) for name in names]


def _numbers(*names: str) -> list[sa.Column]:
    return [_required(name, sa.Integer()) for name in names]


def _partial_index(
    name: str, table: str, columns: list[str], where: str, *, unique: bool = False
) -> None:
    clause = sa.text(where)
    op.create_index(
        name, table, columns, unique=unique, sqlite_where=clause, postgresql_where=clause
    )


def _turn_of(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=f"fk_{table}_turn_id")


def upgrade() -> None:
    _create_inbox_and_sessions()
    _create_turns()
    _create_replies()


def _create_inbox_and_sessions() -> None:
    op.create_table(
        "dedupe",
        _required("hash", sa.LargeBinary()),
        _required("seen_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("hash", name="pk_dedupe"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_dedupe_seen_at", "dedupe", ["seen_at"])
    op.create_table(
        "sessions",
        *_texts("id", "key_hash", "app_id", "chat_id"),
        sa.Column("topic_id", sa.Text()),
        sa.Column("user_id", sa.Text()),
        *_numbers("epoch", "is_current", "erased", "last_turn_no"),
        *_texts("noted_date"),
        _required("created_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("key_hash", "epoch", name="uq_sessions_key_hash_epoch"),
    )
    _partial_index("ux_sessions_current", "sessions", ["key_hash"], "is_current = 1", unique=True)
    op.create_index("ix_sessions_chat", "sessions", ["app_id", "chat_id"])
    op.create_table(
        "canonical",
        *_texts("session_id", "fingerprint"),
        _required("token_ids", sa.LargeBinary()),
        _required("boundaries", sa.LargeBinary()),
        *_numbers("window_from_turn_no", "covers_turn_no"),
        _required("updated_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("session_id", name="pk_canonical"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_canonical_session_id"),
    )
    op.create_table(
        "chat_settings",
        *_texts("app_id", "chat_id", "policy"),
        _required("updated_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("app_id", "chat_id", name="pk_chat_settings"),
    )


def _create_turns() -> None:
    op.create_table(
        "turns",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        *_texts("id", "session_id"),
        *_numbers("turn_no"),
        *_texts("kind", "lane", "state"),
        *_numbers("attempt"),
        *_texts("asker_id", "asker_name"),
        *_numbers("asker_is_bot"),
        *_texts("chat_kind", "question", "prompt_text", "target", "attachments"),
        *_numbers("cancel_requested", "silent", "replaced"),
        *_texts("error"),
        sa.Column("lease_owner", sa.Text()),
        sa.Column("lease_until", sa.BigInteger()),
        _required("created_at", sa.BigInteger()),
        sa.Column("finished_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("seq", name="pk_turns"),
        sa.UniqueConstraint("id", name="uq_turns_id"),
        sa.UniqueConstraint("session_id", "turn_no", name="uq_turns_session_id_turn_no"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_turns_session_id"),
        sqlite_autoincrement=True,
    )
    _partial_index(
        "ux_turns_running", "turns", ["session_id", "lane"], "state = 'running'", unique=True
    )
    _partial_index("ix_turns_waiting", "turns", ["seq"], "state = 'queued'")
    _partial_index(
        "ix_turns_waiting_session", "turns", ["session_id", "lane", "seq"], "state = 'queued'"
    )
    op.create_table(
        "inbound",
        sa.Column("id", _SERIAL, autoincrement=True, nullable=False),
        *_texts("app_id", "message_id", "event_id", "turn_id"),
        _required("received_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_inbound"),
        _turn_of("inbound"),
    )
    op.create_index("ix_inbound_message", "inbound", ["app_id", "message_id"])
    op.create_index("ix_inbound_turn", "inbound", ["turn_id"])


def _create_replies() -> None:
    op.create_table(
        "replies",
        *_texts("turn_id"),
        *_numbers("rev"),
        *_texts("text"),
        _required("token_ids", sa.LargeBinary()),
        *_texts("outcome", "notice"),
        _required("updated_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("turn_id", name="pk_replies"),
        _turn_of("replies"),
    )
    op.create_table(
        "answer_tokens",
        *_texts("turn_id", "fingerprint"),
        _required("token_ids", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("turn_id", name="pk_answer_tokens"),
        _turn_of("answer_tokens"),
    )
    op.create_table(
        "reply_parts",
        *_texts("turn_id"),
        *_numbers("n"),
        *_texts("kind", "idem_key", "state", "remote_id", "message_id"),
        *_numbers("sequence", "covers_from_chars", "covers_to_chars", "confirmed_rev"),
        sa.Column("opened_at", sa.BigInteger()),
        sa.Column("attempted_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("turn_id", "n", name="pk_reply_parts"),
        _turn_of("reply_parts"),
    )


def downgrade() -> None:
    for table in (
        "reply_parts", "answer_tokens", "replies", "inbound", "turns", "chat_settings", "canonical", "sessions", "dedupe",
    ):  # fmt: skip
        op.drop_table(table)
