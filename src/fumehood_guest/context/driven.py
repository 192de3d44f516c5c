"""The languages "javascript", "typescript" and "java": one live program whose variables persist from cell to cell.

Runs in a context. The program is Node or a JVM with a driver of `fumehood_guest.languages`; it reads cells from one
pipe and replies on another. What cells print goes to fds 1 and 2; a cell of Node that writes to both streams sends it
in replies, which keep the order. User code shares the process with the driver, so its replies are not trusted: a
malformed one ends this context, and nothing else. A program that ends takes the context with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from typing import Any, Dict, List, Tuple

from fumehood_guest.context.child_language import ChildLanguage, end_as, end_damaged, end_unavailable
from fumehood_guest.context.introspection import Answerer, Matches
from fumehood_guest.context.outlet import STREAM_FDS, Execution, Outlet
from fumehood_guest.context.signals import SignalGate
from fumehood_guest.languages.programs import DriverProgram, MissingProgramError

_DAMAGED = "the driver of the language has sent what no driver sends"
# A reply holds at most one result, in base64 where it is bytes; larger results are refused by the outlet anyway.
_MAX_REPLY_BYTES = 128 << 20
_READ_BYTES = 1 << 16
_LENGTH_BYTES = 4
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
        self._unread = b""
        self._is_cut = False
        # Text of one stream that came in replies; those that are here already are passed on together.
        self._text: List[str] = []
        self._text_stream = ""
        self._stdin = os.memfd_create("stdin")
        requests, self._requests = os.pipe2(os.O_CLOEXEC)
        self._replies, replies = os.pipe2(os.O_CLOEXEC)
        breaks, self._breaks = os.pipe2(os.O_CLOEXEC)
        argv, envs = program.command(requests, replies, breaks)
        self._process = subprocess.Popen(
            argv,
            stdin=self._stdin,
            pass_fds=(requests, replies, breaks, *program.fds),
            env={**os.environ, **envs},
        )

        for fd in (requests, replies, breaks, *program.fds):
            os.close(fd)

        greeting = self._receive()

        if not str(greeting.get("version", "")).split(".")[0].isdigit():
            end_damaged(_DAMAGED)

    def run_source(self, source: str, execution: Execution) -> None:
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

        number = self._send(
            {"type": "run", "code": source, "envs": execution.envs, "silent": execution.flags["silent"]}
        )
        try:
            is_interrupted = self._follow(number)
        except KeyboardInterrupt:
            self._follow_interrupted(number)
            raise

        if is_interrupted:
            raise KeyboardInterrupt

    def ask(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Returns the driver's answer to a question between two cells."""
        number = self._send(request)

        while True:
            reply = self._receive()

            if reply.get("type") == "answer" and reply.get("id") == number:
                return reply

    def _follow(self, number: int) -> bool:
        """Passes on what a cell shows, until its reply; returns whether it was interrupted."""
        while True:
            if self._take(self._receive(), number):
                return self._is_cut

    def _take(self, reply: Dict[str, Any], number: int) -> bool:
        """Passes on one message of the driver; returns whether it ends the cell."""
        with self._gate.closed():
            if reply.get("type") == "stream":
                self._take_text(reply)
                return False

            self._pass_text_on()

            if reply.get("type") == "display":
                self._show("display_data", reply.get("data"))
                return False

            if reply.get("type") != "reply" or reply.get("id") != number:
                return False

            self._is_cut = reply.get("interrupted") is True

            if reply.get("data") is not None:
                self._show("execute_result", reply["data"])

            if reply.get("error") is not None:
                self._error = self._checked(reply["error"])

        return True

    def _take_text(self, reply: Dict[str, Any]) -> None:
        name, text = reply.get("name"), reply.get("text")

        if not isinstance(name, str) or name not in STREAM_FDS or not isinstance(text, str):
            end_damaged(_DAMAGED)

        if name != self._text_stream:
            self._pass_text_on()

        self._text_stream = name
        self._text.append(text)

        if not self._has_frame():
            self._pass_text_on()

    def _pass_text_on(self) -> None:
        text, self._text = "".join(self._text), []

        if text:
            self._outlet.text(self._text_stream, text)

    def _follow_interrupted(self, number: int) -> None:
        """Waits until the program has abandoned the cell; the host decides how long that may take."""
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while True:
                while self._is_readable(_PATIENCE_SECONDS):
                    if self._take(self._receive(), number):
                        # A signal that was sent twice must not reach the next cell.
                        self.ask({"type": "sync"})
                        return

                os.write(self._breaks, b"!")
                os.kill(self._process.pid, signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, handler)

    def _show(self, kind: str, data: Any) -> None:
        if not isinstance(data, dict):
            end_damaged(_DAMAGED)

        count = self._count if kind == "execute_result" else None
        self._outlet.bundle(kind, data, execution_count=count)

    def _checked(self, error: Any) -> Tuple[str, str, List[str]]:
        """Returns an error of the driver; one that is malformed ends the context."""
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
        pieces: List[bytes] = []

        while True:
            if self._has_frame():
                end = _LENGTH_BYTES + int.from_bytes(self._unread[:_LENGTH_BYTES], "big")
                body, self._unread = self._unread[_LENGTH_BYTES:end], self._unread[end:]
                return self._decoded(body)

            if (
                len(self._unread) >= _LENGTH_BYTES
                and int.from_bytes(self._unread[:_LENGTH_BYTES], "big") > _MAX_REPLY_BYTES
            ):
                end_damaged(_DAMAGED)

            select.select((self._replies,), (), ())

            # An interrupt between reading and keeping would lose bytes.
            with self._gate.closed():
                pieces = [self._unread, os.read(self._replies, _READ_BYTES)]
                self._unread = b"".join(pieces)

            if not pieces[1]:
                end_as(self._process)

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
    """Returns the program of a language; ends this process, with the reason on fd 2, if it is not there."""
    try:
        if language == "java":
            # Imported late, as below: a context needs one of them.
            from fumehood_guest.languages.java import JavaDriver

            return JavaDriver()

        from fumehood_guest.languages.node import NodeDriver

        return NodeDriver(is_typescript=language == "typescript")
    except MissingProgramError as error:
        end_unavailable(str(error))
