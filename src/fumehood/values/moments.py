"""Questions about two moments of a sandbox, and a file of an earlier one, with their answers.

Used on both sides of the port. A moment is a checkpoint, or now. As with the questions of `looking`, answering changes
nothing and runs no code of the guest; text in the answers comes from the guest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError
from fumehood.values.checks import check_text
from fumehood.values.execution import ChangedFile, VariableKind
from fumehood.values.looking import Look, Variable, check_moment

NOW = "now"
MAX_KEPT_FILE_BYTES = MIB
_PATH_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDifferences(Look["Comparison"]):
    """Asks how two moments differ: the variables of a context, and the files.

    Attributes:
        before: The earlier moment: a checkpoint, by its id or its name.
        after: The later moment: a checkpoint of the same context, or `now`.
    """

    before: str
    after: str = NOW

    def __post_init__(self) -> None:
        check_moment("before", self.before)
        check_moment("after", self.after)

        if self.before == NOW:
            raise InvalidArgumentError(
                field="before",
                value=self.before,
                allowed="a checkpoint; `now` can only be the later one of two",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKeptFile(Look[bytes]):
    """Asks for the first 1 MiB of a file as it was at a checkpoint.

    Attributes:
        checkpoint_id: The checkpoint, by its id or its name.
        path: Absolute path of the file.
    """

    checkpoint_id: str
    path: str

    def __post_init__(self) -> None:
        check_moment("checkpoint", self.checkpoint_id)
        check_text("path", self.path, max_bytes=_PATH_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One of two moments that are compared.

    Attributes:
        id: The id of the checkpoint, or `now`.
        name: The name of the checkpoint, or None.
        at: The time of the moment (UTC).
        position: How many executions had ended in the context by then.
    """

    id: str
    name: str | None
    at: datetime
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableDifference:
    """One variable that is not the same in both moments.

    Attributes:
        name: Its name.
        kind: added, changed or deleted, seen from the earlier moment.
        before: The earlier value; None if it was added.
        after: The later value; None if it was deleted.
    """

    name: str
    kind: VariableKind
    before: Variable | None
    after: Variable | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences between two moments of a sandbox.

    Attributes:
        before: The earlier moment.
        after: The later moment.
        context_id: The context whose variables are compared.
        state: current; running: code runs, and only the files are compared; paused: nothing can be compared now;
            none: the variables of the context cannot be inspected, and only the files are compared.
        variables: The variables that differ, by name.
        same_variables: How many variables are the same.
        more_variables: How many variables were not compared, because there are too many or examining them takes too
            long.
        are_marked: Whether contents were compared, as far as they could be examined without running code of their
            classes; False: the context got a fresh process in between, and only type, size and summary were compared.
        files: The files that differ, by path; at most 1,000 of each kind.
        more_files: How many differing files are left out.
    """

    before: Moment
    after: Moment
    context_id: str
    state: Literal["current", "running", "paused", "none"]
    variables: tuple[VariableDifference, ...] = ()
    same_variables: int = 0
    more_variables: int = 0
    are_marked: bool = True
    files: tuple[ChangedFile, ...] = ()
    more_files: int = 0
