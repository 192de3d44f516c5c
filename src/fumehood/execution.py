"""What one execution did: its logs, results, error and usage, as the caller receives them.

Plain values of the host process. An `Execution` is complete and never changes; while the code still runs
there are only events. Code that fails is an `Execution` with an `error`, not an exception.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal

from fumehood.audit.entries import AuditHead
from fumehood.changes import Changes, Transaction
from fumehood.limits import Usage
from fumehood.models import Truncation
from fumehood.results import Result
from fumehood.text import visible

# What the engine says of a process that ended itself; the digits of a status.
_EXIT_CODE = re.compile(r"\(exit code (\d{1,3})\)")
_STATUS = re.compile(r"\d{1,3}", re.ASCII)
_MAX_DIGITS = 20

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

    def __str__(self) -> str:
        return "".join(entry.text for entry in self.entries)


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

    @property
    def text(self) -> str | None:
        """The value of the last expression as text, or None if there was none."""
        return next((result.text for result in self.results if result.is_main_result), None)
