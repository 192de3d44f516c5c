"""Shares: read-only views of a sandbox of a server, which people open without an account.

Plain values: this module does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

from fumehood.errors import InvalidArgumentError
from fumehood.values.checks import check_integer, check_text
from fumehood.values.requests import DEFAULT_CONTEXT_ID

SharedPart = Literal["record", "variables", "files", "audit", "network"]
SHARED_PARTS: tuple[SharedPart, ...] = get_args(SharedPart)
DAY_SECONDS = 86_400
SHORTEST_SHARE_SECONDS = 60
LONGEST_SHARE_SECONDS = 30 * DAY_SECONDS
_NAME_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeShare:
    """Asks for a share.

    Attributes:
        sandbox_id: The sandbox that it shows.
        shows: The parts that it shows.
        context_id: The only context that it shows.
        seconds: How long it lasts unless it is revoked, in seconds.
        from_at: Cells that began earlier are hidden; None hides nothing.
        until_at: Cells that ended later are hidden; None shows the sandbox live.
    """

    sandbox_id: str
    shows: Sequence[SharedPart] = ("record",)
    context_id: str = DEFAULT_CONTEXT_ID
    seconds: int = DAY_SECONDS
    from_at: datetime | None = None
    until_at: datetime | None = None

    def __post_init__(self) -> None:
        if isinstance(self.shows, str) or not self.shows:
            raise InvalidArgumentError(
                field="shows", value=self.shows, allowed="a list of parts, such as ['record']"
            )

        for part in self.shows:
            if part not in SHARED_PARTS:
                raise InvalidArgumentError(field="shows", value=part, allowed=", ".join(SHARED_PARTS))

        check_text("context", self.context_id, max_bytes=_NAME_BYTES)
        check_integer("seconds", self.seconds, low=SHORTEST_SHARE_SECONDS, high=LONGEST_SHARE_SECONDS)

        for name in ("from_at", "until_at"):
            at = getattr(self, name)

            if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
                raise InvalidArgumentError(
                    field=name, value=at, allowed="a time with its zone, such as datetime.now(UTC)"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A read-only view of a sandbox of a server, for people with its address.

    Attributes:
        id: Its name in calls.
        key_id: The key that made it; the share ends when the key does.
        sandbox_id: The sandbox that it shows.
        context_id: The only context that it shows.
        shows: The parts that it shows.
        from_at: Cells that began earlier are hidden; None hides nothing.
        until_at: Cells that ended later are hidden; None shows the sandbox live.
        created_at: When it was made.
        ends_at: When it ends unless it is revoked.
        openings: How often its address was opened.
        readers: How many readers follow it now.
        url: The address to hand on, with the secret that opens it; empty where shares are listed, since a server keeps
            no secret.
    """

    id: str
    key_id: str
    sandbox_id: str
    context_id: str
    shows: tuple[SharedPart, ...]
    from_at: datetime | None
    until_at: datetime | None
    created_at: datetime
    ends_at: datetime
    openings: int
    readers: int
    # Not in the repr, which ends up in logs.
    url: str = field(default="", repr=False)
