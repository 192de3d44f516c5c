"""The current tables; the migrations create them, and a test compares the two.

Times are seconds since 1970 (UTC) as doubles and JSON is text, so that SQLite and PostgreSQL hold the same values.
There are no foreign keys: usage outlives its key, a file its session.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, LargeBinary, MetaData, String, Table, Text

from fumehood.errors import InvalidArgumentError

METADATA = MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_name)s"},
)

KEYS = Table(
    "keys",
    METADATA,
    Column("id", String(12), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("policy", Text, nullable=False),
    Column("token_hash", LargeBinary, nullable=False),
    Column("previous_hash", LargeBinary),
    Column("previous_until", Double),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("last_used_at", Double),
)

USAGE = Table(
    "usage",
    METADATA,
    Column("key_id", String(64), primary_key=True),
    # Whole hours since 1970.
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("executions", BigInteger, nullable=False),
    Column("sandboxes", BigInteger, nullable=False),
    Column("cpu_seconds", Double, nullable=False),
    Column("wall_seconds", Double, nullable=False),
    Column("bytes_in", BigInteger, nullable=False),
    Column("bytes_out", BigInteger, nullable=False),
    Column("errors", BigInteger, nullable=False),
    Index("ix_usage_hour", "hour"),
)

LOGINS = Table(
    "logins",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("cookie_hash", LargeBinary, nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("token_check", LargeBinary, nullable=False),
    Column("user_agent", String(300), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("last_used_at", Double, nullable=False),
    # At the latest; a login that is not used ends earlier.
    Column("ends_at", Double, nullable=False),
    Index("ix_logins_cookie_hash", "cookie_hash", unique=True),
    Index("ix_logins_key_id", "key_id"),
)

SHARES = Table(
    "shares",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("token_hash", LargeBinary, nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("sandbox_id", String(64), nullable=False),
    Column("context_id", String(255), nullable=False),
    # The parts, in JSON.
    Column("shows", Text, nullable=False),
    Column("from_at", Double),
    # Null: live.
    Column("until_at", Double),
    Column("created_at", Double, nullable=False),
    Column("ends_at", Double, nullable=False),
    Column("openings", Integer, nullable=False),
    # Only of keys whose shares hold no longer than their tokens.
    Column("token_check", LargeBinary),
    Index("ix_shares_key_id", "key_id"),
)

SERVERS = Table(
    "servers",
    METADATA,
    Column("id", String(32), primary_key=True),
    # Boot and PID namespace: the scope of `pid`.
    Column("place", String(200), nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("pid_started", BigInteger, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
)

IDEMPOTENCY = Table(
    "idempotency",
    METADATA,
    Column("key_id", String(64), primary_key=True),
    Column("name_hash", LargeBinary, primary_key=True),
    Column("request_hash", LargeBinary, nullable=False),
    Column("server_id", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("status", Integer),
    Column("headers", Text),
    Column("body", LargeBinary),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index("ix_idempotency_expires_at", "expires_at"),
)

FILES = Table(
    "files",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("session_id", String(128), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("name", String(1024), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("content_type", String(255), nullable=False),
    Column("blob", String(255), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("modified_from", String(64)),
    Column("modified_from_session", String(128)),
    Column("details", Text, nullable=False),
    Column("expires_at", Double),
    Index("ix_files_session_id", "session_id"),
    Index("ix_files_expires_at", "expires_at"),
)


def check_text(field: str, value: object, *, max_characters: int, empty: bool = False) -> None:
    """Raise InvalidArgumentError unless every supported database can hold `value` in a column of that width.

    PostgreSQL has no NUL in text, and a lone surrogate has no encoding: both would fail late, as a storage error.
    """
    allowed = f"text of {0 if empty else 1} to {max_characters} characters without NUL or lone surrogates"

    if not isinstance(value, str) or len(value) > max_characters or not (value or empty):
        raise InvalidArgumentError(field=field, value=value, allowed=allowed)

    if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidArgumentError(field=field, value=value, allowed=allowed)
