"""The commands of one sandbox for later readers: what ran, how it ended, and the two ends of its output.

It holds bytes and times, within bounds of number and size, and drops the oldest; it starts and ends nothing. Output of
terminals is not in it: programs redraw it, and it holds what was typed.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from sys import getsizeof
from typing import Protocol

from fumehood.bounds import KIB, MIB
from fumehood.engine.command_output import CommandOutput
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
# Estimate of the objects of a piece of output.
_PIECE_BYTES = 200
# Of one page; the last command of it may exceed it.
_PAGE_BYTES = 256 * KIB
_ESCAPED = re.compile("[\udc80-\udcff]")


class RunningCommand(Protocol):
    """A command under way, as far as its reader sees it."""

    @property
    def info(self) -> ProcessInfo:
        """The command."""

    @property
    def timed_out(self) -> bool:
        """Whether its time was over."""

    def excerpt(self, end_bytes: int) -> list[ProcessOutput]:
        """Returns the beginning and the end of its output so far."""

    @property
    def output(self) -> CommandOutput | None:
        """Its output so far; of a terminal none."""


@dataclass(slots=True)
class _Ran:
    # Without its output.
    about: RanCommand
    # None once it has ended.
    process: RunningCommand | None
    output: Sequence[ProcessOutput] = ()

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + getsizeof(self.about.command) + getsizeof(self.about.cwd) + _size(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCommands:
    """A page of commands whose output is still bytes: `text_page` decodes it, and belongs off the loop.

    Attributes:
        items: The commands, each with its output.
        dropped_commands: How many older ones are not kept any more.
        next_cursor: The number of the last, if others follow.
    """

    items: list[tuple[RanCommand, Sequence[ProcessOutput]]]
    dropped_commands: int
    next_cursor: int | None


class LastCommands:
    """The commands of a sandbox at its end, apart from their processes: no more than is written of them.

    Args:
        count: How many commands have started.
        kept: The last of them, each with its output, or a copy of the ends of output that had not ended.
        size_bytes: What it holds.
    """

    def __init__(
        self,
        count: int,
        kept: Sequence[tuple[RanCommand, Sequence[ProcessOutput] | CommandOutput]],
        size_bytes: int,
    ) -> None:
        self._count = count
        self._kept = kept
        self.size_bytes = size_bytes

    def without_output(self) -> LastCommands:
        """Returns the same commands without their output."""
        kept = [(about, ()) for about, _ in self._kept]
        return LastCommands(self._count, kept, sum(_Ran(about, None).size_bytes for about, _ in kept))

    def read(self) -> FoundCommands:
        """Returns them within the bounds of a living sandbox; it may run in another thread.

        Commands that ran until the end have no exit code.
        """
        items: list[tuple[RanCommand, Sequence[ProcessOutput]]] = []
        room = _MAX_BYTES

        for about, held in reversed(self._kept):
            output = held.excerpt(_END_BYTES) if isinstance(held, CommandOutput) else held
            room -= _Ran(about, None, output).size_bytes

            if room < 0 and items:
                break

            items.append((about, output))

        items.reverse()
        return FoundCommands(items=items, dropped_commands=self._count - len(items), next_cursor=None)


class CommandHistory:
    """The last commands of a sandbox; what is dropped is counted."""

    def __init__(self) -> None:
        self._all: deque[_Ran] = deque()
        self._dropped = 0
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What it holds, without the output of commands that run, which is bounded with them."""
        return self._size_bytes

    def begin(self, process: RunningCommand) -> None:
        """Notes a command that has started."""
        info = process.info
        about = RanCommand(
            number=self.count,
            pid=info.pid,
            command=command_line(info.argv)[:_MAX_COMMAND_CHARACTERS],
            cwd=info.cwd,
            is_terminal=info.is_pty,
            started_at=datetime.now(UTC),
        )
        ran = _Ran(about, process)
        self._all.append(ran)
        self._size_bytes += ran.size_bytes
        self._drop()

    def end(self, process: RunningCommand, exit_code: int) -> None:
        """Notes how a command has ended; one that is not known, or no longer, is left out."""
        # The latest commands are the likeliest to end.
        ran = next((ran for ran in reversed(self._all) if ran.process is process), None)

        if ran is None:
            return

        ended_at = datetime.now(UTC)
        ran.about = replace(ran.about, ended_at=ended_at, exit_code=exit_code, timed_out=process.timed_out)
        ran.process, ran.output = None, process.excerpt(_END_BYTES)
        self._size_bytes += _size(ran.output)
        self._drop()

    def find(self, request: ReadCommands) -> FoundCommands:
        """Returns the commands that a request asks for, in the order of their start, up to a bound of bytes."""
        after = -1 if request.after is None else request.after
        following = islice(self._all, max(0, after + 1 - self._dropped), None)
        items: list[tuple[RanCommand, Sequence[ProcessOutput]]] = []
        room = _PAGE_BYTES

        for ran in islice(following, request.limit):
            output = ran.output if ran.process is None else ran.process.excerpt(_END_BYTES)
            items.append((ran.about, output))
            room -= _ENTRY_BYTES + len(ran.about.command) + _size(output)

            if room <= 0:
                break

        last = items[-1][0].number if items else None
        is_more = last is not None and last < self.count - 1
        return FoundCommands(
            items=items, dropped_commands=self._dropped, next_cursor=last if is_more else None
        )

    @property
    def count(self) -> int:
        """How many commands have started, those included that are not kept any more."""
        return self._dropped + len(self._all)

    def take_last(self) -> LastCommands:
        """Takes all commands at the end of their sandbox, the latest first, up to the bound of bytes.

        Of output that has not ended only the ends are copied: about 2 ms for 256 commands on a busy machine.
        """
        kept: list[tuple[RanCommand, Sequence[ProcessOutput] | CommandOutput]] = []
        size_bytes = 0

        for ran in reversed(self._all):
            output = None if ran.process is None else ran.process.output
            ends = None if output is None else output.ends(_END_BYTES)
            item_bytes = ran.size_bytes + (0 if ends is None else ends.size_bytes)

            if size_bytes + item_bytes > _MAX_BYTES and kept:
                break

            kept.append((ran.about, ran.output if ends is None else ends))
            size_bytes += item_bytes

        kept.reverse()
        return LastCommands(self.count, kept, size_bytes)

    def _drop(self) -> None:
        while len(self._all) > 1 and (len(self._all) > _MAX_COMMANDS or self._size_bytes > _MAX_BYTES):
            self._size_bytes -= self._all.popleft().size_bytes
            self._dropped += 1


def text_page(found: FoundCommands) -> CommandPage:
    """Returns found commands with their output as text."""
    return CommandPage(
        items=tuple(replace(about, output=tuple(_pieces(output))) for about, output in found.items),
        dropped_commands=found.dropped_commands,
        next_cursor=found.next_cursor,
    )


def page_of(whole: CommandPage, request: ReadCommands) -> CommandPage:
    """Returns a page of the commands of a sandbox that has ended, up to the same bound of bytes."""
    after = -1 if request.after is None else request.after
    following = [ran for ran in whole.items if ran.number > after]
    items: list[RanCommand] = []
    room = _PAGE_BYTES

    for ran in following[: request.limit]:
        items.append(ran)
        room -= _ENTRY_BYTES + len(ran.command) + sum(_PIECE_BYTES + one.size_bytes for one in ran.output)

        if room <= 0:
            break

    is_more = len(items) < len(following)
    return CommandPage(
        items=tuple(items),
        dropped_commands=whole.dropped_commands,
        next_cursor=items[-1].number if items and is_more else None,
    )


def command_line(argv: tuple[str, ...]) -> str:
    """Return a command as its caller typed it: without the shell that runs a line."""
    return argv[-1] if argv[1:-1] == ("-l", "-c") else shlex.join(argv)


def _size(output: Sequence[ProcessOutput]) -> int:
    return sum(_PIECE_BYTES + len(piece.data) for piece in output)


def _pieces(output: Sequence[ProcessOutput]) -> Iterator[CommandPiece]:
    ends = {"stdout": 0, "stderr": 0}

    for piece in output:
        begin_bytes = ends[piece.stream] + piece.skipped_bytes
        ends[piece.stream] = begin_bytes + len(piece.data)
        text, invalid = _ESCAPED.subn("\ufffd", piece.data.decode("utf-8", "surrogateescape"))
        yield CommandPiece(
            stream="stderr" if piece.stream == "stderr" else "stdout",
            text=text,
            begin_bytes=begin_bytes,
            size_bytes=len(piece.data),
            data=piece.data if invalid else None,
        )
