"""Reminders and scheduled prompts, what a conversation was told or set, and answers that go on where another was cut."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column(
        "turns", sa.Column("continues", sa.Text(), nullable=False, server_default=sa.text("''"))
    )
    op.add_column(
        "sessions",
        sa.Column("told_from_turn_no", sa.Integer(), nullable=False, server_default=sa.text("0")),
    )
    op.create_table(
        "session_settings",
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("system_text", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_hash", name="pk_session_settings"),
    )
    op.create_table(
        "timers",
        sa.Column("id", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.Text()),
        sa.Column("user_id", sa.Text()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("asker_id", sa.Text(), nullable=False),
        sa.Column("asker_name", sa.Text(), nullable=False),
        sa.Column("chat_kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        # The command that made it: taken up again after a crash, it makes no second one.
        sa.Column("made_by_turn", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_timers"),
        sa.UniqueConstraint("made_by_turn", name="uq_timers_made_by_turn"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_timers_due_at", "timers", ["due_at"])
    op.create_index("ix_timers_key_hash", "timers", ["key_hash"])


def downgrade() -> None:
    op.drop_table("timers")
    op.drop_table("session_settings")
    op.drop_column("sessions", "told_from_turn_no")
    op.drop_column("turns", "continues")
