"""What callers ask of a backend about forks: frozen, checked when made, able to cross a process border.

Used on both sides of the port, as `requests`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fumehood.backends.checks import check_bool, check_integer, check_strings, check_text
from fumehood.errors import InvalidArgumentError
from fumehood.limits import check_seconds
from fumehood.models import SandboxInfo

MAX_FORKS: Final = 64
"""How many forks one call may ask for."""

ForkSeconds: TypeAlias = float | Literal["inherit"] | None
"""The time of a fork; "inherit" is as much as its parent was given, counted from the fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """Make sandboxes that go on from where one is, or was at a checkpoint; all of them are made, or none.

    Attributes:
        count: How many.
        checkpoint_id: From which point, by its id or its name; None: from now on.
        reseed: Let randomness diverge: each fork draws numbers of its own.
        timeout_seconds: The time of each; None: it lives until it is killed; "inherit": as much as its parent was
            given, counted from the fork.
        metadata: Labels of each; None: those of the parent.
    """

    count: int = 1
    checkpoint_id: str | None = None
    reseed: bool = True
    timeout_seconds: ForkSeconds = "inherit"
    metadata: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        check_integer("count", self.count, low=1, high=MAX_FORKS)
        check_bool("reseed", self.reseed)

        if self.checkpoint_id is not None:
            check_text("checkpoint", self.checkpoint_id, max_bytes=255)

        if isinstance(self.timeout_seconds, str):
            if self.timeout_seconds != "inherit":
                raise InvalidArgumentError(
                    field="timeout", value=self.timeout_seconds, allowed="seconds, None or 'inherit'"
                )
        else:
            check_seconds("timeout", self.timeout_seconds)

        if self.metadata is not None:
            check_strings("metadata", self.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """What came of a fork.

    Attributes:
        items: The new sandboxes.
        left_behind: What could not come along, in words: other contexts, running commands, threads, child processes,
            sockets and the like.
    """

    items: tuple[SandboxInfo, ...]
    left_behind: tuple[str, ...] = ()
