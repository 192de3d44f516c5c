"""The commands and terminals of one sandbox: their pipes, their kept output, and their readers.

Output is read whether or not it is followed, so that a command never waits for its reader; output beyond the limits is
counted and dropped. A terminal is different: it blocks while its output is not read. Of pipes all output is kept for
later readers, of a terminal only the unread part.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from sys import getsizeof
from typing import Any, Literal

from fumehood.bounds import MIB
from fumehood.cancellation import complete_or_undo, wait_shared
from fumehood.engine.channel import open_pipe
from fumehood.engine.clock import SandboxClock, Timer
from fumehood.engine.idleness import Idleness
from fumehood.engine.init_client import InitError
from fumehood.engine.loop_share import LoopShare
from fumehood.errors import CommandStartError, FumehoodError, ProcessNotFoundError
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.limits import Limits
from fumehood.values.requests import (
    CloseStdin,
    ListProcesses,
    ProcessCall,
    ProcessEvent,
    ProcessExited,
    ProcessOutput,
    ProcessSpec,
    ResizePty,
    SendStdin,
    SignalProcess,
)
from fumehood.values.sandbox import NOTHING_CUT, ProcessInfo, Truncation
from fumehood.values.transcript import head_bytes, rest_of_character
from fumehood_wire.messages import MAX_ARGUMENTS_BYTES

_READ_BYTES = 1 << 16
_MAX_DRAIN_BYTES = 1 * MIB
_KEPT_SECONDS = 30.0
# Lower bound on what the ended commands together may hold.
_ENDED_BYTES = 64 * MIB
_SIGKILL = 9

Ask = Callable[..., Awaitable[tuple[Any, bytes]]]


class LiveProcesses:
    """All commands of a sandbox that were started through the API.

    Args:
        ask: Sends requests to init.
        limits: The bounds on each command's kept output.
        envs: Environment variables of every command.
        clock: The sandbox's clock.
        idleness: The sandbox's idle tracker; a followed command counts as use.
        share: The sandbox's share of the loop; by default one of its own.
    """

    def __init__(
        self,
        ask: Ask,
        limits: Limits,
        envs: dict[str, str],
        clock: SandboxClock,
        idleness: Idleness,
        share: LoopShare | None = None,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._idleness = idleness
        self._share = share or LoopShare()
        self._limits = limits
        self._envs = dict(envs)
        self._all: dict[int, _Process] = {}
        # The timers that discard ended commands.
        self._forgetting: dict[int, asyncio.TimerHandle] = {}
        self._ended_bytes = 0
        # Exits reported before the reply to the start was handled.
        self._early_exits: dict[int, int] = {}
        self._starting = 0

    @property
    def running(self) -> tuple[ProcessInfo, ...]:
        """The running commands."""
        return tuple(process.info for process in self._all.values() if process.running)

    def add_envs(self, envs: Mapping[str, str]) -> None:
        """Adds environment variables for commands started from now on."""
        self._envs.update(envs)

    async def start(self, spec: ProcessSpec) -> ProcessInfo:
        """Starts a command; if the caller is cancelled, the command is killed once it has started."""
        return await complete_or_undo(self._start(spec), self._end_unwanted)

    async def _start(self, spec: ProcessSpec) -> ProcessInfo:
        argv = "\0".join(spec.argv).encode()

        if len(argv) > MAX_ARGUMENTS_BYTES:
            raise CommandStartError(command=_named(spec), errno_value=errno.E2BIG)

        process = _Process(spec, self._limits, self._share)
        arguments: dict[str, Any] = {"cwd": spec.cwd or HOME_PATH}
        arguments["envs"] = {**self._envs, **spec.envs}

        if spec.pty is not None:
            arguments["pty"] = {"cols": spec.pty.cols, "rows": spec.pty.rows}
            arguments["envs"].setdefault("TERM", "xterm-256color")

        self._starting += 1
        try:
            value, _ = await self._ask("start_process", argv, fds=process.guest_fds, **arguments)
        except InitError as error:
            process.close()
            raise CommandStartError(command=_named(spec), errno_value=error.errno_value) from None
        except BaseException:
            process.close()
            raise
        finally:
            self._starting -= 1
            process.close_guest_fds()

        pid = int(value["pid"])
        process.begin(pid)
        former = self._all.get(pid)

        if former is not None and not former.running:
            self._forget(pid, former)

        self._all[pid] = process
        early = self._early_exits.pop(pid, None)

        if not self._starting:
            self._early_exits.clear()

        if early is not None:
            self.note_exit(pid, early)
            return process.info

        if spec.timeout_seconds is not None:
            process.timer = self._clock.call_later(spec.timeout_seconds, self._time_over, process)

        return process.info

    def output(self, pid: int) -> AsyncGenerator[ProcessEvent, None]:
        """Yields the output of a command from its beginning."""
        return self._follow(self._find(pid))

    async def call(self, call: ProcessCall) -> tuple[ProcessInfo, ...]:
        """Lists commands, or feeds, signals or resizes one."""
        match call:
            case ListProcesses():
                return self.running
            case SendStdin():
                await self._living(call.pid).feed(call.data)
            case CloseStdin():
                self._living(call.pid).close_stdin()
            case SignalProcess():
                await self._signal(self._living(call.pid), call.signal)
            case ResizePty():
                self._living(call.pid)
                await self._ask("resize", pid=call.pid, cols=call.size.cols, rows=call.size.rows)

        return ()

    def note_exit(self, pid: int, exit_code: int) -> None:
        """Handles the exit of a command, which init has reaped."""
        process = self._all.get(pid)

        if process is None or not process.running:
            if self._starting:
                self._early_exits[pid] = exit_code

            return

        process.end(exit_code)
        loop = asyncio.get_running_loop()
        self._forgetting[pid] = loop.call_later(_KEPT_SECONDS, self._forget, pid, process)
        self._ended_bytes += process.kept_bytes
        # As much as running commands may hold at the same time.
        most = self._limits.processes * (self._limits.stdout_bytes + self._limits.stderr_bytes)

        while self._ended_bytes > max(most, _ENDED_BYTES) and len(self._forgetting) > 1:
            oldest = next(iter(self._forgetting))
            self._forget(oldest, self._all[oldest])

    def close(self, why: Callable[[], FumehoodError]) -> None:
        """Ends all commands with the sandbox; readers get the error that `why` returns."""
        for process in self._all.values():
            if process.running:
                process.end_with(why)

        self._all.clear()

        # A pending timer would keep the whole sandbox in memory.
        for timer in self._forgetting.values():
            timer.cancel()

        self._forgetting.clear()

    async def _follow(self, process: _Process) -> AsyncGenerator[ProcessEvent, None]:
        with self._idleness.during_call():
            async with aclosing(process.follow()) as events:
                async for event in events:
                    yield event

    async def _signal(self, process: _Process, number: int) -> None:
        value, _ = await self._ask("signal_process", pid=process.info.pid, signal=number)

        if not value["found"]:
            raise ProcessNotFoundError(pid=process.info.pid)

    def _end_unwanted(self, started: ProcessInfo) -> None:
        process = self._all.get(started.pid)

        if process is not None and process.running:
            process.kill_task = asyncio.create_task(self._kill(process))

    def _time_over(self, process: _Process) -> None:
        if process.running:
            process.timed_out = True
            process.kill_task = asyncio.create_task(self._kill(process))

    async def _kill(self, process: _Process) -> None:
        try:
            await self._signal(process, _SIGKILL)
        except Exception:  # noqa: BLE001 - it has ended, or the sandbox has: either way it is not running any more
            return

    def _forget(self, pid: int, process: _Process) -> None:
        if self._all.get(pid) is process:
            del self._all[pid]
            self._forgetting.pop(pid).cancel()
            self._ended_bytes -= process.kept_bytes

    def _find(self, pid: int) -> _Process:
        process = self._all.get(pid)

        if process is None:
            raise ProcessNotFoundError(pid=pid)

        return process

    def _living(self, pid: int) -> _Process:
        process = self._find(pid)

        if not process.running:
            raise ProcessNotFoundError(pid=pid)

        return process


class _Process:
    """One command."""

    def __init__(self, spec: ProcessSpec, limits: Limits, share: LoopShare) -> None:
        self._share = share
        self.timed_out = False
        # The memory that it holds once it has ended.
        self.kept_bytes = 0
        self.timer: Timer | None = None
        self.kill_task: asyncio.Task[None] | None = None
        self.info = ProcessInfo(
            pid=0, argv=spec.argv, cwd=spec.cwd or HOME_PATH, envs=spec.envs, is_pty=spec.pty is not None
        )
        self._loop = asyncio.get_running_loop()
        self._output: CommandOutput | TerminalOutput
        self._output = CommandOutput(limits) if spec.pty is None else TerminalOutput()
        self._news = asyncio.Event()
        self._read_ends: dict[int, StreamName] = {}
        self._exited: ProcessExited | None = None
        self._lost: Callable[[], FumehoodError] | None = None
        self._stdin_fd: int | None = None
        self._terminal: socket.socket | None = None
        self._blocked: asyncio.Future[None] | None = None
        # Whether a terminal is blocked until some of its output is read.
        self._stands_still = False
        self.guest_fds: tuple[int, ...] = ()
        try:
            if spec.pty is not None:
                self._make_terminal()
            else:
                self._make_pipes(spec.stdin)
        except OSError:
            self.close()
            self.close_guest_fds()
            raise

    @property
    def running(self) -> bool:
        return self._exited is None and self._lost is None

    def begin(self, pid: int) -> None:
        """Sets the pid, and begins reading."""
        self.info = ProcessInfo(
            pid=pid, argv=self.info.argv, cwd=self.info.cwd, envs=self.info.envs, is_pty=self.info.is_pty
        )

        for fd in self._read_ends:
            self._watch(fd)

    def end(self, exit_code: int) -> None:
        """Ends it with an exit code, after the remaining output."""
        self._drain()
        self._output.end()
        self._exited = ProcessExited(
            exit_code=exit_code, timed_out=self.timed_out, truncated=self._output.truncated
        )
        self.kept_bytes = self._output.size_bytes + sum(map(getsizeof, self.info.argv))
        self._news.set()
        self.close()

    def end_with(self, why: Callable[[], FumehoodError]) -> None:
        """Ends it with its sandbox: readers get the remaining output, and then this error."""
        self._drain()
        self._output.end()
        self._lost = why
        self._news.set()
        self.close()

    def _drain(self) -> None:
        for fd in list(self._read_ends):
            room = _MAX_DRAIN_BYTES

            while fd in self._read_ends and room > 0 and self._readable(fd):
                room -= _READ_BYTES

        if self.timer is not None:
            self.timer.cancel()

    async def follow(self) -> AsyncGenerator[ProcessEvent, None]:
        """Yields all output from the beginning, as it arrives, and then the exit."""
        pieces = self._output.pieces()

        while True:
            for piece in pieces:
                self._go_on()

                if piece is None:
                    break

                yield piece

            if self._exited is not None:
                yield self._exited
                return

            if self._lost is not None:
                raise self._lost()

            self._news.clear()
            await self._news.wait()

    async def feed(self, data: bytes) -> None:
        """Writes to its input; returns when all of it was accepted."""
        if self._input_fd is None:
            raise ProcessNotFoundError(pid=self.info.pid)

        view = memoryview(data)

        while view and self._input_fd is not None:
            try:
                view = view[os.write(self._input_fd, view) :]
            except BlockingIOError:
                await self._writable(self._input_fd)
            except (BrokenPipeError, ConnectionResetError):
                self.close_stdin()
                break

        if view and self._lost is not None:
            raise self._lost()

    @property
    def _input_fd(self) -> int | None:
        return self._stdin_fd if self._terminal is None else self._terminal.fileno()

    async def _writable(self, fd: int) -> None:
        """Waits until its input accepts more, or is closed."""
        if self._blocked is None:
            self._blocked = self._loop.create_future()
            self._loop.add_writer(fd, self._unblock, fd)

        # Shared by several waiters, of which one may be cancelled.
        await wait_shared(self._blocked)

    def _unblock(self, fd: int) -> None:
        blocked, self._blocked = self._blocked, None

        if blocked is not None:
            self._loop.remove_writer(fd)
            blocked.set_result(None)

    def close_stdin(self) -> None:
        """Closes its input, and wakes pending writers."""
        if self._stdin_fd is not None:
            self._unblock(self._stdin_fd)
            os.close(self._stdin_fd)
            self._stdin_fd = None

    def close_guest_fds(self) -> None:
        """Closes the host's copies of the guest's descriptors."""
        for fd in self.guest_fds:
            os.close(fd)

        self.guest_fds = ()

    def close(self) -> None:
        """Closes all descriptors."""
        self.close_stdin()

        for fd in list(self._read_ends):
            self._end_of(fd)

        if self._terminal is not None:
            self._unblock(self._terminal.fileno())
            self._terminal.close()
            self._terminal = None

    def _make_pipes(self, has_stdin: bool) -> None:
        stdin_read, stdin_write = open_pipe()
        os.set_blocking(stdin_write, False)
        self._stdin_fd = stdin_write
        self.guest_fds += (stdin_read,)

        if not has_stdin:
            self.close_stdin()

        for stream in ("stdout", "stderr"):
            read_end, write_end = open_pipe()
            os.set_blocking(read_end, False)
            self._read_ends[read_end] = stream
            self.guest_fds += (write_end,)

    def _make_terminal(self) -> None:
        self._terminal, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._terminal.setblocking(False)
        self._read_ends[self._terminal.fileno()] = "pty"
        self.guest_fds = (guest_end.detach(),)

    def _watch(self, fd: int) -> None:
        self._share.add_reader(fd, partial(self._read_once, fd))

    def _read_once(self, fd: int) -> bool:
        """Reads once per turn; the loop reports whether there is more."""
        self._readable(fd)
        return False

    def _readable(self, fd: int) -> bool:
        """Reads once; returns False when there is nothing to read now, or at the end."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""

        if not data:
            self._end_of(fd)
            return False

        self._keep(self._read_ends[fd], data)
        return True

    def _keep(self, stream: StreamName, data: bytes) -> None:
        if self._output.add(stream, data):
            self._news.set()

        if self._output.is_full and self._terminal is not None:
            self._stands_still = True
            self._share.remove_reader(self._terminal.fileno())

    def _go_on(self) -> None:
        """Continues a blocked terminal once enough of its output was read."""
        if self._stands_still and not self._output.is_full and self._terminal is not None and self.running:
            self._stands_still = False
            self._watch(self._terminal.fileno())

    def _end_of(self, fd: int) -> None:
        self._share.remove_reader(fd)
        stream = self._read_ends.pop(fd, None)

        if stream is not None and stream != "pty":
            os.close(fd)


def _named(spec: ProcessSpec) -> str:
    """Returns the command as the caller typed it (without the `sh -lc` wrapper), plus cwd, for error messages."""
    written = spec.argv[-1] if spec.argv[1:-1] == ("-l", "-c") else spec.argv[0]
    return f"{written} (in {spec.cwd})" if spec.cwd else written


StreamName = Literal["stdout", "stderr", "pty"]

# The largest chunk for a reader that starts late.
_PIECE_BYTES = 1 << 16
# How many switches between the two streams are recorded; beyond that only the order within each is kept.
_MAX_RUNS = 20_000
_MAX_UNSEEN_BYTES = 1 * MIB


class CommandOutput:
    """The output of a command's two pipes: as much as the limits allow, and the end of what exceeded them.

    Args:
        limits: The bounds on each.
    """

    is_full = False

    def __init__(self, limits: Limits) -> None:
        self._room = {"stdout": limits.stdout_bytes, "stderr": limits.stderr_bytes}
        self._dropped = {"stdout": 0, "stderr": 0}
        self._tail_room = {name: room - head_bytes(room) for name, room in self._room.items()}
        self._tails: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._kept: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._has_ended = False
        # The order of the two: each run is a stream, and the offset in it at which the run ends.
        self._runs: list[tuple[StreamName, int]] = []

    @property
    def truncated(self) -> Truncation:
        """The size of the dropped output."""
        return Truncation(stdout_bytes=self._dropped["stdout"], stderr_bytes=self._dropped["stderr"])

    @property
    def size_bytes(self) -> int:
        """The size of the kept output."""
        return sum(map(len, (*self._kept.values(), *self._tails.values())))

    def add(self, stream: StreamName, data: bytes) -> bool:
        """Keeps as much as fits, and the end of the rest; returns False if there is nothing for readers yet."""
        kept = data[: self._room[stream]]
        self._room[stream] -= len(kept)
        self._dropped[stream] += len(data) - len(kept)

        if len(kept) < len(data):
            tail = self._tails[stream]
            tail += data[len(kept) :]
            del tail[: max(0, len(tail) - self._tail_room[stream])]

        if not kept:
            return False

        self._kept[stream] += kept
        run = stream, len(self._kept[stream])

        if self._runs and self._runs[-1][0] == stream:
            self._runs[-1] = run
        elif len(self._runs) < _MAX_RUNS:
            self._runs.append(run)

        return True

    def end(self) -> None:
        """Lets readers have the end of what exceeded the limits; nothing is added later."""
        self._has_ended = True

        for stream, tail in self._tails.items():
            if len(tail) < self._dropped[stream]:
                del tail[: rest_of_character(tail)]

    def pieces(self) -> Iterator[ProcessOutput | None]:
        """Yields all output from the beginning, and None whenever there is no more yet."""
        yield from self._heads()

        for stream, tail in self._tails.items():
            skipped_bytes = self._dropped[stream] - len(tail)

            for begin in range(0, max(len(tail), min(skipped_bytes, 1)), _PIECE_BYTES):
                data = bytes(tail[begin : begin + _PIECE_BYTES])
                yield ProcessOutput(stream=stream, data=data, skipped_bytes=0 if begin else skipped_bytes)

        while True:
            yield None

    def _heads(self) -> Iterator[ProcessOutput | None]:
        taken: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        number = 0

        while True:
            # The last run may still grow.
            while number < len(self._runs) - 1 and taken[self._runs[number][0]] >= self._runs[number][1]:
                number += 1

            piece = self._piece(number, taken)

            if piece is None and self._has_ended:
                return

            yield piece

            if piece is not None:
                taken[piece.stream] += len(piece.data)

    def _piece(self, number: int, taken: dict[StreamName, int]) -> ProcessOutput | None:
        for stream, end in self._ahead(number):
            begin = taken[stream]

            if begin < end:
                data = self._kept[stream][begin : min(end, begin + _PIECE_BYTES)]
                return ProcessOutput(stream=stream, data=bytes(data))

        return None

    def _ahead(self, number: int) -> Iterator[tuple[StreamName, int]]:
        yield from self._runs[number : number + 1]

        if number == _MAX_RUNS - 1:
            yield from ((stream, len(kept)) for stream, kept in self._kept.items())


class TerminalOutput:
    """The unread output of a terminal; output that was read is not kept, since it has no bound."""

    truncated = NOTHING_CUT

    def __init__(self) -> None:
        self._unseen = bytearray()
        # The number of bytes read before.
        self._seen_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the terminal should block until some of its output is read."""
        return len(self._unseen) >= _MAX_UNSEEN_BYTES

    @property
    def size_bytes(self) -> int:
        """The size of the unread output."""
        return len(self._unseen)

    def end(self) -> None:
        """Does nothing: of a terminal nothing is held back."""

    def add(self, _stream: StreamName, data: bytes) -> bool:
        """Keeps all of it."""
        self._unseen += data
        return True

    def pieces(self) -> Iterator[ProcessOutput | None]:
        """Yields the unread output, and None whenever there is no more yet.

        A chunk counts as read when the next one is requested.
        """
        position = 0

        while True:
            # Another reader may have read more.
            position = max(position, self._seen_bytes)
            begin = position - self._seen_bytes
            data = bytes(self._unseen[begin : begin + _PIECE_BYTES])

            if not data:
                yield None
                continue

            yield ProcessOutput(stream="pty", data=data)
            position += len(data)
            self._note_seen(position)

    def _note_seen(self, position: int) -> None:
        if position > self._seen_bytes:
            del self._unseen[: position - self._seen_bytes]
            self._seen_bytes = position
