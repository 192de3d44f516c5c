"""The languages "javascript", "typescript" and "java": one live program whose variables persist from cell to cell.

The program is Node or a JVM with a driver of `fumehood_guest.languages`; it reads cells from one pipe and replies on
another. What a cell prints comes among the replies, so that stdout and stderr stay in order; what is printed between
cells, and by other processes, goes to fds 1 and 2. User code shares the process with the driver, so its replies are not
trusted: a malformed one ends this context, and nothing else. A program that ends takes the context with it.
"""

from __future__ import annotations

import codecs
import json
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, List, Tuple

from fumehood_guest.context.child_language import ChildLanguage, end_as, end_damaged, end_unavailable
from fumehood_guest.context.introspection import Answerer, Matches
from fumehood_guest.context.outlet import GuestExecution, Outlet
from fumehood_guest.context.signals import SignalGate
from fumehood_guest.languages.programs import DriverProgram, MissingProgramError

_DAMAGED = "the driver of the language has sent what no driver sends"
# A reply holds at most one result, in base64 where it is bytes; larger results are refused by the outlet anyway.
_MAX_REPLY_BYTES = 128 << 20
_READ_BYTES = 1 << 16
_LENGTH_BYTES = 4
_MAX_TURN = 255
# The first byte of a message that is text of a cell, and not JSON.
_STREAMS = {1: "stdout", 2: "stderr"}
_TEXT = tuple(bytes((first,)) for first in _STREAMS)
# How long a program may take to react to an interrupt before Node's second thread is asked, and before it is
# interrupted again.
_PATIENCE_SECONDS = 0.1


class DrivenShell(ChildLanguage):
    """A running program with its driver.

    Args:
        language: javascript, typescript or java.
        outlet: Takes results and errors.
        gate: Blocks signals while messages are exchanged with the driver.
    """

    def __init__(self, language: str, outlet: Outlet, gate: SignalGate) -> None:
        super().__init__(outlet, gate)
        self._program = program = _program(language)
        self.answerer: Answerer = DrivenAnswerer(self)
        self._number = 0
        self._unread = bytearray()
        self._is_cut = False
        self._has_ended = True
        # A character may be divided between two messages.
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("replace") for name in _STREAMS.values()}
        self._stdin = os.memfd_create("stdin")
        requests, self._requests = os.pipe2(os.O_CLOEXEC)
        self._replies, replies = os.pipe2(os.O_CLOEXEC)
        breaks, self._breaks = os.pipe2(os.O_CLOEXEC)
        settled, self._settled = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._settled, False)
        given = (requests, replies, breaks, settled)
        argv, envs = program.command(*given)
        self._process = subprocess.Popen(
            argv,
            stdin=self._stdin,
            pass_fds=(*given, *program.fds),
            env={**os.environ, **envs},
        )

        for fd in (*given, *program.fds):
            os.close(fd)

        greeting = self._receive()

        if not str(greeting.get("version", "")).split(".")[0].isdigit():
            end_damaged(_DAMAGED)

    def run_source(self, source: str, execution: GuestExecution) -> None:
        """Runs one cell to its end.

        Raises:
            KeyboardInterrupt: The cell was interrupted, and its program has abandoned it.
        """
        self._begin(execution)

        with self._gate.closed():
            os.ftruncate(self._stdin, 0)
            os.pwrite(self._stdin, execution.stdin or b"", 0)
            os.lseek(self._stdin, 0, os.SEEK_SET)

        if execution.after_interrupt:
            self.ask({"type": "sync"})

        self._has_ended = self._is_cut = False
        number = self._send(
            {"type": "run", "code": source, "envs": execution.envs, "silent": execution.flags["silent"]}
        )
        try:
            self._follow(number)
        except KeyboardInterrupt:
            self._follow_interrupted(number)
            raise

        if self._is_cut:
            raise KeyboardInterrupt

    def ask(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Returns the driver's answer to a question between two cells."""
        number = self._send(request)

        while True:
            reply = self._receive()

            if reply.get("type") == "answer" and reply.get("id") == number:
                return reply

            if reply.get("type") == "stream":
                self._print(reply)

    def _follow(self, number: int) -> None:
        """Passes on what a cell prints and shows, until its reply. Only waiting can be interrupted."""
        while not self._has_ended:
            if not self._has_frame():
                select.select((self._replies,), (), ())

            with self._gate.closed():
                self._take(self._receive(), number)

    def _take(self, reply: Dict[str, Any], number: int) -> None:
        """Passes on one message of the driver; notes whether it ends the cell."""
        kind = reply.get("type")

        if kind == "stream":
            self._print(reply)
        elif kind == "settle":
            self._settle(reply.get("turn"))
        elif kind == "display":
            self._show("display_data", reply.get("data"))
        elif kind == "reply" and reply.get("id") == number:
            self._has_ended = True
            self._end_text()
            self._is_cut = reply.get("interrupted") is True

            if reply.get("data") is not None:
                self._show("execute_result", reply["data"])

            if reply.get("error") is not None:
                self._error = self._checked(reply["error"])

    def _follow_interrupted(self, number: int) -> None:
        """Interrupts the program until it has abandoned the cell; without a time limit, since the host sets one."""
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while not self._has_ended_within(_PATIENCE_SECONDS, number):
                os.write(self._breaks, b"!")
                os.kill(self._process.pid, signal.SIGINT)

            # A signal that was sent twice must not reach the next cell.
            self.ask({"type": "sync"})
        finally:
            signal.signal(signal.SIGINT, handler)

    def _has_ended_within(self, seconds: float, number: int) -> bool:
        """Follows a cell for that long, also if it prints without end; returns whether it has ended."""
        deadline = time.monotonic() + seconds

        while not self._has_ended and self._is_readable(max(0.0, deadline - time.monotonic())):
            with self._gate.closed():
                self._take(self._receive(), number)

            if time.monotonic() >= deadline:
                break

        return self._has_ended

    def _print(self, reply: Dict[str, Any]) -> None:
        """Passes on text; JSON of this type can only be user code's."""
        data = reply.get("bytes")

        if not isinstance(data, bytes):
            end_damaged(_DAMAGED)

        self._outlet.text(reply["name"], self._decoders[reply["name"]].decode(data))

    def _end_text(self) -> None:
        """Passes on the bytes of an incomplete UTF-8 character at the end of the output, decoded with replacement."""
        for name, decoder in self._decoders.items():
            if rest := decoder.decode(b"", final=True):
                self._outlet.text(name, rest)

    def _settle(self, turn: Any) -> None:
        """Tells the program that all it has printed is on its way: what goes to fds 1 and 2 from now on comes later."""
        if not isinstance(turn, int) or not 0 <= turn <= _MAX_TURN:
            end_damaged(_DAMAGED)

        # Only user code that asks without waiting can fill this pipe.
        with suppress(BlockingIOError):
            os.write(self._settled, bytes((turn,)))

    def _show(self, kind: str, data: Any) -> None:
        if not isinstance(data, dict):
            end_damaged(_DAMAGED)

        count = self._count if kind == "execute_result" else None
        self._outlet.bundle(kind, data, execution_count=count)

    def _checked(self, error: Any) -> Tuple[str, str, List[str]]:
        """Returns an error of the driver; a malformed error ends the context."""
        if (
            not isinstance(error, dict)
            or not isinstance(error.get("ename"), str)
            or not isinstance(error.get("evalue"), str)
            or not isinstance(error.get("traceback"), list)
            or not all(isinstance(line, str) for line in error["traceback"])
        ):
            end_damaged(_DAMAGED)

        return error["ename"], error["evalue"], error["traceback"]

    def _send(self, request: Dict[str, Any]) -> int:
        self._number += 1
        body = self._program.encode({**request, "id": self._number})
        view = memoryview(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
        try:
            with self._gate.closed():
                while view:
                    view = view[os.write(self._requests, view) :]
        except BrokenPipeError:
            end_as(self._process)

        return self._number

    def _is_readable(self, seconds: float) -> bool:
        return self._has_frame() or bool(select.select((self._replies,), (), (), seconds)[0])

    def _has_frame(self) -> bool:
        if len(self._unread) < _LENGTH_BYTES:
            return False

        return len(self._unread) >= _LENGTH_BYTES + int.from_bytes(self._unread[:_LENGTH_BYTES], "big")

    def _receive(self) -> Dict[str, Any]:
        """Returns the next message; waits for it."""
        while True:
            if self._has_frame():
                body = self._next_body()
                # Text needs no JSON.
                return self._text(body) if body[:1] in _TEXT else self._decoded(body)

            if (
                len(self._unread) >= _LENGTH_BYTES
                and int.from_bytes(self._unread[:_LENGTH_BYTES], "big") > _MAX_REPLY_BYTES
            ):
                end_damaged(_DAMAGED)

            select.select((self._replies,), (), ())

            # An interrupt between reading and keeping would lose bytes.
            with self._gate.closed():
                piece = os.read(self._replies, _READ_BYTES)
                self._unread += piece

            if not piece:
                end_as(self._process)

    def _next_body(self) -> bytes:
        end = _LENGTH_BYTES + int.from_bytes(self._unread[:_LENGTH_BYTES], "big")
        body = bytes(self._unread[_LENGTH_BYTES:end])
        del self._unread[:end]
        return body

    def _text(self, body: bytes) -> Dict[str, Any]:
        """Returns the text of a message, and of those behind it of the same stream, as one."""
        pieces = [body[1:]]

        while self._has_frame() and self._unread[_LENGTH_BYTES : _LENGTH_BYTES + 1] == body[:1]:
            pieces.append(self._next_body()[1:])

        return {"type": "stream", "name": _STREAMS[body[0]], "bytes": b"".join(pieces)}

    def _decoded(self, body: bytes) -> Dict[str, Any]:
        try:
            reply = json.loads(body)
        except (ValueError, RecursionError):
            end_damaged(_DAMAGED)

        if not isinstance(reply, dict):
            end_damaged(_DAMAGED)

        return dict(reply)


class DrivenAnswerer:
    """Answers with the driver.

    Args:
        shell: The running language.
    """

    def __init__(self, shell: DrivenShell) -> None:
        self._shell = shell

    def complete(self, code: str, cursor: int) -> Matches:
        """Returns names and properties; no user code is run for it."""
        found = self._shell.ask({"type": "complete", "code": code, "cursor": cursor})
        matches, start = found.get("matches"), found.get("start")

        if not isinstance(matches, list) or not isinstance(start, int):
            return [], cursor, cursor

        return [match for match in matches if isinstance(match, str)], start, cursor

    def inspect(self, code: str, cursor: int, detail: int) -> Dict[str, str]:
        """Returns nothing."""
        return {}

    def check(self, code: str) -> Tuple[str, str]:
        """Parses the code without running it."""
        return str(self._shell.ask({"type": "check", "code": code}).get("status")), ""


def _program(language: str) -> DriverProgram:
    """Returns the program of a language; if it is missing, writes the reason to fd 2 and exits."""
    try:
        if language == "java":
            # Imported late, as below: a context needs one of them.
            from fumehood_guest.languages.java import JavaDriver

            return JavaDriver()

        from fumehood_guest.languages.node import NodeDriver

        return NodeDriver(is_typescript=language == "typescript")
    except MissingProgramError as error:
        end_unavailable(str(error))
