"""Revision 0003: shares of sandboxes.

Run by alembic only, and written out as `first_tables` is.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table of shares."""
    op.create_table(
        "shares",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("sandbox_id", sa.String(64), nullable=False),
        sa.Column("context_id", sa.String(255), nullable=False),
        sa.Column("shows", sa.Text(), nullable=False),
        sa.Column("from_at", sa.Double()),
        sa.Column("until_at", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ends_at", sa.Double(), nullable=False),
        sa.Column("openings", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_shares"),
    )
    op.create_index("ix_shares_key_id", "shares", ["key_id"])
