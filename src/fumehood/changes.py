"""What an execution changed: variables of its context, and files of its sandbox.

Plain values, for callers. Names and summaries come from the guest: show them through `fumehood.text.visible`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VariableKind = Literal["added", "changed", "deleted"]
FileKind = Literal["created", "modified", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableChange:
    """One variable that is not what it was.

    Attributes:
        name: Its name.
        kind: added, changed or deleted. Changed is a variable that means another object now, and one whose object
            looks changed: containers, arrays, frames and objects of the cells' classes are compared by a bounded look,
            not element by element.
        type: The name of its class, as it is now, or was.
        summary: A few characters of it; never made by code of its class.
        size_bytes: Memory that it takes by itself, as far as that is known without asking its class.
    """

    name: str
    kind: VariableKind
    type: str
    summary: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """One file that is not what it was.

    Attributes:
        path: Absolute path inside the sandbox.
        kind: created, modified or deleted.
        size_bytes: Its size now, or before it was deleted.
    """

    path: str
    kind: FileKind
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What an execution changed.

    Attributes:
        variables: Of its context, by name; empty where the context is gone or speaks no Python.
        files: Of the sandbox, whoever changed them while it ran; by path, at most 1,000 of each kind.
        more_files: How many changed files are left out.
    """

    variables: tuple[VariableChange, ...] = ()
    files: tuple[ChangedFile, ...] = ()
    more_files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What became of a transactional execution.

    Attributes:
        outcome: committed, or rolled_back: variables and files are as they were before it.
        reason: Why it was rolled back: error, time_limit, cpu_limit, interrupted, out_of_memory, context_died, or
            refused; empty when it was committed.
        left_behind: What of the context could not be kept, and is gone if it was rolled back.
    """

    outcome: Literal["committed", "rolled_back"]
    reason: str = ""
    left_behind: tuple[str, ...] = ()
