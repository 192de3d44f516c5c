"""Executions in the audit record: that code runs, and its outcome.

Only the digest of code is kept. A record in a file gets an entry before the code runs, which the code cannot prevent; a
record in memory gets one entry at the end of the execution.
"""

from __future__ import annotations

import asyncio

from fumehood.engine.audit_trail import Fields, describe_code, describe_little, is_little, microseconds, shown
from fumehood.engine.contexts.process import ContextOwner
from fumehood.engine.host_faults import explain_failure
from fumehood.values.audit import AuditHead
from fumehood.values.execution import Execution, ExecutionError
from fumehood.values.questions import CommMessage
from fumehood.values.requests import ExecuteRequest
from fumehood.values.sandbox import ContextInfo

# Error kinds that report a limit, and the limit.
_LIMITS = {"time_limit": "wall_seconds", "cpu_limit": "cpu_seconds", "out_of_memory": "memory_bytes"}


class AuditedExecution:
    """The audit entries of one execution.

    Args:
        sandbox: The sandbox in which the code runs.
        fields: The fields that are known before the code runs.
        code: The code, if `fields` does not describe it yet: the digest can be computed while it runs.
    """

    def __init__(self, sandbox: ContextOwner, fields: Fields, code: str | None = None) -> None:
        self._security = sandbox.security
        self._trail = trail = sandbox.audit
        self._fields = fields
        self._code = code

        if trail.is_in_file:
            trail.note("executing", fields)

        # Before a sandbox is handed out it runs only our own code.
        if trail.is_open:
            trail.under_way(self, lambda: self._write({"outcome": "sandbox_ended"}))

    def ended(self, execution: Execution) -> Execution:
        """Records the outcome, and returns the execution with the head of the audit record."""
        if self._trail.is_finished(self):
            return execution

        error = execution.error

        if error is not None and error.kind in _LIMITS:
            self._security.note_limit(execution.id, _LIMITS[error.kind])

        if error is not None and error.hint:
            self._note_guessed_limit(error)

        for limit in _cut(execution):
            self._security.note_limit(execution.id, limit)

        self._security.note_ran(execution.usage.wall_seconds)
        # No other code refers to it yet, and a copy would take as long as the rest of this method.
        object.__setattr__(execution, "audit_head", self._write_later(execution))
        return execution

    def failed(self, error: BaseException) -> None:
        """Records an unknown outcome: the caller was cancelled, or the execution failed."""
        if self._trail.is_finished(self):
            return

        is_given_up = isinstance(error, asyncio.CancelledError)
        self._write({"outcome": "given_up" if is_given_up else "failed", "error": type(error).__name__})

    def _note_guessed_limit(self, error: ExecutionError) -> None:
        """Reports a limit of the whole sandbox if the error of the code indicates one."""
        found = explain_failure(error.name, error.value, error.traceback)

        if found is not None and found.limit:
            self._security.note_guessed_limit(found.limit)

    def _write_later(self, execution: Execution) -> AuditHead | None:
        def make() -> Fields:
            return {**self._known(), **_outcome(execution)}

        return self._trail.note_later("executed", make, holds_on=True)

    def _write(self, outcome: Fields) -> AuditHead | None:
        return self._trail.note("executed", {**self._known(), **outcome})

    def _known(self) -> Fields:
        return self._fields if self._code is None else {**self._fields, **describe_little(self._code)}


async def begin_execution(
    sandbox: ContextOwner, context: ContextInfo, request: ExecuteRequest, comm: CommMessage | None
) -> AuditedExecution:
    """Begins the audit entries of code that is about to run."""
    if not sandbox.audit.is_open:
        return AuditedExecution(sandbox, {})

    is_described_later = is_little(request.code) and not sandbox.audit.is_in_file
    fields: Fields = {
        "context": context.id,
        "language": context.language,
        **({} if is_described_later else await describe_code(request.code)),
        "silent": request.silent or None,
        "handles": None if comm is None else comm.kind,
        "transactional": request.transactional or None,
        "stdin_bytes": None if request.stdin is None else len(request.stdin),
    }
    return AuditedExecution(sandbox, fields, request.code if is_described_later else None)


def _outcome(execution: Execution) -> Fields:
    usage, error, transaction = execution.usage, execution.error, execution.transaction
    return {
        "execution": execution.id,
        "outcome": "ok" if error is None else error.kind,
        "error": None if error is None else shown(error.name),
        "wall_microseconds": microseconds(usage.wall_seconds),
        "cpu_microseconds": microseconds(usage.user_cpu_seconds + usage.system_cpu_seconds),
        "peak_memory_bytes": usage.peak_memory_bytes,
        "bytes_out": usage.bytes_out,
        "state_lost": execution.state_lost or None,
        "transaction": None if transaction is None else transaction.outcome,
    }


def _cut(execution: Execution) -> list[str]:
    truncated = execution.truncated

    if not truncated:
        return []

    counts = {
        "stdout_bytes": truncated.stdout_bytes,
        "stderr_bytes": truncated.stderr_bytes,
        "result_count": truncated.results,
    }
    return [limit for limit, count in counts.items() if count]
