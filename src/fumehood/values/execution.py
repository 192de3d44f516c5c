"""What one execution did: its logs, results, error and usage, as the caller receives them.

Plain values of the host process. An `Execution` is complete and never changes; while the code still runs
there are only events. Code that fails is an `Execution` with an `error`, not an exception.

What an execution changed: variables of its context, and files of its sandbox.

The record of a context: which code ran in it, in which order, and what each did.
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

# What the engine says of a process that ended itself; the digits of a status.
_EXIT_CODE = re.compile(r"\(exit code (\d{1,3})\)")
_STATUS = re.compile(r"\d{1,3}", re.ASCII)
_MAX_DIGITS = 20
# Characters of the text that `repr` shows.
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
        text: What was written.
        at_seconds: When, in seconds since the execution began.
    """

    stream: StreamName
    text: str
    at_seconds: float


@dataclass(frozen=True, kw_only=True)
class Logs:
    """All output of an execution, in the order in which it was written.

    Of a stream that went over its limit head and tail are kept; an entry between them says how much is missing.

    Attributes:
        entries: Standard output and standard error, interleaved as they happened.
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
    """Why an execution did not come to its ordinary end.

    Attributes:
        kind: exception (the code raised), time_limit, cpu_limit, interrupted, out_of_memory or context_died.
        name: Name of the exception's class; for the other kinds TimeLimitExceeded, CpuLimitExceeded,
            Interrupted, OutOfMemory, ContextDied, or SandboxEnded when the whole sandbox was ended, as by its lifetime.
        value: The message. For kinds other than exception it says whether the state was kept.
        traceback: Plain text, the code's own frames only; of code that was stopped, the line where that happened.
            Empty when the context was killed.
        hint: Which wall or limit of the sandbox it seems to have run into, in words; advice, since it is read from what
            the code itself says of its failure. Empty when it seems to be none.
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
        """The exit code that the code itself ended with, or None when it did not end that way.

        That of `sys.exit()`, of the last command of bash, or of a process that ended itself, as by `os._exit()`.
        """
        if self.name == "SystemExit":
            is_number = self.value.removeprefix("-").isdecimal() and len(self.value) < _MAX_DIGITS
            return int(self.value) & 0xFF if is_number else int(bool(self.value))

        found = _EXIT_CODE.search(self.value) if self.kind == "context_died" else None
        digits = found[1] if found else self.value if self.name == "ExitCode" else ""
        return int(digits) if _STATUS.fullmatch(digits) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What came of one call of a tool.

    Attributes:
        name: The tool.
        ok: Whether it gave a value; otherwise the code got a ToolError, or ended before.
        seconds: How long it took, from the call to the answer.
    """

    name: str
    ok: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What one execution did.

    Attributes:
        id: Its own name.
        context_id: The context it ran in.
        results: What was shown and returned, in order; a result that was updated stands where it first
            appeared.
        logs: What was printed.
        error: Why it did not come to its ordinary end, or None.
        execution_count: Its number in the context, as notebooks show it; None if it was never started.
        usage: What it used.
        truncated: How much was cut off because of the limits.
        state_lost: True when the context had to be replaced: its variables are gone, the files stay.
        isolation: The level that it ran under.
        started_at: When it began (UTC), or None if it was never started.
        tool_calls: The calls of tools that it made, in the order in which they ended.
        transaction: What became of it if it was transactional, or None.
        changes: What it changed if that was asked for, or None.
        audit_head: Where the audit record of its sandbox stood when it ended; whoever keeps it can check the record
            against it later.
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
        """What a notebook would show below the cell, for a person: output, results, error; controls spelled out."""
        shown = [str(self.logs), *map(str, self.results), *([str(self.error)] if self.error else [])]
        return visible("\n".join(part.removesuffix("\n") for part in shown if part))

    def __repr__(self) -> str:
        """One line: the value, how much there is besides, what failed, and the time it took."""
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
        """Show in a notebook on the host what a notebook would show below the cell; nothing that could run there."""
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        parts = [safe_html.preformatted(str(self.logs))] if self.logs.entries else []
        parts += [result._repr_html_() for result in self.results]
        parts += [safe_html.preformatted(str(self.error), is_error=True)] if self.error else []
        return "\n".join(parts)

    def plain_data(self) -> dict[str, JsonValue]:
        """Return the execution as plain data, as the server's API answers it."""
        return {**fields_data(self), "text": self.text}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the execution as a JSON text, as the server's API answers it: binary formats are base64.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCell:
    """One piece of code, as it was run.

    Attributes:
        code: The code.
        execution: What it did.
        stdin: What its standard input gave; None: nothing.
        is_fresh: Whether the context had no state from cells before: its first cell, or the first after a restart.
        outputs_dropped: Whether its logs, results, traceback, tool calls and changes were dropped, to stay within the
            bounds of the record.
        is_undone: Whether what it did to variables and files was taken back: the sandbox went back to a checkpoint.
    """

    code: str
    execution: Execution
    stdin: str | None = None
    is_fresh: bool = False
    outputs_dropped: bool = False
    is_undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What ran in a context since it came to be; silent executions are not in it.

    That of a fork, or of a sandbox that was loaded, begins with what ran before in the one that it goes on from.

    Attributes:
        sandbox_id: The sandbox.
        context_id: The context.
        language: python or bash.
        cells: What ran, in order; the oldest may be missing.
        dropped_cells: How many cells before the first are missing, because the record is bounded.
        dropped_outputs: How many of `cells` have lost their outputs for the same reason.
    """

    sandbox_id: str
    context_id: str
    language: str
    cells: tuple[RecordedCell, ...] = ()
    dropped_cells: int = 0
    dropped_outputs: int = 0
