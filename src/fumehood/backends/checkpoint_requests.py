"""What callers ask of a backend about checkpoints: frozen, checked when made, able to cross a process border.

Used on both sides of the port, as `requests`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fumehood.backends.checks import check_bool, check_text


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeCheckpoint:
    """Keep the state of a context together with the files; the answer is the checkpoint alone.

    Attributes:
        context_id: Which context; None means the default one.
        name: What the caller calls it.
        strict: Refuse when something could not be kept, in place of naming it.
    """

    context_id: str | None = None
    name: str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_bool("strict", self.strict)

        if self.context_id is not None:
            check_text("context", self.context_id, max_bytes=255)

        if self.name is not None:
            check_text("name", self.name, max_bytes=255)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListCheckpoints:
    """Name the checkpoints, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Go back to a checkpoint, which stays; the answer is it alone. What runs in its context is waited for."""

    checkpoint_id: str

    def __post_init__(self) -> None:
        check_text("checkpoint", self.checkpoint_id, max_bytes=255)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheckpoint:
    """Forget a checkpoint; the answer is empty."""

    checkpoint_id: str

    def __post_init__(self) -> None:
        check_text("checkpoint", self.checkpoint_id, max_bytes=255)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswer:
    """The answer to a `CommitRequestEvent`.

    Attributes:
        execution_id: Who asked.
        commit: Whether what was changed shall stay.
    """

    execution_id: str
    commit: bool

    def __post_init__(self) -> None:
        check_bool("commit", self.commit)


CheckpointCall: TypeAlias = TakeCheckpoint | ListCheckpoints | RollBack | DropCheckpoint
