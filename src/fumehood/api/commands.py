"""Commands in a sandbox: `sandbox.commands`, asynchronous and synchronous, and handles of running commands.

Runs in the user's process and uses only the backend port. A command is a process inside the guest, started without a
shell of the host; a line of text is run by the guest's bash.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Final, Literal, TypeAlias, overload

from fumehood.api.callbacks import AsyncTextCallback
from fumehood.api.handle import SandboxHandle
from fumehood.cancellation import cancel_and_wait
from fumehood.errors import (
    CommandError,
    CommandExitError,
    CommandTimeoutError,
    InvalidArgumentError,
    ProcessNotFoundError,
    SandboxError,
)
from fumehood.portal import check_callbacks, notify
from fumehood.tracebacks import PlainErrors
from fumehood.values.checks import check_bool, check_pid
from fumehood.values.execution import StreamName
from fumehood.values.requests import (
    CloseStdin,
    ListProcesses,
    ProcessCall,
    ProcessExited,
    ProcessSpec,
    SendStdin,
    SignalProcess,
)
from fumehood.values.sandbox import CommandResult, ProcessInfo
from fumehood.values.transcript import CommandText

ProcessInfos: TypeAlias = list[ProcessInfo]
_STREAMS: Final[tuple[StreamName, ...]] = ("stdout", "stderr")


class AsyncCommands(PlainErrors):
    """The commands of a `Sandbox`: processes inside it."""

    def __init__(self, sandbox_handle: SandboxHandle) -> None:
        self._sandbox_handle = sandbox_handle

    @overload
    async def run(
        self,
        command: str | Sequence[str],
        *,
        background: Literal[False] = False,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bool | str | bytes = False,
        on_stdout: AsyncTextCallback | None = None,
        on_stderr: AsyncTextCallback | None = None,
        timeout: float | None = None,
    ) -> CommandResult: ...
    @overload
    async def run(
        self,
        command: str | Sequence[str],
        *,
        background: Literal[True],
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bool | str | bytes = False,
        on_stdout: AsyncTextCallback | None = None,
        on_stderr: AsyncTextCallback | None = None,
        timeout: float | None = None,
    ) -> AsyncCommandHandle: ...
    async def run(
        self,
        command: str | Sequence[str],
        *,
        background: bool = False,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bool | str | bytes = False,
        on_stdout: AsyncTextCallback | None = None,
        on_stderr: AsyncTextCallback | None = None,
        timeout: float | None = None,
    ) -> CommandResult | AsyncCommandHandle:
        """Run a command and wait for its end, or start it in the background.

        Args:
            command: A line for bash, or a program and its arguments, which no shell touches.
            background: Whether to return a handle at once.
            cwd: The folder to start in; /home/user unless given.
            envs: Environment variables in addition to those of the sandbox.
            stdin: Text or bytes for its standard input; True to keep it open for `send_stdin`; False for an empty one.
            on_stdout: Called with each piece of output while this call or `handle.wait()` waits.
            on_stderr: The same as `on_stdout`, for standard error.
            timeout: Seconds after which it is killed; None means `limits.wall_seconds`, or no limit for a command in
                the background.

        Raises:
            CommandExitError: The command ended with an exit code other than 0.
            CommandTimeoutError: The command exceeded the `timeout` and was killed.
            CommandStartError: The program or the directory does not exist.
        """
        check_bool("background", background)
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr)

        if not isinstance(stdin, (bool, str, bytes)):
            raise InvalidArgumentError(field="stdin", value=stdin, allowed="text, bytes, True or False")

        if timeout is None and not background:
            timeout = self._sandbox_handle.info.limits.wall_seconds

        spec = ProcessSpec(
            argv=_argv(command),
            cwd=cwd,
            envs={} if envs is None else envs,
            stdin=stdin is not False,
            timeout_seconds=timeout,
        )
        process = await self._sandbox_handle.backend.start_process(self._sandbox_handle.id, spec)
        handle = AsyncCommandHandle(
            self._sandbox_handle,
            process.pid,
            command=command if isinstance(command, str) else shlex.join(command),
            timeout_seconds=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
        )

        if background:
            await handle._feed(stdin)
            return handle

        return await handle._feed_and_wait(stdin)

    async def list(self) -> ProcessInfos:
        """List the running commands."""
        return [*await process_call(self._sandbox_handle, ListProcesses())]

    async def connect(
        self,
        pid: int,
        *,
        on_stdout: AsyncTextCallback | None = None,
        on_stderr: AsyncTextCallback | None = None,
    ) -> AsyncCommandHandle:
        """Connect to a running command, or to one that ended less than 30 s ago.

        Raises:
            ProcessNotFoundError: No command has this pid.
        """
        check_pid(pid)
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr)
        await check_known(self._sandbox_handle, pid)
        return AsyncCommandHandle(
            self._sandbox_handle, pid, command=f"pid {pid}", on_stdout=on_stdout, on_stderr=on_stderr
        )

    async def kill(self, pid: int) -> bool:
        """Kill a command and everything that it started; False if it had ended."""
        return await kill_process(self._sandbox_handle, pid)

    async def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Write to a command's standard input, which `stdin=True` keeps open."""
        await process_call(self._sandbox_handle, SendStdin(pid=pid, data=as_bytes(data)))

    async def close_stdin(self, pid: int) -> None:
        """End a command's standard input."""
        await process_call(self._sandbox_handle, CloseStdin(pid=pid))


def _argv(command: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(command, str):
        # A login shell, as E2B starts it: the guest's profile sets PATH.
        return ("/bin/bash", "-l", "-c", command)

    if isinstance(command, Sequence) and not isinstance(command, (bytes, bytearray)):
        return tuple(command)

    raise InvalidArgumentError(field="command", value=command, allowed="a line of text, or a list of texts")


_STDIN_CHUNK_BYTES = 256 * 1024


class AsyncCommandHandle(PlainErrors):
    """A running command of a `Sandbox`, started in the background or connected to.

    Attributes:
        pid: Its pid inside the sandbox.
    """

    def __init__(
        self,
        sandbox_handle: SandboxHandle,
        pid: int,
        *,
        command: str,
        timeout_seconds: float | None = None,
        on_stdout: AsyncTextCallback | None = None,
        on_stderr: AsyncTextCallback | None = None,
    ) -> None:
        self._pid = pid
        self._sandbox_handle = sandbox_handle.bound()
        self._command = command
        self._timeout_seconds = timeout_seconds
        self._callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        self._end: tuple[CommandResult, ProcessExited] | None = None

    @property
    def pid(self) -> int:
        """The pid of the command inside the sandbox."""
        return self._pid

    async def wait(self) -> CommandResult:
        """Wait for the end of the command, and call the callbacks meanwhile; later calls return the same result.

        Raises:
            CommandExitError: The command ended with an exit code other than 0.
            CommandTimeoutError: The command exceeded its `timeout` and was killed.
        """
        if self._end is None:
            self._end = await self._follow()

        result, exited = self._end

        if exited.timed_out:
            raise CommandTimeoutError(
                command=self._command,
                timeout_seconds=self._timeout_seconds,
                stdout=result.stdout,
                stderr=result.stderr,
            )

        if result.exit_code != 0:
            raise CommandExitError(
                command=self._command,
                exit_code=result.exit_code,
                stdout=result.stdout,
                stderr=result.stderr,
                is_truncated=bool(result.truncated),
            )

        return result

    async def kill(self) -> bool:
        """Kill the command and everything that it started; False if it had ended."""
        return await kill_process(self._sandbox_handle, self.pid)

    async def send_stdin(self, data: str | bytes) -> None:
        """Write to the command's standard input, which `stdin=True` keeps open; return when all bytes were accepted."""
        await process_call(self._sandbox_handle, SendStdin(pid=self.pid, data=as_bytes(data)))

    async def close_stdin(self) -> None:
        """Close the command's standard input."""
        await process_call(self._sandbox_handle, CloseStdin(pid=self.pid))

    async def _feed(self, stdin: bool | str | bytes) -> None:
        """Write the whole standard input of the command and close it; does nothing when `stdin` is True or False."""
        if isinstance(stdin, bool):
            return

        content = as_bytes(stdin)

        try:
            for start in range(0, len(content), _STDIN_CHUNK_BYTES):
                await self.send_stdin(content[start : start + _STDIN_CHUNK_BYTES])

            await self.close_stdin()
        except ProcessNotFoundError:
            # It ended without reading everything, as `head` does.
            return

    async def _feed_and_wait(self, stdin: bool | str | bytes) -> CommandResult:
        """Write the command's input and wait for its end; kill the command if the caller is cancelled."""
        feeding = asyncio.create_task(self._feed(stdin))

        try:
            return await self.wait()
        except (CommandError, SandboxError):
            raise
        except BaseException:
            await self.kill()
            await self._until_gone()
            raise
        finally:
            await cancel_and_wait(feeding)

    async def _until_gone(self) -> None:
        async with aclosing(
            self._sandbox_handle.backend.process_output(self._sandbox_handle.id, self.pid)
        ) as events:
            async for _ in events:
                pass

    async def _follow(self) -> tuple[CommandResult, ProcessExited]:
        text = CommandText()
        exited = ProcessExited(exit_code=-1)

        async with aclosing(
            self._sandbox_handle.backend.process_output(self._sandbox_handle.id, self.pid)
        ) as events:
            async for event in events:
                if isinstance(event, ProcessExited):
                    exited = event
                elif event.stream != "pty":
                    await self._tell(event.stream, text.add(event))

        for stream in _STREAMS:
            await self._tell(stream, text.rest(stream))

        result = CommandResult(
            stdout=text.kept("stdout", exited.truncated.stdout_bytes),
            stderr=text.kept("stderr", exited.truncated.stderr_bytes),
            exit_code=exited.exit_code,
            truncated=exited.truncated,
        )
        return result, exited

    async def _tell(self, stream: StreamName, text: str) -> None:
        if text:
            await notify(self._callbacks[stream], text)


async def process_call(sandbox_handle: SandboxHandle, request: ProcessCall) -> tuple[ProcessInfo, ...]:
    """Send a request about the commands of a handle's sandbox."""
    return await sandbox_handle.backend.process_call(sandbox_handle.id, request)


async def check_known(sandbox_handle: SandboxHandle, pid: int) -> None:
    """Raise ProcessNotFoundError unless a command with this pid runs, or has ended recently."""
    if any(process.pid == pid for process in await process_call(sandbox_handle, ListProcesses())):
        return

    # The output of an ended one, or its end, comes at once.
    async with aclosing(sandbox_handle.backend.process_output(sandbox_handle.id, pid)) as events:
        await anext(events)


async def kill_process(sandbox_handle: SandboxHandle, pid: int) -> bool:
    """Kill a command and everything that it started; False if it had ended."""
    try:
        await process_call(sandbox_handle, SignalProcess(pid=pid, signal=signal.SIGKILL))
    except ProcessNotFoundError:
        return False

    return True


def as_bytes(data: str | bytes) -> bytes:
    """Return the data to write, text as UTF-8."""
    if isinstance(data, bytes):
        return data

    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")

    raise InvalidArgumentError(field="data", value=data, allowed="text or bytes")
