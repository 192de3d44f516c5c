"""Commands in a sandbox, as the user holds them: `sandbox.commands`, asynchronous and synchronous.

Runs in the host process and speaks only the backend port. A command is a process inside the guest, started
without a shell of the host; a line of text is given to the guest's bash.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, overload

from fumehood.backends.checks import check_bool, check_pid
from fumehood.backends.requests import CloseStdin, ListProcesses, ProcessSpec, SendStdin
from fumehood.errors import InvalidArgumentError
from fumehood.facade.callbacks import check_callbacks
from fumehood.facade.command_handle import (
    AsyncCommandHandle,
    AsyncTextCallback,
    CommandHandle,
    TextCallback,
    as_bytes,
    check_known,
    kill_process,
    process_call,
)
from fumehood.facade.lease import Lease
from fumehood.facade.portal import Turn, call
from fumehood.models import CommandResult, ProcessInfo

ProcessInfos: TypeAlias = list[ProcessInfo]


class AsyncCommands:
    """The commands of an `AsyncSandbox`; the verbs are described at `Commands`."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

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
        """Run a command."""
        check_bool("background", background)
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr)

        if not isinstance(stdin, (bool, str, bytes)):
            raise InvalidArgumentError(field="stdin", value=stdin, allowed="text, bytes, True or False")

        if timeout is None and not background:
            timeout = self._lease.info.limits.wall_seconds

        spec = ProcessSpec(
            argv=_argv(command),
            cwd=cwd,
            envs={} if envs is None else envs,
            stdin=stdin is not False,
            timeout_seconds=timeout,
        )
        process = await self._lease.backend.start_process(self._lease.id, spec)
        handle = AsyncCommandHandle(
            self._lease,
            process.pid,
            command=command if isinstance(command, str) else shlex.join(command),
            timeout_seconds=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
        )

        if background:
            await handle.feed(stdin)
            return handle

        return await handle.feed_and_wait(stdin)

    async def list(self) -> ProcessInfos:
        """List the running commands."""
        return [*await process_call(self._lease, ListProcesses())]

    async def connect(
        self,
        pid: int,
        *,
        on_stdout: AsyncTextCallback | None = None,
        on_stderr: AsyncTextCallback | None = None,
    ) -> AsyncCommandHandle:
        """Take hold of a running command."""
        check_pid(pid)
        check_callbacks(on_stdout=on_stdout, on_stderr=on_stderr)
        await check_known(self._lease, pid)
        return AsyncCommandHandle(
            self._lease, pid, command=f"pid {pid}", on_stdout=on_stdout, on_stderr=on_stderr
        )

    async def kill(self, pid: int) -> bool:
        """Kill a command."""
        return await kill_process(self._lease, pid)

    async def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Write to a command's standard input."""
        await process_call(self._lease, SendStdin(pid=pid, data=as_bytes(data)))

    async def close_stdin(self, pid: int) -> None:
        """End a command's standard input."""
        await process_call(self._lease, CloseStdin(pid=pid))


class Commands:
    """The commands of a `Sandbox`: processes inside it."""

    def __init__(self, twin: AsyncCommands) -> None:
        self._twin = twin

    @overload
    def run(
        self,
        command: str | Sequence[str],
        *,
        background: Literal[False] = False,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bool | str | bytes = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        timeout: float | None = None,
    ) -> CommandResult: ...
    @overload
    def run(
        self,
        command: str | Sequence[str],
        *,
        background: Literal[True],
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bool | str | bytes = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        timeout: float | None = None,
    ) -> CommandHandle: ...
    def run(
        self,
        command: str | Sequence[str],
        *,
        background: bool = False,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bool | str | bytes = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        timeout: float | None = None,
    ) -> CommandResult | CommandHandle:
        """Run a command and wait for its end, or start it in the background.

        Args:
            command: A line for bash, or a program and its arguments, which no shell touches.
            background: Return a handle at once.
            cwd: Where; /home/user unless given.
            envs: Added to the sandbox's environment.
            stdin: Text or bytes to feed it; True to keep its input open for `send_stdin`; False for none.
            on_stdout: Called with each piece of output, in this thread, while this call or `handle.wait()`
                waits.
            on_stderr: The same for standard error.
            timeout: Seconds after which it is killed; None means `limits.wall_seconds`, in the background
                no end.

        Raises:
            CommandExitError: It ended with a code other than 0.
            CommandTimeoutError: Its time was over.
            CommandStartError: There is no such program or directory.
        """
        check_bool("background", background)
        turn = Turn()
        out, err = turn.relay(on_stdout, "on_stdout"), turn.relay(on_stderr, "on_stderr")

        if not background:
            return turn.call(
                self._twin.run,
                command,
                background=False,
                cwd=cwd,
                envs=envs,
                stdin=stdin,
                on_stdout=out,
                on_stderr=err,
                timeout=timeout,
            )

        handle = turn.call(
            self._twin.run,
            command,
            background=True,
            cwd=cwd,
            envs=envs,
            stdin=stdin,
            on_stdout=out,
            on_stderr=err,
            timeout=timeout,
        )
        return CommandHandle(handle, turn)

    def list(self) -> ProcessInfos:
        """List the running commands."""
        return call(self._twin.list)

    def connect(
        self,
        pid: int,
        *,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
    ) -> CommandHandle:
        """Take hold of a running command, or of one that ended less than 30 s ago.

        Raises:
            ProcessNotFoundError: No command has this pid.
        """
        turn = Turn()
        out, err = turn.relay(on_stdout, "on_stdout"), turn.relay(on_stderr, "on_stderr")
        return CommandHandle(call(self._twin.connect, pid, on_stdout=out, on_stderr=err), turn)

    def kill(self, pid: int) -> bool:
        """Kill a command and everything that it started; False if it had ended."""
        return call(self._twin.kill, pid)

    def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Write to a command's standard input, which `stdin=True` keeps open."""
        call(self._twin.send_stdin, pid, data)

    def close_stdin(self, pid: int) -> None:
        """End a command's standard input."""
        call(self._twin.close_stdin, pid)


def _argv(command: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(command, str):
        # A login shell, as E2B starts it: the guest's profile sets PATH.
        return ("/bin/bash", "-l", "-c", command)

    if isinstance(command, Sequence) and not isinstance(command, (bytes, bytearray)):
        return tuple(command)

    raise InvalidArgumentError(field="command", value=command, allowed="a line of text, or a list of texts")
