"""The index of what was said, for recall: finished terms per message, under each database's own full-text index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "recall_sessions",
        sa.Column("number", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("indexed_to", sa.Integer(), nullable=False),
        sa.Column("n_messages", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_recall_sessions"),
        sa.UniqueConstraint("session_id", name="uq_recall_sessions_session_id"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_recall_sessions_session_id"
        ),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "recall_messages",
        sa.Column("id", _SERIAL, autoincrement=False, nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_recall_messages"),
    )
    if op.get_bind().dialect.name == "sqlite":
        # The terms are finished: split at spaces, nothing folded, no positions (they are looked at in the texts themselves).
        op.execute(
            "CREATE VIRTUAL TABLE recall_fts USING fts5(terms, content='recall_messages', content_rowid='id', "
            "tokenize='ascii', detail='none', columnsize=0)"
        )
    else:
        # The text search configuration 'simple' with the parser left out, which would take codes and addresses apart. Without
        # fastupdate: every search would read the whole list of what is not yet sorted in.
        op.execute(
            "CREATE INDEX ix_recall_messages_terms ON recall_messages "
            "USING gin (array_to_tsvector(string_to_array(terms, ' '))) WITH (fastupdate = off)"
        )


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TABLE recall_fts")
    op.drop_table("recall_messages")
    op.drop_table("recall_sessions")
