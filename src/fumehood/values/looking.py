"""Read-only questions about a sandbox, with their answers: cells, results, variables, and lists of sandboxes.

Used on both sides of the port. Answering a question changes nothing: it resumes no sandbox, extends no lifetime and
runs no code of the guest. Text in the answers comes from the guest.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

from fumehood.errors import InvalidArgumentError
from fumehood.values.checks import check_bool, check_integer, check_strings, check_text
from fumehood.values.execution import Execution, ExecutionError, Transaction
from fumehood.values.limits import Usage
from fumehood.values.sandbox import NOTHING_CUT, SandboxInfo, SandboxState, Truncation

_T = TypeVar("_T")
MAX_CELLS = 500
MAX_LISTED = 1000
MAX_PORTS = 256
_NAME_BYTES = 255
# A name of 255 characters, in UTF-8.
_LONG_NAME_BYTES = 1020
_MOST = 1 << 53

CellState = Literal["waiting", "running", "ended"]
ListOrder = Literal["started", "-started", "ends"]
ORDERS: tuple[ListOrder, ...] = get_args(ListOrder)


def check_moment(name: str, value: str | None) -> None:
    """Raises InvalidArgumentError unless the value is None or can be the id or the name of a checkpoint."""
    if value is not None:
        check_text(name, value, max_bytes=_NAME_BYTES)


class Look(Generic[_T]):
    """The base of read-only questions about a sandbox; each determines the type of its answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCells(Look["CellPage"]):
    """Asks for a page of the cells of a context, the running one included.

    Attributes:
        context_id: The context; None: the default one.
        before: Only cells before this position.
        after: Only cells after this position. Without `before` and `after`, the newest cells are given.
        limit: The most cells of the page.
        whole: Whether each cell includes its whole execution.
    """

    context_id: str | None = None
    before: int | None = None
    after: int | None = None
    limit: int = 50
    whole: bool = False

    def __post_init__(self) -> None:
        if self.context_id is not None:
            check_text("context", self.context_id, max_bytes=_LONG_NAME_BYTES, nul=True)

        for name in ("before", "after"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), low=-1, high=_MOST)

        check_integer("limit", self.limit, low=1, high=MAX_CELLS)
        check_bool("whole", self.whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCell(Look["Cell"]):
    """Asks for one cell with its whole execution; a running cell has its output so far.

    Attributes:
        execution_id: The execution.
    """

    execution_id: str

    def __post_init__(self) -> None:
        check_text("execution", self.execution_id, max_bytes=_LONG_NAME_BYTES, nul=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult(Look[bytes]):
    """Asks for the bytes of one format of one result.

    Attributes:
        execution_id: The execution.
        number: The number of the result, from 0.
        mime: The format, by its MIME type.
    """

    execution_id: str
    number: int
    mime: str

    def __post_init__(self) -> None:
        check_text("execution", self.execution_id, max_bytes=_LONG_NAME_BYTES, nul=True)
        check_integer("number", self.number, low=0, high=_MOST)
        check_text("mime", self.mime, max_bytes=_NAME_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadVariables(Look["VariablePage"]):
    """Asks for the variables of a context, by name.

    Attributes:
        context_id: The context; None: the default one.
        text: Only variables with this text in the name, the type or the summary, ignoring case.
        after: Only variables whose names sort after this one.
        limit: The most variables of the page.
        at: The checkpoint whose variables are meant; None: the present variables.
    """

    context_id: str | None = None
    text: str = ""
    after: str | None = None
    limit: int = 200
    at: str | None = None

    def __post_init__(self) -> None:
        check_moment("at", self.at)

        if self.context_id is not None:
            check_text("context", self.context_id, max_bytes=_LONG_NAME_BYTES, nul=True)

        if self.after is not None:
            check_text("cursor", self.after, max_bytes=_LONG_NAME_BYTES, empty=True)

        check_text("q", self.text, max_bytes=_NAME_BYTES, empty=True)
        check_integer("limit", self.limit, low=1, high=MAX_LISTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadVariable(Look["VariablePage"]):
    """Asks for one variable of a context in detail; the answer has one item, or none if the variable does not exist.

    Attributes:
        name: Its name.
        context_id: The context; None: the default one.
        at: The checkpoint whose variable is meant; None: the present variable.
    """

    name: str
    context_id: str | None = None
    at: str | None = None

    def __post_init__(self) -> None:
        check_moment("at", self.at)
        check_text("name", self.name, max_bytes=_LONG_NAME_BYTES)

        if self.context_id is not None:
            check_text("context", self.context_id, max_bytes=_LONG_NAME_BYTES, nul=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable of a context; all fields are found without running code of its class.

    Attributes:
        name: Its name.
        type: The name of its class.
        summary: A few characters that describe the value; empty where only code of its class could tell.
        size_bytes: Memory that the object takes by itself; None if not known.
        since: The last execution that has reported a change of the variable, or None.
        text: Only in detail: the beginning of a string.
        shape: Only in detail: the shape of an array or a frame.
        columns: Only in detail: label and type of each of the first columns.
        rows: Only in detail: the first rows, as text.
        items: Only in detail: key, type and summary of the first elements of a container.
    """

    name: str
    type: str
    summary: str = ""
    size_bytes: int | None = None
    since: str | None = None
    text: str | None = None
    shape: tuple[int, ...] | None = None
    columns: tuple[tuple[str, ...], ...] | None = None
    rows: tuple[tuple[str, ...], ...] | None = None
    items: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariablePage:
    """Variables of a context.

    Attributes:
        state: current; running or paused: the context cannot be asked now, and the items are from its last list;
            none: it has no process yet, or a language without this feature.
        items: The variables, by name.
        as_of: When the variables were listed (UTC); None: never.
        count: The total number of variables.
        next_cursor: `after` for the next page; None: this is the last page.
    """

    state: Literal["current", "running", "paused", "none"]
    items: tuple[Variable, ...] = ()
    as_of: datetime | None = None
    count: int = 0
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFamily(Look["Family"]):
    """Asks for a sandbox, its ancestors, and all forks of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """One sandbox of a family.

    Attributes:
        id: Its id.
        parent_id: The sandbox that it was forked from, or None.
        state: running, paused, ending or ended.
        started_at: When it was handed out (UTC).
        ended_at: When it ended (UTC), or None.
        reason: Why it ended; empty while it lives.
        last_outcome: The outcome of the cell that ended last: ok, or the kind of its error; None before the first.
        cells: How many cells have run in it, including those of its parents before the fork.
        owner: Its owner at a server; empty where there is one user only.
    """

    id: str
    parent_id: str | None
    state: Literal["running", "paused", "ending", "ended"]
    started_at: datetime
    ended_at: datetime | None = None
    reason: str = ""
    last_outcome: str | None = None
    cells: int = 0
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A sandbox with its ancestors and all their forks, if they live or have ended lately.

    Attributes:
        items: The sandboxes, parents before their forks, the oldest first.
    """

    items: tuple[Relative, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadUse(Look["SandboxUse"]):
    """Asks what a sandbox uses and does now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCommands(Look["CommandPage"]):
    """Asks for the commands of a sandbox, those that run and those that have ended.

    Attributes:
        after: Only those after this number.
        limit: How many at most; a page with much output has fewer.
    """

    after: int | None = None
    limit: int = 200

    def __post_init__(self) -> None:
        if self.after is not None:
            check_integer("after", self.after, low=-1, high=_MOST)

        check_integer("limit", self.limit, low=1, high=MAX_CELLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPiece:
    """A piece of the output of a command.

    Attributes:
        stream: stdout or stderr.
        text: The text; U+FFFD stands for each byte that is no UTF-8.
        begin_bytes: Its place in its stream. What lies between the end of the piece before and this was left out.
        size_bytes: Its size in the stream.
        data: The bytes, if they are no UTF-8.
    """

    stream: Literal["stdout", "stderr"]
    text: str
    begin_bytes: int
    size_bytes: int
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCommand:
    """A command or terminal that was started through the API.

    Attributes:
        number: Its number among those of the sandbox, from 0.
        pid: Its number inside the sandbox.
        command: The command as it was typed, up to 8,192 characters.
        cwd: The directory it was started in.
        is_terminal: Whether it is a terminal, whose output is not kept.
        started_at: When it started (UTC).
        ended_at: When it ended (UTC); None while it runs, and if it ran until its sandbox ended.
        exit_code: Its exit code; None like `ended_at`.
        timed_out: Whether it was killed because its time was over.
        output: The first 16 KiB of its output (less where the streams take turns often), and the last of each
            stream; of one that runs, of its output so far.
    """

    number: int
    pid: int
    command: str
    cwd: str
    is_terminal: bool
    started_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    timed_out: bool = False
    output: tuple[CommandPiece, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPage:
    """Commands of a sandbox, in the order in which they were started.

    Attributes:
        items: The commands.
        dropped_commands: How many of all are not kept any more, the oldest ones.
        next_cursor: The `after` of the next page; None: this is the last one.
    """

    items: tuple[RanCommand, ...] = ()
    dropped_commands: int = 0
    next_cursor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPorts(Look["PortList"]):
    """Asks on which TCP ports programs of a sandbox listen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningPort:
    """A TCP port on which a program in a sandbox listens.

    Attributes:
        port: The port.
        addresses: The addresses on which it listens; `0.0.0.0` and `::` stand for all addresses of the sandbox.
        program: The name of the process, which the guest can choose; empty if it is not known.
        pid: The pid of the process inside the sandbox, or None.
        started_at: When that process started (UTC), or None.
        is_answered_outside: Whether a program outside the sandbox answers its connections, as set up by `listen_port`.
    """

    port: int
    addresses: tuple[str, ...] = ()
    program: str = ""
    pid: int | None = None
    started_at: datetime | None = None
    is_answered_outside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PortList:
    """The ports of a sandbox on which programs listen.

    Attributes:
        state: current; none: the sandbox has no network of its own, so no program in it can listen.
        items: The ports, in ascending order; at most 256.
    """

    state: Literal["current", "none"]
    items: tuple[ListeningPort, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSummary:
    """One format of a result.

    Attributes:
        mime: Its MIME type, as the guest has named it.
        size_bytes: Its size in bytes.
    """

    mime: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSummary:
    """A result without its content.

    Attributes:
        number: The number of the result, from 0.
        is_main_result: True for the value of the last expression.
        display_id: The name under which the code may update it.
        parts: Its formats.
    """

    number: int
    is_main_result: bool
    display_id: str | None
    parts: tuple[PartSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingInput:
    """A question of running code that waits for a line of input.

    Attributes:
        request_id: Its name; the answer repeats it.
        prompt: Its text.
        is_password: True when the answer should not be shown.
    """

    request_id: str
    prompt: str
    is_password: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCounts:
    """How much an execution changed.

    Attributes:
        variables: Changed variables.
        files: Changed files; files beyond the bound are not counted.
    """

    variables: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One piece of code that ran, or runs, and its outcome.

    Attributes:
        position: Its position in the record of its context; no two cells have the same.
        id: The id of its execution.
        context_id: Its context.
        state: running or ended; at a server, a detached cell can also be waiting for its turn; it has no position yet.
        code: The code.
        stdin: Its standard input; None: empty.
        by: At a server, the key that ran it; `owner` for the server's own token.
        via: The interface by which the code came to a server: api, or the name of a dialect; `e2b from inside` for
            programs of the sandbox itself.
        started_at: When it began (UTC).
        is_fresh: Whether the context had no state from earlier cells.
        is_undone: Whether its changes were undone.
        outputs_dropped: Whether its outputs were dropped, to keep the record within its bounds.
        outcome: Its outcome: ok, or the kind of its error; None while it runs.
        execution_count: Its number in the context, as notebooks show it.
        usage: Its resource usage; None while it runs.
        error: The error that ended it.
        state_lost: True when the context had to be replaced.
        transaction: The outcome of its transaction if it was transactional.
        truncated: How much was cut off because of the limits.
        changes: How much it changed, if requested.
        tool_calls: How many calls of tools it made.
        output_characters: The length of its output.
        results: Its results, without content.
        input_request: The question for whose answer it waits.
        execution: The whole execution, if requested.
        seq: For a running cell, the number of the last event that it includes, for followers of the sandbox's events.
    """

    position: int
    id: str
    context_id: str
    state: CellState
    code: str
    stdin: str | None = None
    by: str = ""
    via: str = ""
    started_at: datetime | None = None
    is_fresh: bool = False
    is_undone: bool = False
    outputs_dropped: bool = False
    outcome: str | None = None
    execution_count: int | None = None
    usage: Usage | None = None
    error: ExecutionError | None = None
    state_lost: bool = False
    transaction: Transaction | None = None
    truncated: Truncation = NOTHING_CUT
    changes: ChangeCounts | None = None
    tool_calls: int = 0
    output_characters: int = 0
    results: tuple[ResultSummary, ...] = ()
    input_request: PendingInput | None = None
    execution: Execution | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPage:
    """Some of the cells of a context, in order.

    Attributes:
        items: The cells.
        first_position: The position of the oldest kept cell.
        end_position: The position that the next cell will have.
        dropped_cells: How many cells are missing before the first, because the record is bounded.
        dropped_outputs: How many of the kept cells have lost their outputs for the same reason.
    """

    items: tuple[Cell, ...]
    first_position: int
    end_position: int
    dropped_cells: int = 0
    dropped_outputs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxUse:
    """The current usage and activity of a sandbox, as known to the host without asking the sandbox.

    Attributes:
        cpu_seconds: CPU time since its start; None where the kernel does not count it.
        memory_bytes: Memory in use now, or None.
        peak_memory_bytes: Most memory that was ever in use, or None.
        processes: Living processes, or None.
        cells: How many cells have run in its contexts.
        is_running: Whether code runs in one of its contexts.
        last_outcome: The outcome of the cell that ended last: ok, or the kind of its error; None before the first.
        last_at: When that cell ended (UTC).
        watchers: How many followers its events have.
        contexts: The ids of its contexts; empty in lists of sandboxes.
    """

    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    processes: int | None = None
    cells: int = 0
    is_running: bool = False
    last_outcome: str | None = None
    last_at: datetime | None = None
    watchers: int = 0
    contexts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSandboxes:
    """Asks for a page of the living sandboxes.

    Attributes:
        owner: Only sandboxes of this owner.
        state: Only sandboxes in this state.
        template: Only sandboxes of this template.
        parent_id: Only forks of this sandbox.
        labels: Only sandboxes that have all of these labels.
        text: Only sandboxes with this text in id, template, owner or a label, ignoring case.
        order: The sort key: the start, oldest or newest (`-started`) first, or the end.
        cursor: `next_cursor` of the previous page.
        limit: The most sandboxes of the page.
        with_use: Whether each item includes the resource usage.
    """

    owner: str | None = None
    state: SandboxState | None = None
    template: str | None = None
    parent_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    order: ListOrder = "started"
    cursor: str | None = None
    limit: int = 100
    with_use: bool = False

    def __post_init__(self) -> None:
        check_strings("labels", self.labels)
        check_text("q", self.text, max_bytes=_NAME_BYTES, empty=True)
        check_integer("limit", self.limit, low=1, high=MAX_LISTED)
        check_bool("with_use", self.with_use)

        if self.order not in ORDERS:
            raise InvalidArgumentError(field="order", value=self.order, allowed=", ".join(ORDERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSandbox:
    """A sandbox of a list.

    Attributes:
        info: Its description.
        use: Its resource usage, if requested.
    """

    info: SandboxInfo
    use: SandboxUse | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxList:
    """A page of a list of sandboxes.

    Attributes:
        items: The sandboxes.
        next_cursor: The `cursor` of the next page; None: this is the last page.
    """

    items: tuple[ListedSandbox, ...]
    next_cursor: str | None = None


Place: TypeAlias = tuple[float, str]


def cursor_of(place: Place) -> str:
    """Returns the cursor for the page after a sandbox with this position in the order."""
    return base64.urlsafe_b64encode(f"{place[0]!r} {place[1]}".encode()).decode()


def place_of(cursor: str) -> Place:
    """Returns the position in an order that a cursor names.

    Raises:
        InvalidArgumentError: The text is not the cursor of a page.
    """
    try:
        seconds, _, sandbox_id = base64.b64decode(cursor, b"-_", validate=True).decode().partition(" ")
        return float(seconds), sandbox_id
    except (ValueError, binascii.Error):
        raise InvalidArgumentError(
            field="cursor", value=cursor, allowed="the `next_cursor` of a page"
        ) from None


def listed_place(order: ListOrder, info: SandboxInfo) -> Place:
    """Returns the position of a sandbox in an order; in `-started`, higher positions come first."""
    if order != "ends":
        return info.started_at.timestamp(), info.id

    return (math.inf if info.ends_at is None else info.ends_at.timestamp()), info.id


def merged(request: ListSandboxes, items: Sequence[ListedSandbox]) -> SandboxList:
    """Returns one page, merged from pages of several hosts that were each asked for a full page."""
    ordered = sorted(
        items,
        key=lambda item: listed_place(request.order, item.info),
        reverse=request.order == "-started",
    )
    shown = ordered[: request.limit]
    # A host may have more sandboxes than were on its page; at worst the next page is empty.
    is_more = len(ordered) >= request.limit
    return SandboxList(
        items=tuple(shown),
        next_cursor=cursor_of(listed_place(request.order, shown[-1].info)) if is_more and shown else None,
    )
