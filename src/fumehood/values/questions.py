"""Requests to a context besides running code, and their answers: completion, inspection, comms.

Used on both sides of the port, checked when made like every request. Answers hold text of the guest: show it through
`fumehood.text.visible`, never render it as markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError
from fumehood.values.charts import JsonValue
from fumehood.values.checks import check_integer, check_text

MAX_QUESTIONED_BYTES = 1 * MIB
_MAX_SAID_BYTES = 4 * MIB
_MAX_BUFFERS = 256
_MAX_BUFFERS_BYTES = 8 * MIB
CommKind = Literal["comm_open", "comm_msg", "comm_close"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCode:
    """Request completions at the cursor; answered by a CodeCompletion.

    Attributes:
        code: The code so far.
        cursor: Position of the cursor, in Unicode characters.
        context_id: The context; None means the default one.
    """

    code: str
    cursor: int
    context_id: str | None = None

    def __post_init__(self) -> None:
        check_text("code", self.code, max_bytes=MAX_QUESTIONED_BYTES, empty=True, nul=True)
        check_integer("cursor", self.cursor, low=0, high=len(self.code))


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectCode:
    """Request a description of the name at the cursor; answered by a CodeInspection.

    Attributes:
        code: The code.
        cursor: Position of the cursor, in Unicode characters.
        detail: 0 for the documentation, 1 for the source as well.
        context_id: The context; None means the default one.
    """

    code: str
    cursor: int
    detail: int = 0
    context_id: str | None = None

    def __post_init__(self) -> None:
        check_text("code", self.code, max_bytes=MAX_QUESTIONED_BYTES, empty=True, nul=True)
        check_integer("cursor", self.cursor, low=0, high=len(self.code))
        check_integer("detail", self.detail, low=0, high=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckComplete:
    """Request whether code is complete, or needs more lines; answered by a CodeCompleteness."""

    code: str
    context_id: str | None = None

    def __post_init__(self) -> None:
        check_text("code", self.code, max_bytes=MAX_QUESTIONED_BYTES, empty=True, nul=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAtVariables:
    """Asks a context for its variables; used only by the engine, for callers that inspect a sandbox.

    Attributes:
        code: The name of the variable to show in detail; empty to list all.
        context_id: The context.
        marks: Whether each listed variable has a mark, which differs after its object has changed.
    """

    code: str = ""
    context_id: str | None = None
    marks: bool = False


Question: TypeAlias = CompleteCode | InspectCode | CheckComplete | LookAtVariables


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCompletion:
    """The completions that can replace the characters from `start` to `end`."""

    matches: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeInspection:
    """The description of the name at the cursor, as a MIME bundle of text; empty when nothing was found."""

    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCompleteness:
    """Whether code is complete, and the indentation of the next line if it is not."""

    status: Literal["complete", "incomplete", "invalid", "unknown"]
    indent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVariables:
    """The variables of a context, as it describes them.

    Attributes:
        count: How many variables there are; a longer list is cut.
        found: The descriptions of the variables.
    """

    count: int = 0
    found: tuple[Mapping[str, JsonValue], ...] = ()


Answer: TypeAlias = CodeCompletion | CodeInspection | CodeCompleteness | SeenVariables


@dataclass(frozen=True, slots=True, kw_only=True)
class CommMessage:
    """One message of a comm, the channel of Jupyter's widgets, in either direction.

    Attributes:
        kind: comm_open, comm_msg or comm_close.
        comm_id: The channel's name.
        data: Its content.
        metadata: Its metadata.
        buffers: Binary parts that `data` leaves out.
        target_name: With comm_open, the target that answers.
    """

    kind: CommKind
    comm_id: str
    data: Mapping[str, JsonValue] = field(default_factory=dict)
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()
    target_name: str = ""

    def __post_init__(self) -> None:
        check_text("comm_id", self.comm_id, max_bytes=255)
        check_text("target_name", self.target_name, max_bytes=255, empty=True)
        _check_said("data", self.data)
        _check_said("metadata", self.metadata)
        _check_buffers(self.buffers)

        if self.kind not in ("comm_open", "comm_msg", "comm_close"):
            raise InvalidArgumentError(
                field="kind", value=self.kind, allowed="comm_open, comm_msg or comm_close"
            )


def _check_said(field: str, value: object) -> None:
    allowed = f"an object of JSON, of at most {_MAX_SAID_BYTES} bytes"
    try:
        size = len(json.dumps(value, allow_nan=False)) if isinstance(value, dict) else _MAX_SAID_BYTES + 1
    except (TypeError, ValueError, RecursionError):
        size = _MAX_SAID_BYTES + 1

    if size > _MAX_SAID_BYTES:
        raise InvalidArgumentError(field=field, value=value, allowed=allowed)


def _check_buffers(buffers: object) -> None:
    if (
        not isinstance(buffers, tuple)
        or len(buffers) > _MAX_BUFFERS
        or not all(isinstance(one, bytes) for one in buffers)
        or sum(map(len, buffers)) > _MAX_BUFFERS_BYTES
    ):
        allowed = f"at most {_MAX_BUFFERS} bytes objects, together of at most {_MAX_BUFFERS_BYTES} bytes"
        raise InvalidArgumentError(field="buffers", value=type(buffers).__name__, allowed=allowed)
