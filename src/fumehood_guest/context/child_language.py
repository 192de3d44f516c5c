"""The base of languages whose code runs in a separate program: counts cells, reports errors, handles the program's end.

Runs in a context, as the base of its language. The program is a child of the context, and as hostile as user code: what
it sends may be malformed, which ends this context and nothing else. A program that a signal ends takes the context with
it, so that the host detects an out-of-memory kill.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from fumehood_guest.context.introspection import Answerer, Matches
from fumehood_guest.context.outlet import GuestExecution, Outlet
from fumehood_guest.context.signals import SignalGate
from fumehood_wire.messages import LANGUAGE_UNAVAILABLE_STATUS

_DAMAGED = 70
SIGNAL_BASE = 128


class ChildLanguage:
    """A language whose code runs in a child process.

    Args:
        outlet: Takes results and errors.
        gate: Blocks signals while messages are exchanged with the child.
    """

    answerer: Answerer

    def __init__(self, outlet: Outlet, gate: SignalGate) -> None:
        self._outlet = outlet
        self._gate = gate
        self._count = 0
        # The error of the cell: name, value and lines of its trace.
        self._error: Optional[Tuple[str, str, List[str]]] = None

    @property
    def reply_count(self) -> int:
        """The number of the last cell with a history number."""
        return self._count

    def run_comm(self, _header: Dict[str, Any], _payload: bytes) -> None:
        """Does nothing: there are no widgets."""
        self._error = None

    def report(self, error: Optional[BaseException] = None) -> None:
        """Sends the error of the cell: an interrupt, or what its program has reported."""
        reported, self._error = self._error, None

        if error is not None:
            name = type(error).__name__
            self._outlet.error(name, str(error), [f"{name}: {error}" if str(error) else name])
        elif reported is not None:
            self._outlet.error(*reported)

    def _begin(self, execution: GuestExecution) -> None:
        """Counts a cell that is about to run, unless it has no history number, and forgets the previous error."""
        self._count += execution.store_history
        self._error = None


class NothingKnown:
    """Answers questions about code of languages that can only be examined by running it: all answers are empty."""

    def complete(self, code: str, cursor: int) -> Matches:
        """Returns nothing."""
        return [], cursor, cursor

    def inspect(self, code: str, cursor: int, detail: int) -> Dict[str, str]:
        """Returns nothing."""
        return {}

    def check(self, code: str) -> Tuple[str, str]:
        """Returns the answer "unknown"."""
        return "unknown", ""


def end_as(process: "subprocess.Popen[bytes]") -> NoReturn:
    """Waits for the child and ends this process with the same exit status or signal."""
    status = process.wait()

    if status < 0:
        os.kill(os.getpid(), -status)
        os._exit(SIGNAL_BASE - status)

    os._exit(status)


def end_damaged(words: str) -> NoReturn:
    """Ends this process, because its child has sent a malformed message."""
    os.write(2, f"fumehood: {words}\n".encode())
    os._exit(_DAMAGED)


def end_unavailable(reason: str) -> NoReturn:
    """Ends this process, because the template lacks what the language needs."""
    os.write(2, reason.encode("utf-8", "replace"))
    os._exit(LANGUAGE_UNAVAILABLE_STATUS)
