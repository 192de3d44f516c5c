"""The requests of `process.Process`: their fields, and their conversion to requests of the port.

Pure, used in the server process.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.dialects.e2b.environment import inside, shown_envs
from fumehood.dialects.e2b.messages import (
    AnObject,
    Bytes,
    ClientMessage,
    Flag,
    NameOrNumber,
    TextMap,
    Texts,
    Whole,
)
from fumehood.errors import InvalidArgumentError
from fumehood.server.json_bodies import Text
from fumehood.values.requests import ProcessSpec
from fumehood.values.sandbox import PtySize

_SIGNALS = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9}


class _Size(ClientMessage):
    cols: Whole = 80
    rows: Whole = 24


class _Terminal(ClientMessage):
    size: Annotated[_Size, AnObject] = _Size()

    def pty_size(self) -> PtySize:
        return PtySize(cols=self.size.cols, rows=self.size.rows)


class _Selector(ClientMessage):
    pid: Whole = 0
    tag: Text = ""


class ProcessRequest(ClientMessage):
    """A request about one command, which it names by its pid or its tag."""

    process: Annotated[_Selector, AnObject] = _Selector()


class _Command(ClientMessage):
    cmd: Text = ""
    args: Texts = ()
    envs: TextMap = Field(default_factory=dict)
    cwd: Text = ""


class StartRequest(ClientMessage):
    """A command or a terminal to start."""

    process: Annotated[_Command, AnObject] = _Command()
    pty: Annotated[_Terminal | None, AnObject] = None
    tag: Text = ""
    # Older clients have no such field and expect that they can write.
    stdin: Flag = True

    def spec(self, sandbox_id: str, timeout_seconds: float | None) -> ProcessSpec:
        """Returns the request to start the command.

        Raises:
            InvalidArgumentError: The request names no program.
        """
        command = self.process

        if not command.cmd:
            raise InvalidArgumentError(field="process.cmd", value=command.cmd, allowed="a program")

        return ProcessSpec(
            argv=(command.cmd, *command.args),
            cwd=inside(command.cwd),
            envs=shown_envs(sandbox_id, command.envs),
            stdin=self.pty is None and self.stdin,
            pty=None if self.pty is None else self.pty.pty_size(),
            timeout_seconds=timeout_seconds,
        )


class UpdateRequest(ProcessRequest):
    """A new size of a terminal."""

    pty: Annotated[_Terminal | None, AnObject] = None

    def size(self) -> PtySize:
        """Returns the size.

        Raises:
            InvalidArgumentError: The request has no size.
        """
        if self.pty is None:
            raise InvalidArgumentError(field="pty", value=..., allowed="a size: nothing else can be updated")

        return self.pty.pty_size()


class _Input(ClientMessage):
    stdin: Bytes | None = None
    pty: Bytes | None = None

    def data(self) -> bytes:
        """Returns the bytes for the standard input or the terminal; protobuf leaves out empty fields."""
        given = self.pty if self.stdin is None else self.stdin
        return given or b""


class SendInputRequest(ProcessRequest):
    """Bytes to write to the input of a command."""

    input: Annotated[_Input, AnObject] = _Input()


class _InputPart(ClientMessage):
    input: Annotated[_Input, AnObject] = _Input()


class StreamInputRequest(ClientMessage):
    """One message of a stream of input: the first names the command, the others hold bytes."""

    start: Annotated[ProcessRequest | None, AnObject] = None
    data: Annotated[_InputPart | None, AnObject] = None


class SendSignalRequest(ProcessRequest):
    """A signal, written by its name or its number."""

    signal: NameOrNumber = 0

    def number(self) -> int:
        """Returns the number of the signal.

        Raises:
            InvalidArgumentError: The signal is neither SIGTERM nor SIGKILL.
        """
        number = _SIGNALS.get(self.signal) if isinstance(self.signal, str) else self.signal

        if number is None or number not in _SIGNALS.values():
            raise InvalidArgumentError(
                field="signal", value=self.signal, allowed="SIGNAL_SIGTERM or SIGNAL_SIGKILL"
            )

        return number
