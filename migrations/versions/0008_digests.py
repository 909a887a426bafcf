"""What the parts of a long text came to, so that a summary that was interrupted goes on where it was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "digest_parts",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("n", sa.Integer(), autoincrement=False, nullable=False),
        # 0 = the talk itself.
        sa.Column("document_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("how", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "n", name="pk_digest_parts"),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_digest_parts_turn_id"),
    )


def downgrade() -> None:
    op.drop_table("digest_parts")
