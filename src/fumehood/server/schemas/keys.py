"""Models of the routes of keys and usage.

A key is described without its token; only the response that makes a key contains it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, cast

from pydantic import AwareDatetime, BaseModel, Field

from fumehood.server.schemas.base import Body
from fumehood.storage.keys import KeyRecord, NewKey
from fumehood.storage.policy import KeyPolicy
from fumehood.storage.usage import UsagePeriod
from fumehood.values.network import NetworkLevel

ScopeName = Literal["execute", "sandboxes", "keys", "metrics", "watch"]


class _Quotas(Body):
    max_sandboxes: int | None = Field(default=None, ge=0, le=1_000_000, description="Living at once.")
    max_concurrent_executions: int | None = Field(
        default=None, ge=0, le=1_000_000, description="Under way at once."
    )
    executions_per_day: int | None = Field(default=None, ge=0, le=10**12, description="Begun in a day (UTC).")
    cpu_seconds_per_day: float | None = Field(
        default=None, ge=0, le=1e12, description="Spent in a day (UTC)."
    )
    # JSON has no times: it comes as a text.
    expires_at: AwareDatetime | None = Field(
        default=None, strict=False, description="When the key ends, with its time zone."
    )
    max_network: NetworkLevel | None = Field(
        default=None, description="The most network that its sandboxes may be given; null: the server's."
    )


class Policy(_Quotas):
    """The quotas of a key; null means no bound."""

    max_limits: dict[str, int | float] = Field(
        default_factory=dict, max_length=32, description="Upper bounds of a sandbox's limits, by their names."
    )

    def policy(self) -> KeyPolicy:
        """Returns the policy in the form of the storage."""
        given = self.model_dump(exclude={"expires_at"})
        return KeyPolicy(**given, expires_at=self.expires_at.timestamp() if self.expires_at else None)


class CreateKey(Body):
    """A key to be made."""

    name: str = Field(min_length=1, max_length=200, description="What you call it.")
    scopes: list[ScopeName] = Field(default=["execute", "sandboxes"], min_length=1, max_length=5)
    policy: Policy = Field(default_factory=Policy)


class PolicyChange(_Quotas):
    """Quotas of a key that change; null means no bound from now on, and a bound that is not given does not change."""

    max_limits: dict[str, int | float | None] = Field(
        default_factory=dict,
        max_length=32,
        description="Upper bounds of a sandbox's limits that change, by their names; null removes one.",
    )

    def changes(self) -> dict[str, Any]:
        """Returns the given fields in the form of the storage."""
        given = self.model_dump(exclude_unset=True)

        if self.expires_at is not None:
            given["expires_at"] = self.expires_at.timestamp()

        return given


class ChangeKey(Body):
    """The fields of a key to change; missing fields do not change."""

    # Made, not given, so that the description shows no default.
    name: str = Field(default_factory=str, min_length=1, max_length=200, description="What you call it.")
    scopes: list[ScopeName] = Field(default_factory=list, min_length=1, max_length=5)
    policy: PolicyChange = Field(default_factory=PolicyChange)


class RotateKey(Body):
    """A request for a new token of a key."""

    grace_seconds: float = Field(
        default=0, ge=0, le=86_400 * 30, description="How long the old token is valid beside the new one."
    )


class Key(BaseModel):
    """A key, without its token."""

    id: str
    name: str
    scopes: list[str]
    policy: Policy
    created_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None
    previous_until: datetime | None = Field(description="Until when the token before the last one is valid.")
    made_by: str | None = Field(description="The key that made it; null: the owner of the server did.")

    @classmethod
    def of(cls, record: KeyRecord) -> Key:
        """Makes it from the stored one."""
        return cls(
            id=record.id,
            name=record.name,
            scopes=sorted(record.scopes),
            policy=policy_of(record.policy),
            created_at=datetime.fromtimestamp(record.created_at, UTC),
            revoked_at=_time(record.revoked_at),
            last_used_at=_time(record.last_used_at),
            previous_until=_time(record.previous_until),
            made_by=record.made_by or None,
        )


def policy_of(policy: KeyPolicy) -> Policy:
    """Returns a stored policy as answers show it."""
    return Policy(
        max_sandboxes=policy.max_sandboxes,
        max_concurrent_executions=policy.max_concurrent_executions,
        executions_per_day=policy.executions_per_day,
        cpu_seconds_per_day=policy.cpu_seconds_per_day,
        max_limits=dict(policy.max_limits),
        expires_at=_time(policy.expires_at),
        max_network=cast("NetworkLevel | None", policy.max_network),
    )


class KeyWithToken(BaseModel):
    """A key and its token, which is shown only here."""

    key: Key
    token: str

    @classmethod
    def of(cls, made: NewKey) -> KeyWithToken:
        """Makes it from a new key."""
        return cls(key=Key.of(made.record), token=made.token)


class KeyList(BaseModel):
    """All keys, the oldest first."""

    items: list[Key]


class UsageItem(BaseModel):
    """The usage of one key in one period."""

    key_id: str
    start: datetime
    executions: int
    sandboxes: int
    cpu_seconds: float
    wall_seconds: float
    bytes_in: int
    bytes_out: int
    errors: int

    @classmethod
    def of(cls, period: UsagePeriod) -> UsageItem:
        """Makes the item from a period of the usage ledger."""
        counts = period.counts
        return cls(
            key_id=period.key_id,
            start=datetime.fromtimestamp(period.start, UTC),
            executions=counts.executions,
            sandboxes=counts.sandboxes,
            cpu_seconds=counts.cpu_seconds,
            wall_seconds=counts.wall_seconds,
            bytes_in=counts.bytes_in,
            bytes_out=counts.bytes_out,
            errors=counts.errors,
        )


class UsageList(BaseModel):
    """Usage by period, the earliest first; periods without usage are left out."""

    items: list[UsageItem]


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
