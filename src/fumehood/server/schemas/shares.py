"""Models of shares, and of the data that their readers see."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field

from fumehood.server.schemas.base import Body, Name
from fumehood.storage.shares import StoredShare, as_datetime
from fumehood.values.sandbox import SandboxInfo
from fumehood.values.shares import DAY_SECONDS, LONGEST_SHARE_SECONDS, SHORTEST_SHARE_SECONDS, SharedPart

# A body comes as JSON, which has no times.
_Time = Annotated[AwareDatetime, Field(strict=False)]
SharedState = Literal["running", "paused", "ending", "ended"]


class NewShare(Body):
    """A share to make."""

    sandbox_id: str = Field(max_length=64, description="The sandbox that it shows.")
    shows: list[SharedPart] = Field(
        default=["record"],
        min_length=1,
        max_length=10,
        description="The parts that it shows: `record` is code and outputs. Variables and files are those of now, so a "
        "share with `until_at` cannot have them. `network` is of the whole sandbox, so a share of a context besides "
        "`default` cannot have it. `audit` is an extract: the executions of the context, and how the sandbox began, "
        "paused and ended.",
    )
    context_id: Name = Field(default="default", description="The one context that it shows.")
    seconds: int = Field(
        default=DAY_SECONDS,
        ge=SHORTEST_SHARE_SECONDS,
        le=LONGEST_SHARE_SECONDS,
        description="After how long it ends by itself.",
    )
    from_at: _Time | None = Field(
        default=None, description="What began earlier is not shown; null: everything is."
    )
    until_at: _Time | None = Field(
        default=None, description="What ended later is not shown; null: it is live. Not in the future."
    )


class ShareAnswer(BaseModel):
    """A share, without its secret."""

    id: str
    key_id: str = Field(description="The key that made it, with which it ends.")
    sandbox_id: str
    context_id: str
    shows: list[SharedPart]
    from_at: datetime | None
    until_at: datetime | None = Field(description="Null: it is live.")
    created_at: datetime
    ends_at: datetime
    openings: int = Field(description="How often its address was opened.")
    readers: int = Field(description="How many follow it now.")

    @classmethod
    def of(cls, share: StoredShare, readers: int) -> ShareAnswer:
        """Makes it from the stored one."""
        return cls.model_validate(_fields(share, readers))


class ShareList(BaseModel):
    """Shares that have not ended, the newest first."""

    items: list[ShareAnswer]


class NewShareAnswer(BaseModel):
    """A new share; its secret is in this answer only."""

    share: ShareAnswer
    secret: str
    url: str = Field(
        description="The address to hand on; the secret stands behind `#`, which no log or proxy sees."
    )


class ShareSecret(Body):
    """The secret that opens a share."""

    secret: str = Field(max_length=100)


class SharedSandboxAnswer(BaseModel):
    """A share as its reader sees it: no keys, and no id of the sandbox."""

    shows: list[SharedPart]
    context_id: str
    from_at: datetime | None
    until_at: datetime | None = Field(description="Null: it is live.")
    ends_at: datetime = Field(description="When the share ends.")
    readers: int = Field(description="How many follow it now.")
    state: SharedState = Field(description="That of the sandbox.")
    reason: str = Field(description="Why the sandbox has ended, in a word; empty while it lives.")
    started_at: datetime | None
    sandbox_ends_at: datetime | None = Field(
        description="When the sandbox ends; null: no end, or it has ended."
    )

    @classmethod
    def of(
        cls, share: StoredShare, readers: int, state: SharedState, reason: str, info: SandboxInfo | None
    ) -> SharedSandboxAnswer:
        """Makes it from the stored share and its sandbox; the latter is None after its end."""
        names = cls.model_fields.keys() & _fields(share, readers).keys()
        shown = {name: value for name, value in _fields(share, readers).items() if name in names}
        about = {
            "state": state,
            "reason": reason,
            "started_at": None if info is None else info.started_at,
            "sandbox_ends_at": None if info is None else info.ends_at,
        }
        return cls.model_validate(shown | about)


class OpenedShare(BaseModel):
    """A share that was opened."""

    token: str = Field(description="For the routes of this share alone, as `Authorization: Bearer TOKEN`.")
    share: SharedSandboxAnswer


def _fields(share: StoredShare, readers: int) -> dict[str, object]:
    return {
        **{name: getattr(share, name) for name in share.__dataclass_fields__},
        "shows": list(share.shows),
        "from_at": as_datetime(share.from_at),
        "until_at": as_datetime(share.until_at),
        "created_at": as_datetime(share.created_at),
        "ends_at": as_datetime(share.ends_at),
        "readers": readers,
    }
