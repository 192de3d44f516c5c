"""One command or terminal of a sandbox: its descriptors, its input, and the readers of its output.

Output is read whether or not it is followed, so that a command never waits for its reader. A terminal is different: it
blocks while its output is not read. It asks init for nothing: starting, signals and resizing belong to the sandbox's
commands.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable
from functools import partial
from sys import getsizeof

from fumehood.bounds import MIB
from fumehood.cancellation import wait_shared
from fumehood.engine.channel import open_pipe
from fumehood.engine.clock import Timer
from fumehood.engine.command_output import CommandOutput, StreamName, TerminalOutput
from fumehood.engine.loop_share import LoopShare
from fumehood.errors import FumehoodError, ProcessNotFoundError
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.limits import Limits
from fumehood.values.requests import (
    ProcessEvent,
    ProcessExited,
    ProcessOutput,
    ProcessSpec,
)
from fumehood.values.sandbox import ProcessInfo

_READ_BYTES = 1 << 16
_MAX_DRAIN_BYTES = 1 * MIB


class LiveProcess:
    """One command.

    Args:
        spec: The command.
        limits: The bounds on its kept output.
        share: The sandbox's share of the loop.
        workdir: The folder in which it starts by default.
    """

    def __init__(self, spec: ProcessSpec, limits: Limits, share: LoopShare, workdir: str = HOME_PATH) -> None:
        self._share = share
        self.timed_out = False
        # The memory that it holds once it has ended.
        self.kept_bytes = 0
        self.timer: Timer | None = None
        self.kill_task: asyncio.Task[None] | None = None
        self.info = ProcessInfo(
            pid=0, argv=spec.argv, cwd=spec.cwd or workdir, envs=spec.envs, is_pty=spec.pty is not None
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
        """Whether neither the command nor its sandbox has ended."""
        return self._exited is None and self._lost is None

    def begin(self, pid: int) -> None:
        """Sets the pid, and begins reading."""
        self.info = ProcessInfo(
            pid=pid, argv=self.info.argv, cwd=self.info.cwd, envs=self.info.envs, is_pty=self.info.is_pty
        )

        for fd in self._read_ends:
            self._watch(fd)

    def end(self, exit_code: int) -> None:
        """Records the exit code of the command; readers get the remaining output first."""
        self._drain()
        self._output.end()
        self._exited = ProcessExited(
            exit_code=exit_code, timed_out=self.timed_out, truncated=self._output.truncated
        )
        self.kept_bytes = self._output.size_bytes + sum(map(getsizeof, self.info.argv))
        self._news.set()
        self.close()

    def excerpt(self, end_bytes: int) -> list[ProcessOutput]:
        """Returns the first and the last bytes of its output so far; of a terminal none: they would count as read.

        Args:
            end_bytes: How much of each end.
        """
        return self._output.excerpt(end_bytes) if isinstance(self._output, CommandOutput) else []

    @property
    def output(self) -> CommandOutput | None:
        """Its output so far; of a terminal none."""
        return self._output if isinstance(self._output, CommandOutput) else None

    def end_with(self, why: Callable[[], FumehoodError]) -> None:
        """Records the end of its sandbox: readers get the remaining output, and then this error."""
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

    async def follow(self, after_bytes: int | None = None) -> AsyncGenerator[ProcessEvent, None]:
        """Yields all output from the beginning (of a terminal: from a given byte) as it arrives, and then the exit."""
        pieces = self._output.pieces(after_bytes)

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
        """Writes to the command's standard input; returns when all bytes were accepted."""
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
        """Waits until the command's input accepts more bytes, or is closed."""
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
        """Closes the command's input, and wakes waiting writers."""
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
