"""The standard input of one execution: descriptor 0, sys.stdin, input() and getpass.getpass().

Content that the host has sent is in a memory file, so that Python, C code and child processes read it, each from where
the last one stopped, up to its end. After the execution descriptor 0 is empty again. Without content, input() sends its
question to the host as a frame; the answer arrives among the replies to the cell. A wait can be interrupted; an answer
that arrives too late is dropped.

A program of `fumehood run` reads the standard input of the command instead: `sys.stdin` asks for it piece by piece, so
that it may be of any length and may arrive while the program runs. Descriptor 0 stays empty, for child processes.
"""

from __future__ import annotations

import base64
import builtins
import getpass
import io
import os
import sys
import threading
from typing import Any, Callable, Optional

from fumehood_guest.context.outlet import Outlet
from fumehood_guest.context.replies import Replies
from fumehood_guest.context.streams import Streams


class BorrowedInput:
    """Replaces standard input during one execution.

    Args:
        content: Its content; None changes nothing.
    """

    def __init__(self, content: Optional[bytes]) -> None:
        self._content = content
        self._is_taken = False

    def take(self) -> None:
        """Installs the content as standard input."""
        if self._content is None:
            return

        self._is_taken = True
        fd = os.memfd_create("stdin")

        with open(fd, "wb", closefd=False) as file:
            file.write(self._content)

        os.lseek(fd, 0, os.SEEK_SET)
        _put(fd)

    def give_back(self) -> None:
        """Makes standard input empty again."""
        if self._is_taken:
            _put(os.open(os.devnull, os.O_RDWR))
            self._is_taken = False


class AskedInput(io.RawIOBase):
    """A stream whose content the host sends piece by piece; the next piece is requested when the last one was read.

    Args:
        ask: Returns the next piece as base64; raises EOFError at the end.
    """

    def __init__(self, ask: Callable[[], str]) -> None:
        super().__init__()
        self._ask = ask
        self._rest = b""

    def readable(self) -> bool:
        """Returns True: it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Copies the next bytes into the buffer and returns how many these are; 0 at the end."""
        if not self._rest:
            if threading.current_thread() is not threading.main_thread():
                raise OSError("standard input can be read in the main thread only")

            try:
                self._rest = base64.b64decode(self._ask())
            except EOFError:
                return 0

        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def ask_for_input() -> None:
    """Makes `sys.stdin`, `input()` and `getpass.getpass()` read the standard input of the command, piece by piece."""
    stream = io.BufferedReader(AskedInput(builtins.input))
    sys.stdin = io.TextIOWrapper(stream, encoding="utf-8")
    builtins.input = _read_line
    getpass.getpass = _read_password


def _read_line(prompt: object = "", /) -> str:
    """Reads a line of standard input. The trailing newline is stripped."""
    sys.stdout.write(str(prompt))
    sys.stdout.flush()
    line: str = sys.stdin.readline()

    if not line:
        raise EOFError("EOF when reading a line")

    return line[:-1] if line.endswith("\n") else line


def _read_password(prompt: str = "Password: ", stream: Any = None, **_options: Any) -> str:
    """Reads a line of standard input, which is not a terminal and echoes nothing."""
    return _read_line(prompt)


def _put(fd: int) -> None:
    """Makes a descriptor the standard input, and discards what was buffered of the previous one."""
    if fd != 0:
        os.dup2(fd, 0)
        os.close(fd)

    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


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
