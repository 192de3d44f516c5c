"""Models of the routes of commands, and of the lines of a command's output.

They bound and describe; a body becomes a request of the port.
"""

from __future__ import annotations

import signal
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from fumehood.server.schemas.base import Base64, Body, Envs, GuestPath, Seconds, Text, model_of
from fumehood.server.schemas.executions import KeepaliveLine, ProblemLine
from fumehood.values.looking import CommandPage
from fumehood.values.requests import ProcessExited, ProcessSpec
from fumehood.values.sandbox import ProcessInfo, PtySize

_SHELL = ("/bin/bash", "-l", "-c")
_MAX_ARGUMENTS = 10_000
_Line = Annotated[str, Field(min_length=1, max_length=128 * 1024, pattern=r"^[^\x00]+$")]
# A part of JSON Schema that pydantic has no word for; the port refuses a program without a name.
_PROGRAM = {"type": "string", "minLength": 1, "maxLength": 128 * 1024, "pattern": r"^[^\x00]+$"}
_Arguments = Annotated[
    list[Text],
    Field(min_length=1, max_length=_MAX_ARGUMENTS, json_schema_extra={"prefixItems": [_PROGRAM]}),
]
_Side = Annotated[int, Field(ge=1, le=10_000)]
SignalName = Literal[
    "SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGCONT", "SIGSTOP", "SIGTSTP"
]

CommandAnswer = model_of(ProcessInfo)
RanCommandsAnswer = model_of(CommandPage)


def _nothing() -> None:
    """Returns None: as a default factory, it makes a field optional without a default in the OpenAPI description."""


class TerminalSize(Body):
    """Size of a terminal in characters."""

    cols: _Side = 80
    rows: _Side = 24

    def size(self) -> PtySize:
        """Returns the value of the port."""
        return PtySize(cols=self.cols, rows=self.rows)


class NewCommand(Body):
    """A command to start: either `argv`, or `command` for the sandbox's bash."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["argv"]}, {"required": ["command"]}]}
    )

    argv: _Arguments = Field(
        default_factory=list,
        description="Program and arguments, which no shell reads; the program is looked up in PATH.",
    )
    command: _Line = Field(default_factory=str, description="A line for `bash -l -c`.")
    cwd: GuestPath | None = Field(None, description="Where it starts; null: /home/user.")
    envs: Envs = Field(default_factory=dict, description="Added to the sandbox's environment.")
    stdin: bool = Field(False, description="Keep its standard input open; otherwise it is empty.")
    pty: TerminalSize | None = Field(None, description="Run it on a terminal of this size.")
    timeout_seconds: Seconds | None = Field(
        None, description="It is killed after this time; null: it lives as long as the sandbox."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> NewCommand:
        if len(self.model_fields_set & {"argv", "command"}) != 1:
            raise ValueError("give either `argv` or `command`")

        return self

    def spec(self) -> ProcessSpec:
        """Returns the body as the value that `Backend` takes; a `command` is run by a shell."""
        return ProcessSpec(
            argv=tuple(self.argv) or (*_SHELL, self.command),
            cwd=self.cwd,
            envs=self.envs,
            stdin=self.stdin,
            pty=self.pty.size() if self.pty else None,
            timeout_seconds=self.timeout_seconds,
        )


class CommandList(BaseModel):
    """The running commands of a sandbox."""

    items: list[CommandAnswer]  # type: ignore[valid-type]


class NewSignal(Body):
    """A signal for a command and everything that it started."""

    signal: SignalName | Annotated[int, Field(ge=1, le=64)] = Field(description="Its name or its number.")

    def number(self) -> int:
        """Returns its number."""
        return self.signal if isinstance(self.signal, int) else signal.Signals[self.signal]


class OutputLine(BaseModel):
    """A piece of output: `text` when it is UTF-8, whole characters; else `data`. Never both, and nothing is lost."""

    type: Literal["stdout", "stderr", "pty"] = Field(description="Where it was written; pty for a terminal.")
    text: str | SkipJsonSchema[None] = Field(default_factory=_nothing)
    data: Base64 | SkipJsonSchema[None] = Field(default_factory=_nothing)
    skipped_bytes: int | SkipJsonSchema[None] = Field(
        default_factory=_nothing,
        ge=1,
        description="How much was left out directly before it, beyond the limit.",
    )


COMMAND_LINES: tuple[type[BaseModel], ...] = (
    OutputLine,
    model_of(ProcessExited, kind="exited"),
    ProblemLine,
    KeepaliveLine,
)
