"""Stopping an execution from outside, and saying afterwards why it did not come to its own end.

Runs in the host process, on the engine's loop. An interrupt comes first and keeps the state; what does not
stop within the grace is killed. The error says which of the two happened.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import Any, Literal

from fumehood.errors import FumehoodError
from fumehood.execution import ExecutionError
from fumehood.failure_hints import KILLED_BY_FILTER
from fumehood.host.clock import SandboxClock, Timer
from fumehood.host.contexts.process import ContextProcess, Exit
from fumehood.host.unawaited import keep
from fumehood.limits import Limits

StopKind = Literal["time_limit", "cpu_limit", "interrupted"]

_REPEAT_SECONDS = 0.25
# What SIGINT raises in the code.
_INTERRUPT = "KeyboardInterrupt"
_STATE_KEPT = "the state is kept"
_STATE_LOST = "the state is lost"
# What is said instead of a transactional execution.
_STATE_UNDONE = "the state is as it was before"
_KEPT = f"it was interrupted, {_STATE_KEPT}"
_LOST = f"the context was killed, {_STATE_LOST}"


class Stop:
    """Stops one execution.

    Args:
        process: What runs it.
        grace_seconds: How long after the interrupt the kill comes.
        clock: The sandbox's.
    """

    def __init__(self, process: ContextProcess, grace_seconds: float, clock: SandboxClock) -> None:
        self.kind: StopKind | None = None
        self._process = process
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._limit_timer: Timer | None = None
        self._signal_timer: Timer | None = None
        self._kill_timer: Timer | None = None
        self._signals: list[asyncio.Task[None]] = []

    def after(self, seconds: float, kind: StopKind) -> None:
        """Begins after a time."""
        self._limit_timer = self._clock.call_later(seconds, self.begin, kind)

    def begin(self, kind: StopKind) -> None:
        """Sends the interrupt; the first reason counts."""
        if self.kind is not None:
            return

        self.kind = kind
        self._kill_timer = self._clock.call_later(self._grace_seconds, lambda: keep(self._process.end()))
        self._interrupt()

    async def over(self) -> None:
        """The execution is over; returns when no interrupt is on its way any more that could hit the next."""
        for timer in (self._limit_timer, self._signal_timer, self._kill_timer):
            if timer is not None:
                timer.cancel()

        if self._signals:
            await asyncio.wait(self._signals)

    def _interrupt(self) -> None:
        """Interrupts, and again: CPython can miss a signal that comes just before a call that blocks."""
        self._signals.append(keep(self._process.send_signal(signal.SIGINT)))
        self._signal_timer = self._clock.call_later(_REPEAT_SECONDS, self._interrupt)


def why_stopped(
    stop: Stop,
    reply: dict[str, Any] | None,
    exit_: Exit,
    wall_seconds: float,
    limits: Limits,
    ended: FumehoodError | None = None,
) -> ExecutionError | None:
    """Says why an execution did not come to its own end, and whether the state was kept; None if it did.

    Args:
        stop: How it was stopped from outside, if it was.
        reply: The last message of the guest, or None when the context is gone.
        exit_: How the process of the context ended.
        wall_seconds: The time limit of the execution.
        limits: Those of the sandbox.
        ended: Why the whole sandbox was ended, if it was.
    """
    state = _KEPT if reply is not None else _LOST

    if stop.kind == "time_limit":
        value = f"ran longer than {wall_seconds:g} s: {state}"
        return ExecutionError(kind="time_limit", name="TimeLimitExceeded", value=value)

    if stop.kind == "cpu_limit":
        value = f"used more than {limits.cpu_seconds:g} s of CPU time: {state}"
        return ExecutionError(kind="cpu_limit", name="CpuLimitExceeded", value=value)

    if reply is None and exit_.out_of_memory:
        value = f"used more than {limits.memory_bytes:,} bytes of memory: {state}"
        return ExecutionError(kind="out_of_memory", name="OutOfMemory", value=value)

    if stop.kind == "interrupted":
        value = state if reply is not None else f"did not stop when asked: {state}"
        return ExecutionError(kind="interrupted", name="Interrupted", value=value)

    if reply is not None:
        return None

    if ended is not None:
        value = f"{ended.message}; {_STATE_LOST}"
        return ExecutionError(kind="context_died", name="SandboxEnded", value=value, hint=ended.hint)

    value = f"the context died ({_how(exit_)}), {_STATE_LOST}"
    hint = KILLED_BY_FILTER if exit_.status == -signal.SIGSYS else ""
    return ExecutionError(kind="context_died", name="ContextDied", value=value, hint=hint)


def located(stopped: ExecutionError, reported: ExecutionError | None) -> ExecutionError:
    """Returns the error of an execution that was stopped, with the place that the code has reported.

    Args:
        stopped: Why it was stopped.
        reported: What the code itself has failed with when it was interrupted; None when it has said nothing.
    """
    if reported is None or not reported.traceback:
        return stopped

    last_line = f"{stopped.name}: {stopped.value}"

    if reported.name != _INTERRUPT:
        # The interrupt was caught, and something else came of it.
        return replace(stopped, traceback=f"{reported.traceback}\n\n{last_line}")

    lines = reported.traceback.split("\n")
    heading = next((at for at, line in enumerate(lines[:2]) if line.startswith(f"{_INTERRUPT} ")), None)

    if heading is not None:
        lines[heading] = lines[heading].replace(_INTERRUPT, stopped.name, 1)

    if lines[-1].startswith(_INTERRUPT):
        lines[-1] = last_line
    else:
        lines += ["", last_line]

    return replace(stopped, traceback="\n".join(lines))


def has_exited(error: ExecutionError, *, status: int) -> bool:
    """Tells whether an execution ended because its code ended the process itself, with this exit code."""
    return error.kind == "context_died" and f"({_how(Exit(status=status))})" in error.value


def undone(error: ExecutionError | None) -> ExecutionError | None:
    """Returns the error of a transactional execution, which leaves the state as it was before."""
    if error is None:
        return None

    value = error.value.replace(_STATE_KEPT, _STATE_UNDONE).replace(_STATE_LOST, _STATE_UNDONE)
    return replace(error, value=value)


def _how(exit_: Exit) -> str:
    if exit_.status is None:
        return "it closed its channel"

    if exit_.status >= 0:
        return f"exit code {exit_.status}"

    try:
        return f"signal {signal.Signals(-exit_.status).name}"
    except ValueError:
        return f"signal {-exit_.status}"
