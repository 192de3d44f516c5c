"""The commands of one sandbox for later readers: what ran, how it ended, and the two ends of its output.

Runs in the host process, on the engine's loop. It holds bytes and times, within bounds of number and size, and drops
the oldest; it starts and ends nothing. Output of terminals is not in it: programs redraw it, and it holds what was
typed.
"""

from __future__ import annotations

import shlex
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from fumehood.bounds import KIB, MIB
from fumehood.values.looking import CommandPage, CommandPiece, RanCommand, ReadCommands
from fumehood.values.requests import ProcessOutput
from fumehood.values.sandbox import ProcessInfo

_MAX_COMMANDS = 256
_MAX_BYTES = 1 * MIB
# Of each end of the output of one command.
_END_BYTES = 16 * KIB
_MAX_COMMAND_CHARACTERS = 8 * KIB
# Estimate of the objects of an entry.
_ENTRY_BYTES = 1 * KIB


class Running(Protocol):
    """A command under way, as far as its reader sees it."""

    @property
    def info(self) -> ProcessInfo:
        """The command."""

    @property
    def timed_out(self) -> bool:
        """Whether its time was over."""

    def excerpt(self, end_bytes: int) -> list[ProcessOutput]:
        """Returns the beginning and the end of its output so far."""


@dataclass(slots=True)
class _Ran:
    number: int
    command: str
    info: ProcessInfo
    started_at: datetime
    # None once it has ended.
    process: Running | None
    ended_at: datetime | None = None
    exit_code: int | None = None
    timed_out: bool = False
    output: tuple[ProcessOutput, ...] = ()

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + len(self.command) + sum(len(piece.data) for piece in self.output)


class CommandHistory:
    """The last commands of a sandbox; what is dropped is counted."""

    def __init__(self) -> None:
        self._all: deque[_Ran] = deque()
        self._dropped = 0
        self._size_bytes = 0

    def begin(self, process: Running) -> None:
        """Notes a command that has started."""
        number = self._dropped + len(self._all)
        command = command_line(process.info.argv)[:_MAX_COMMAND_CHARACTERS]
        ran = _Ran(number, command, process.info, datetime.now(UTC), process)
        self._all.append(ran)
        self._size_bytes += ran.size_bytes
        self._drop()

    def end(self, process: Running, exit_code: int) -> None:
        """Notes how a command has ended; one that is not known, or no longer, is left out."""
        # The latest commands are the likeliest to end.
        ran = next((ran for ran in reversed(self._all) if ran.process is process), None)

        if ran is None:
            return

        self._size_bytes -= ran.size_bytes
        ran.process, ran.ended_at, ran.exit_code = None, datetime.now(UTC), exit_code
        ran.timed_out = process.timed_out
        ran.output = tuple(process.excerpt(_END_BYTES))
        self._size_bytes += ran.size_bytes
        self._drop()

    def read(self, request: ReadCommands) -> CommandPage:
        """Returns the commands that a request asks for, in the order of their start."""
        found = [ran for ran in self._all if request.after is None or ran.number > request.after]
        return CommandPage(items=tuple(map(_shown, found[-request.limit :])), dropped_commands=self._dropped)

    def _drop(self) -> None:
        while len(self._all) > 1 and (len(self._all) > _MAX_COMMANDS or self._size_bytes > _MAX_BYTES):
            self._size_bytes -= self._all.popleft().size_bytes
            self._dropped += 1


def command_line(argv: tuple[str, ...]) -> str:
    """Return a command as its caller typed it: without the shell that runs a line."""
    return argv[-1] if argv[1:-1] == ("-l", "-c") else shlex.join(argv)


def _shown(ran: _Ran) -> RanCommand:
    output = ran.output if ran.process is None else tuple(ran.process.excerpt(_END_BYTES))
    return RanCommand(
        number=ran.number,
        pid=ran.info.pid,
        command=ran.command,
        cwd=ran.info.cwd,
        is_terminal=ran.info.is_pty,
        started_at=ran.started_at,
        ended_at=ran.ended_at,
        exit_code=ran.exit_code,
        timed_out=ran.timed_out,
        output=tuple(
            CommandPiece(
                stream="stderr" if piece.stream == "stderr" else "stdout",
                text=piece.data.decode("utf-8", "replace"),
                skipped_bytes=piece.skipped_bytes,
            )
            for piece in output
        ),
    )
