"""What one message brought of the question it is in: recalled alone, it goes alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_COLUMNS = ("n_chars", "n_attachments", "n_quotes")


def upgrade() -> None:
    for name in _COLUMNS:  # NULL = unknown: with such a message the whole question goes
        op.add_column("inbound", sa.Column(name, sa.Integer(), nullable=True))


def downgrade() -> None:
    for name in _COLUMNS:
        op.drop_column("inbound", name)
