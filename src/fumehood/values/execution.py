"""The record of one execution: its logs, results, error and usage, as the caller receives them.

Plain values of the host process. An `Execution` is complete and never changes; while the code still runs there are only
events. Code that fails is an `Execution` with an `error`, not an exception.

Also the changes of an execution (variables of its context, files of its sandbox), and the record of a context: the
executions in it, in order.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal

from fumehood.text import shortened, visible
from fumehood.values import safe_html
from fumehood.values.audit import AuditHead
from fumehood.values.charts import JsonValue
from fumehood.values.limits import Usage
from fumehood.values.plain_data import as_data, fields_data
from fumehood.values.results import Result
from fumehood.values.sandbox import Truncation

# The engine's text about a process that ended itself; the digits of a status.
_EXIT_CODE = re.compile(r"\(exit code (\d{1,3})\)")
_STATUS = re.compile(r"\d{1,3}", re.ASCII)
_MAX_DIGITS = 20
# Characters of the text in `repr`.
_REPR_CHARACTERS = 60

StreamName = Literal["stdout", "stderr"]

# exception: raised by the code. time_limit, cpu_limit, interrupted: stopped from outside. out_of_memory,
# context_died: the context is gone.
ErrorKind = Literal["exception", "time_limit", "cpu_limit", "interrupted", "out_of_memory", "context_died"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One piece of output.

    Attributes:
        stream: stdout or stderr.
        text: The text.
        at_seconds: When it was written, in seconds since the execution began.
    """

    stream: StreamName
    text: str
    at_seconds: float


@dataclass(frozen=True, kw_only=True)
class Logs:
    """All output of an execution, in the order in which it was written.

    If a stream exceeded its limit, its head and its tail are kept, and an entry between them states how much is
    missing.

    Attributes:
        entries: Standard output and standard error, interleaved in the order of writing.
    """

    entries: tuple[LogEntry, ...] = ()

    @cached_property
    def stdout(self) -> list[str]:
        """The pieces of standard output."""
        return [entry.text for entry in self.entries if entry.stream == "stdout"]

    @cached_property
    def stderr(self) -> list[str]:
        """The pieces of standard error."""
        return [entry.text for entry in self.entries if entry.stream == "stderr"]

    def plain_data(self) -> dict[str, JsonValue]:
        """Return the logs as plain data: the pieces of each stream, and all entries in order."""
        return {"stdout": as_data(self.stdout), "stderr": as_data(self.stderr), **fields_data(self)}

    def __str__(self) -> str:
        return "".join(entry.text for entry in self.entries)

    def __repr__(self) -> str:
        return f"Logs(stdout={_count(self.stdout)}, stderr={_count(self.stderr)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionError:
    """The error that ended an execution.

    Attributes:
        kind: exception (the code raised), time_limit, cpu_limit, interrupted, out_of_memory or context_died.
        name: Name of the exception's class; for the other kinds TimeLimitExceeded, CpuLimitExceeded,
            Interrupted, OutOfMemory, ContextDied, or SandboxEnded when the whole sandbox was ended, as by its lifetime.
        value: The message. For kinds other than exception it says whether the state was kept.
        traceback: Plain text, with frames of the code only; for code that was stopped, the line where it was stopped.
            Empty when the context was killed.
        hint: The limit or denied access that the code seems to have met, in words; advice, since it is derived from the
            code's own error. Empty when no limit seems to be the reason.
    """

    kind: ErrorKind
    name: str
    value: str
    traceback: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return self.traceback or f"{self.name}: {self.value}"

    @property
    def exit_code(self) -> int | None:
        """The exit code with which the code ended its process, or None if it ended in another way.

        It comes from `sys.exit()`, from the last command of bash, or from a process that ended itself, for example by
        `os._exit()`.
        """
        if self.name == "SystemExit":
            is_number = self.value.removeprefix("-").isdecimal() and len(self.value) < _MAX_DIGITS
            return int(self.value) & 0xFF if is_number else int(bool(self.value))

        found = _EXIT_CODE.search(self.value) if self.kind == "context_died" else None
        digits = found[1] if found else self.value if self.name == "ExitCode" else ""
        return int(digits) if _STATUS.fullmatch(digits) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """The result of one call of a tool.

    Attributes:
        name: The tool.
        ok: Whether it returned a value; otherwise the code got a ToolError, or ended before the answer.
        seconds: How long it took, from the call to the answer.
    """

    name: str
    ok: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The record of one execution.

    Attributes:
        id: Its own id.
        context_id: The context in which it ran.
        results: The displayed and returned results, in order; an updated result keeps its first position.
        logs: Its output.
        error: The error that ended it, or None.
        execution_count: Its number in the context, as notebooks show it; None if it was never started.
        usage: Its resource usage.
        truncated: How much was cut off because of the limits.
        state_lost: True when the context had to be replaced: its variables are gone, the files stay.
        isolation: The level that it ran under.
        started_at: When it began (UTC), or None if it was never started.
        tool_calls: The calls of tools that it made, in the order in which they ended.
        transaction: The outcome of its transaction if it was transactional, or None.
        changes: Its changes if they were requested, or None.
        audit_head: The head of its sandbox's audit record when it ended; a later record can be checked against it.
    """

    id: str
    context_id: str
    results: tuple[Result, ...] = ()
    logs: Logs = field(default_factory=Logs)
    error: ExecutionError | None = None
    execution_count: int | None = None
    usage: Usage = field(default_factory=Usage)
    truncated: Truncation = field(default_factory=Truncation)
    state_lost: bool = False
    isolation: str = ""
    started_at: datetime | None = None
    tool_calls: tuple[ToolOutcome, ...] = ()
    transaction: Transaction | None = None
    changes: Changes | None = None
    audit_head: AuditHead | None = None

    def __str__(self) -> str:
        """Return the output as text, in the form shown below a notebook's cell; control characters are escaped."""
        shown = [str(self.logs), *map(str, self.results), *([str(self.error)] if self.error else [])]
        return visible("\n".join(part.removesuffix("\n") for part in shown if part))

    def __repr__(self) -> str:
        """Return one line: the value, the amount of other output, the error, and the time it took."""
        count = len(self.results)
        shown = [
            "" if self.text is None else f"text={shortened(self.text, _REPR_CHARACTERS)!r}",
            f"{count} {'result' if count == 1 else 'results'}" if count else "",
            f"stdout={_count(self.logs.stdout)}" if self.logs.stdout else "",
            f"stderr={_count(self.logs.stderr)}" if self.logs.stderr else "",
            "" if self.error is None else f"error={shortened(self.error.name, _REPR_CHARACTERS)}",
            "state lost" if self.state_lost else "",
            f"{self.usage.wall_seconds:.2f} s",
        ]
        return f"Execution({', '.join(part for part in shown if part)})"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the outputs for a notebook on the host, without content that could run code there."""
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        parts = [safe_html.preformatted(str(self.logs))] if self.logs.entries else []
        parts += [result._repr_html_() for result in self.results]
        parts += [safe_html.preformatted(str(self.error), is_error=True)] if self.error else []
        return "\n".join(parts)

    def plain_data(self) -> dict[str, JsonValue]:
        """Return the execution as plain data, in the form of the server's API."""
        return {**fields_data(self), "text": self.text}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the execution as a JSON text, in the form of the server's API: binary formats are base64.

        Args:
            indent: Spaces for each level, as for `json.dumps`; None: all in one line.
        """
        return json.dumps(self.plain_data(), indent=indent, ensure_ascii=False)

    @property
    def text(self) -> str | None:
        """The value of the last expression as text, or None if there was none."""
        return next((result.text for result in self.results if result.is_main_result), None)


def _count(pieces: list[str]) -> str:
    return f"{sum(map(len, pieces)):,} characters"


VariableKind = Literal["added", "changed", "deleted"]
FileKind = Literal["created", "modified", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableChange:
    """A change of one variable.

    Attributes:
        name: Its name.
        kind: added, changed or deleted. A variable is changed if it refers to another object now, or if its object
            looks changed: containers, arrays, frames and objects of the cells' classes are compared by a bounded check,
            not element by element.
        type: The name of its present class, or of its class before it was deleted.
        summary: A few characters that describe the value; never computed by code of its class.
        size_bytes: Memory that the object takes by itself; None if only code of its class could tell.
    """

    name: str
    kind: VariableKind
    type: str
    summary: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """A change of one file.

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
    """The changes of an execution.

    Attributes:
        variables: The changes of variables of its context, by name; empty if the context is gone or does not run
            Python.
        files: The changes of files of the sandbox by any process while it ran; by path, at most 1,000 of each kind.
        more_files: How many changed files are left out.
    """

    variables: tuple[VariableChange, ...] = ()
    files: tuple[ChangedFile, ...] = ()
    more_files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The outcome of a transactional execution.

    Attributes:
        outcome: committed, or rolled_back: variables and files are as they were before it.
        reason: Why it was rolled back: error, time_limit, cpu_limit, interrupted, out_of_memory, context_died, or
            refused; empty when it was committed.
        left_behind: The parts of the context that could not be kept, and are gone if it was rolled back.
    """

    outcome: Literal["committed", "rolled_back"]
    reason: str = ""
    left_behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCell:
    """One piece of code that was run, and its execution.

    Attributes:
        code: The code.
        execution: Its record.
        stdin: Its standard input; None: empty.
        wall_seconds: The time limit of this execution; None: that of the sandbox.
        is_fresh: Whether the context had no state from earlier cells: its first cell, or the first after a restart.
        outputs_dropped: Whether its logs, results, traceback, tool calls and changes were dropped, to keep the record
            within its bounds.
        is_undone: Whether its changes of variables and files were undone: the sandbox went back to a checkpoint.
        by: At a server, the key that ran it; `owner` for the server's own token.
        via: The interface by which the code came to a server: api, or the name of a dialect; `e2b from inside` for
            programs of the sandbox itself.
    """

    code: str
    execution: Execution
    stdin: str | None = None
    wall_seconds: float | None = None
    is_fresh: bool = False
    outputs_dropped: bool = False
    is_undone: bool = False
    by: str = ""
    via: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The executions of a context since it was made, without silent ones.

    The record of a fork, or of a loaded sandbox, begins with the executions of the sandbox that it continues.

    Attributes:
        sandbox_id: The sandbox.
        context_id: The context.
        language: Its name, such as `python`, `bash` or `javascript`; never an alias.
        cells: The executions, in order; the oldest may be missing.
        dropped_cells: How many cells before the first are missing, because the record is bounded.
        dropped_outputs: How many of `cells` have lost their outputs for the same reason.
    """

    sandbox_id: str
    context_id: str
    language: str
    cells: tuple[RecordedCell, ...] = ()
    dropped_cells: int = 0
    dropped_outputs: int = 0
