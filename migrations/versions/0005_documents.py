"""Files that people sent, as text in pieces: read once, kept with the conversation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "documents",
        sa.Column("id", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        # The attachment's name for good: what was read once for a conversation is not fetched again by any turn of it.
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("turn_no", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("n_pages", sa.Integer(), nullable=False),
        sa.Column("n_chars", sa.Integer(), nullable=False),
        sa.Column("n_pieces", sa.Integer(), nullable=False),
        sa.Column("is_cut", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_documents"),
        sa.UniqueConstraint("session_id", "source", name="uq_documents_session_id_source"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_documents_session_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "document_pieces",
        sa.Column("document_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("n", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("start_chars", sa.Integer(), nullable=False),
        # From 1; 0 = a file without pages.
        sa.Column("page", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("document_id", "n", name="pk_document_pieces"),
        sa.ForeignKeyConstraint(
            ["document_id"], ["documents.id"], name="fk_document_pieces_document_id"
        ),
    )


def downgrade() -> None:
    op.drop_table("document_pieces")
    op.drop_table("documents")
