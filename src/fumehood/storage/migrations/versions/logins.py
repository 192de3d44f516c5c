"""Revision 0002: logins of browsers.

Run by alembic only, and written out as `first_tables` is.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table of logins."""
    op.create_table(
        "logins",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("cookie_hash", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("token_check", sa.LargeBinary(), nullable=False),
        sa.Column("user_agent", sa.String(300), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=False),
        sa.Column("ends_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_logins"),
    )
    op.create_index("ix_logins_cookie_hash", "logins", ["cookie_hash"], unique=True)
    op.create_index("ix_logins_key_id", "logins", ["key_id"])
