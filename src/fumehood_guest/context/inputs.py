"""input() and getpass.getpass(), answered by the host, or by the standard input if the host has sent one.

Runs in a context. The question is sent as a frame; the answer arrives among the replies to the cell. A wait can be
interrupted; an answer that arrives too late is dropped.
"""

from __future__ import annotations

import builtins
import getpass
import sys
import threading
from typing import Any

from fumehood_guest.context.outlet import Outlet
from fumehood_guest.context.replies import Replies
from fumehood_guest.context.streams import Streams

_NO_INPUT = "{name}() has no one to ask. Pass stdin=... or on_input=... to run_code() to answer."


class Inputs:
    """Asks the host for lines."""

    def __init__(self, outlet: Outlet, streams: Streams, replies: Replies) -> None:
        self._outlet = outlet
        self._streams = streams
        self._replies = replies
        self.is_cell_running = False

    def install(self) -> None:
        """Replaces the functions that would read from a terminal."""
        builtins.input = self.input
        getpass.getpass = self.getpass

    def input(self, prompt: object = "", /) -> str:
        """Reads a line from the caller of this execution. The trailing newline is stripped."""
        return self._ask("input", str(prompt), password=False)

    def getpass(self, prompt: str = "Password: ", stream: Any = None, **_options: Any) -> str:
        """Reads a line that is not echoed."""
        return self._ask("getpass", str(prompt), password=True)

    def _ask(self, name: str, prompt: str, *, password: bool) -> str:
        execution = self._outlet.execution

        if execution is not None and execution.stdin is not None:
            return self._read(prompt)

        if (
            not self.is_cell_running
            or execution is None
            or not execution.allow_stdin
            or self._outlet.is_detached
        ):
            raise EOFError(_NO_INPUT.format(name=name))

        if threading.current_thread() is not threading.main_thread():
            raise EOFError(f"{name}() works in the main thread only")

        self._streams.flush()
        waiter = self._replies.expect(("input_reply", execution.id, None))
        self._outlet.ask(prompt, password=password)
        reply = self._replies.wait(waiter)

        if reply is None or reply[0].get("eof"):
            raise EOFError(f"{name}() was asked for, and got no answer")

        return reply[1].decode("utf-8", "replace").rstrip("\n")

    def _read(self, prompt: str) -> str:
        """Reads a line of the standard input that the host has sent, as a program would."""
        sys.stdout.write(prompt)
        sys.stdout.flush()
        line: str = sys.stdin.readline()

        if not line:
            raise EOFError("EOF when reading a line")

        return line[:-1] if line.endswith("\n") else line
