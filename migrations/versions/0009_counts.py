"""What is counted: what a question takes of a prompt, beside its answer's token ids; and what one person asked today."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # By the model that the row's fingerprint names; 0 = unknown.
    op.add_column(
        "answer_tokens",
        sa.Column("n_question", sa.Integer(), nullable=False, server_default=sa.text("0")),
    )
    op.create_index("ix_turns_asker", "turns", ["asker_id", "created_at"])


def downgrade() -> None:
    op.drop_index("ix_turns_asker", "turns")
    op.drop_column("answer_tokens", "n_question")
