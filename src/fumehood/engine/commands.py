"""The commands and terminals of one sandbox: starting and ending them, and how long ended ones are kept.

The output of a command stays for later readers for a while after its end, within a bound on all ended commands
together; of a terminal, the unread output and the last of the read output are kept.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from fumehood.bounds import MIB
from fumehood.cancellation import complete_or_undo
from fumehood.engine.clock import Idleness, SandboxClock
from fumehood.engine.command_history import CommandHistory
from fumehood.engine.command_process import LiveProcess
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
    ProcessSpec,
    ResizePty,
    SendStdin,
    SignalProcess,
)
from fumehood.values.sandbox import ProcessInfo
from fumehood_wire.messages import MAX_ARGUMENTS_BYTES

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
        # Where a command starts that names no folder.
        self.workdir = HOME_PATH
        self._all: dict[int, LiveProcess] = {}
        self.history = CommandHistory()
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

    def assign(self, limits: Limits, envs: Mapping[str, str]) -> None:
        """Applies the limits and variables of its caller to commands that are started from now on."""
        self._limits = limits
        self._envs = dict(envs)

    def add_envs(self, envs: Mapping[str, str]) -> None:
        """Adds environment variables for commands started from now on."""
        self._envs.update(envs)

    async def start(self, spec: ProcessSpec, envs: Mapping[str, str] | None = None) -> ProcessInfo:
        """Starts a command; if the caller is cancelled, the command is killed once it has started.

        Args:
            spec: The command.
            envs: Its environment variables besides those of `spec`; None: the variables of the sandbox.
        """
        return await complete_or_undo(self._start(spec, envs), self._end_unwanted)

    async def _start(self, spec: ProcessSpec, given: Mapping[str, str] | None) -> ProcessInfo:
        envs = self._envs if given is None else given
        argv = "\0".join(spec.argv).encode()

        if len(argv) > MAX_ARGUMENTS_BYTES:
            raise CommandStartError(command=_named(spec), errno_value=errno.E2BIG)

        process = LiveProcess(spec, self._limits, self._share, self.workdir)
        arguments: dict[str, Any] = {"cwd": spec.cwd or self.workdir}
        arguments["envs"] = {**envs, **spec.envs}

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

        if not spec.is_own:
            self.history.begin(process)

        early = self._early_exits.pop(pid, None)

        if not self._starting:
            self._early_exits.clear()

        if early is not None:
            self.note_exit(pid, early)
            return process.info

        if spec.timeout_seconds is not None:
            process.timer = self._clock.call_later(spec.timeout_seconds, self._time_over, process)

        return process.info

    def output(self, pid: int, after_bytes: int | None = None) -> AsyncGenerator[ProcessEvent, None]:
        """Yields the output of a command from its beginning, or the output of a terminal from a given byte."""
        return self._follow(self._find(pid), after_bytes)

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
        self.history.end(process, exit_code)
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

    async def _follow(
        self, process: LiveProcess, after_bytes: int | None
    ) -> AsyncGenerator[ProcessEvent, None]:
        with self._idleness.during_call():
            async with aclosing(process.follow(after_bytes)) as events:
                async for event in events:
                    yield event

    async def _signal(self, process: LiveProcess, number: int) -> None:
        value, _ = await self._ask("signal_process", pid=process.info.pid, signal=number)

        if not value["found"]:
            raise ProcessNotFoundError(pid=process.info.pid)

    def _end_unwanted(self, started: ProcessInfo) -> None:
        process = self._all.get(started.pid)

        if process is not None and process.running:
            process.kill_task = asyncio.create_task(self._kill(process))

    def _time_over(self, process: LiveProcess) -> None:
        if process.running:
            process.timed_out = True
            process.kill_task = asyncio.create_task(self._kill(process))

    async def _kill(self, process: LiveProcess) -> None:
        try:
            await self._signal(process, _SIGKILL)
        except Exception:  # noqa: BLE001 - it has ended, or the sandbox has: either way it is not running any more
            return

    def _forget(self, pid: int, process: LiveProcess) -> None:
        if self._all.get(pid) is process:
            del self._all[pid]
            self._forgetting.pop(pid).cancel()
            self._ended_bytes -= process.kept_bytes

    def _find(self, pid: int) -> LiveProcess:
        process = self._all.get(pid)

        if process is None:
            raise ProcessNotFoundError(pid=pid)

        return process

    def _living(self, pid: int) -> LiveProcess:
        process = self._find(pid)

        if not process.running:
            raise ProcessNotFoundError(pid=pid)

        return process


def _named(spec: ProcessSpec) -> str:
    """Returns the command as the caller typed it (without the `sh -lc` wrapper), plus cwd, for error messages."""
    written = spec.argv[-1] if spec.argv[1:-1] == ("-l", "-c") else spec.argv[0]
    return f"{written} (in {spec.cwd})" if spec.cwd else written
