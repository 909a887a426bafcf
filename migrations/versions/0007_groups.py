"""Groups: what a question refers to, long pastes that come in parts, and what was said in groups that are listened to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column(
        "turns", sa.Column("quotes", sa.Text(), nullable=False, server_default=sa.text("'[]'"))
    )
    # Not begun before (microseconds by the database's clock): the next part of a long paste may come.
    op.add_column("turns", sa.Column("hold_until", sa.BigInteger(), nullable=True))
    # A message of ours that somebody refers to is looked up by its id.
    op.create_index("ix_reply_parts_message_id", "reply_parts", ["message_id"])
    op.create_table(
        "heard",
        sa.Column("id", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("said_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_heard"),
        sa.UniqueConstraint("app_id", "message_id", name="uq_heard_app_id_message_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_heard_chat", "heard", ["app_id", "chat_id", "said_at"])
    # Groups that are listened to and were told so.
    op.create_table(
        "heard_chats",
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.Column("told_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("app_id", "chat_id", name="pk_heard_chats"),
    )
    # People of whom nothing is kept.
    op.create_table(
        "heard_not",
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("app_id", "user_id", name="pk_heard_not"),
    )


def downgrade() -> None:
    for table in ("heard_not", "heard_chats", "heard"):
        op.drop_table(table)
    op.drop_index("ix_reply_parts_message_id", "reply_parts")
    op.drop_column("turns", "hold_until")
    op.drop_column("turns", "quotes")
