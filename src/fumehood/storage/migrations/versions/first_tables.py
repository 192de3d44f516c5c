"""Revision 0001: the first tables.

Run by alembic only. A revision is never edited after a release: existing databases have run it. It is written out and
does not import the current tables, which will have changed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the first tables."""
    _make_keys_and_usage()
    _make_servers_and_what_they_did()
    _make_files()


def _make_keys_and_usage() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(12), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("previous_hash", sa.LargeBinary()),
        sa.Column("previous_until", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("last_used_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
    )
    op.create_table(
        "usage",
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("executions", sa.BigInteger(), nullable=False),
        sa.Column("sandboxes", sa.BigInteger(), nullable=False),
        sa.Column("cpu_seconds", sa.Double(), nullable=False),
        sa.Column("wall_seconds", sa.Double(), nullable=False),
        sa.Column("bytes_in", sa.BigInteger(), nullable=False),
        sa.Column("bytes_out", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "hour", name="pk_usage"),
    )
    op.create_index("ix_usage_hour", "usage", ["hour"])


def _make_servers_and_what_they_did() -> None:
    op.create_table(
        "servers",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("place", sa.String(200), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("pid_started", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_servers"),
    )
    op.create_table(
        "idempotency",
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("name_hash", sa.LargeBinary(), nullable=False),
        sa.Column("request_hash", sa.LargeBinary(), nullable=False),
        sa.Column("server_id", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("headers", sa.Text()),
        sa.Column("body", sa.LargeBinary()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "name_hash", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_expires_at", "idempotency", ["expires_at"])


def _make_files() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("session_id", sa.String(128), nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("name", sa.String(1024), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("content_type", sa.String(255), nullable=False),
        sa.Column("blob", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("modified_from", sa.String(64)),
        sa.Column("modified_from_session", sa.String(128)),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_session_id", "files", ["session_id"])
    op.create_index("ix_files_expires_at", "files", ["expires_at"])
