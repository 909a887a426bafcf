"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

# Revisions are numbers of four digits, and the file's name begins with the same number.
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
