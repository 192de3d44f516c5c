"""Terminals in a sandbox: `sandbox.pty`, asynchronous and synchronous.

Runs in the user's process and uses only the backend port. Output of a terminal is bytes of the guest, escape sequences
included: writing them to a real terminal gives the guest control of that terminal, which is the caller's decision.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from fumehood.api.commands import as_bytes, check_known, kill_process, process_call
from fumehood.api.handle import SandboxHandle
from fumehood.errors import InvalidArgumentError
from fumehood.tracebacks import PlainErrors
from fumehood.values.checks import check_envs, check_integer, check_pid
from fumehood.values.requests import ProcessExited, ProcessSpec, ResizePty, SendStdin
from fumehood.values.sandbox import PtySize

# An interactive login shell, as E2B starts it.
DEFAULT_SHELL = ("/bin/bash", "-i", "-l")
_ENVS = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


class AsyncPty(PlainErrors):
    """The terminals of a `Sandbox`."""

    def __init__(self, sandbox_handle: SandboxHandle) -> None:
        self._sandbox_handle = sandbox_handle

    async def create(
        self,
        command: Sequence[str] = DEFAULT_SHELL,
        *,
        cols: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncPtyHandle:
        """Start a shell, or another program, on a terminal.

        Args:
            command: Program and arguments; an interactive bash unless given.
            cols: Width in characters.
            rows: Height in characters.
            cwd: The folder to start in; /home/user unless given.
            envs: Environment variables in addition to those of the sandbox.
            timeout: Seconds after which it is killed; None means never.
        """
        if isinstance(command, (str, bytes)) or not isinstance(command, Sequence):
            raise InvalidArgumentError(
                field="command", value=command, allowed="a list: a program and its arguments"
            )

        check_envs({} if envs is None else envs)
        spec = ProcessSpec(
            argv=tuple(command),
            cwd=cwd,
            envs={**_ENVS, **(envs or {})},
            stdin=True,
            pty=PtySize(cols=cols, rows=rows),
            timeout_seconds=timeout,
        )
        process = await self._sandbox_handle.backend.start_process(self._sandbox_handle.id, spec)
        return AsyncPtyHandle(self._sandbox_handle, process.pid)

    async def connect(self, pid: int, *, after: int | None = None) -> AsyncPtyHandle:
        """Attach to a terminal. Several handles may be attached to one terminal; closing a handle does not end it.

        Args:
            pid: The pid, inside the sandbox, of the program on the terminal.
            after: The position, in bytes of all its output, at which to start: 0 for all kept output, which is the last
                256 KiB of the output that was read, or the `position` of an earlier handle to continue there. None
                means the output that no handle has read.

        Raises:
            ProcessNotFoundError: No command has this pid.
        """
        check_pid(pid)

        if after is not None:
            check_integer("after", after, low=0, high=1 << 53)

        await check_known(self._sandbox_handle, pid)
        return AsyncPtyHandle(self._sandbox_handle, pid, after=after)

    async def send(self, pid: int, data: str | bytes) -> None:
        """Type into a terminal; text is sent as UTF-8."""
        await process_call(self._sandbox_handle, SendStdin(pid=pid, data=as_bytes(data)))

    async def resize(self, pid: int, *, cols: int, rows: int) -> None:
        """Change the size of a terminal."""
        await process_call(self._sandbox_handle, ResizePty(pid=pid, size=PtySize(cols=cols, rows=rows)))

    async def kill(self, pid: int) -> bool:
        """Kill the program on a terminal; False if it had ended."""
        return await kill_process(self._sandbox_handle, pid)


class AsyncPtyHandle(PlainErrors):
    """A terminal of a `Sandbox`: iterate over it for its output, as bytes, until the end."""

    def __init__(self, sandbox_handle: SandboxHandle, pid: int, *, after: int | None = 0) -> None:
        self._pid = pid
        self._after = after
        self._position = after or 0
        self._exit_code: int | None = None
        self._sandbox_handle = sandbox_handle.bound()
        self._pieces = self._follow()

    @property
    def pid(self) -> int:
        """The pid, inside the sandbox, of the program on the terminal."""
        return self._pid

    @property
    def position(self) -> int:
        """The number of bytes of the terminal's output up to the last piece, if made or attached with `after`."""
        return self._position

    @property
    def exit_code(self) -> int | None:
        """The exit code of the program, once the iteration or `wait` has reached the end."""
        return self._exit_code

    def __aiter__(self) -> AsyncPtyHandle:
        return self

    async def __anext__(self) -> bytes:
        return await self._pieces.__anext__()

    async def wait(self) -> int:
        """Wait for the end of the program, discarding its remaining output, and return the exit code."""
        async for _ in self._pieces:
            pass

        return -1 if self._exit_code is None else self._exit_code

    async def send(self, data: str | bytes) -> None:
        """Type into the terminal; text is sent as UTF-8."""
        await process_call(self._sandbox_handle, SendStdin(pid=self.pid, data=as_bytes(data)))

    async def resize(self, *, cols: int, rows: int) -> None:
        """Change the size of the terminal."""
        await process_call(self._sandbox_handle, ResizePty(pid=self.pid, size=PtySize(cols=cols, rows=rows)))

    async def kill(self) -> bool:
        """Kill the program on the terminal; False if it had ended."""
        return await kill_process(self._sandbox_handle, self.pid)

    async def _follow(self) -> AsyncGenerator[bytes, None]:
        handle = self._sandbox_handle
        events = handle.backend.process_output(handle.id, self.pid, self._after)

        try:
            async for event in events:
                if isinstance(event, ProcessExited):
                    self._exit_code = event.exit_code
                else:
                    self._position += event.skipped_bytes + len(event.data)
                    yield event.data
        finally:
            await events.aclose()
