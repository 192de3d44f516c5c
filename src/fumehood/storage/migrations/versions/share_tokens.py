"""Revision 0004: shares that are bound to the token of the key that made them.

Run by alembic only, and written out as `first_tables` is.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the code that binds a share to a token."""
    op.add_column("shares", sa.Column("token_check", sa.LargeBinary()))
