"""A running command, as the user holds it: follow it, feed it, kill it.

Runs in the host process and speaks only the backend port. Output is bytes of the guest, decoded as UTF-8
with what is broken replaced, and kept up to the limits. A command that nobody holds runs on.
"""

from __future__ import annotations

import asyncio
import codecs
import signal
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

from fumehood.backends.requests import (
    CloseStdin,
    ListProcesses,
    ProcessCall,
    ProcessExited,
    SendStdin,
    SignalProcess,
)
from fumehood.errors import (
    CommandError,
    CommandExitError,
    CommandTimeoutError,
    InvalidArgumentError,
    ProcessNotFoundError,
    SandboxError,
)
from fumehood.facade.callbacks import notify
from fumehood.facade.lease import Lease
from fumehood.facade.portal import Turn, call
from fumehood.models import CommandResult, ProcessInfo

TextCallback: TypeAlias = Callable[[str], object]
AsyncTextCallback: TypeAlias = Callable[[str], Awaitable[object] | object]

_STDIN_CHUNK_BYTES = 256 * 1024


class AsyncCommandHandle:
    """A running command of an `AsyncSandbox`; described at `CommandHandle`."""

    def __init__(
        self,
        lease: Lease,
        pid: int,
        *,
        command: str,
        timeout_seconds: float | None = None,
        on_stdout: AsyncTextCallback | None = None,
        on_stderr: AsyncTextCallback | None = None,
    ) -> None:
        self.pid = pid
        self._lease = lease
        self._command = command
        self._timeout_seconds = timeout_seconds
        self._callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        self._end: tuple[CommandResult, ProcessExited] | None = None

    async def wait(self) -> CommandResult:
        """Wait for the end."""
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
        """Kill the command and everything that it started."""
        return await kill_process(self._lease, self.pid)

    async def send_stdin(self, data: str | bytes) -> None:
        """Write to its standard input."""
        await process_call(self._lease, SendStdin(pid=self.pid, data=as_bytes(data)))

    async def close_stdin(self) -> None:
        """End its standard input."""
        await process_call(self._lease, CloseStdin(pid=self.pid))

    async def feed(self, stdin: bool | str | bytes) -> None:
        """Give it all of its standard input and close that; nothing when `stdin` is True or False."""
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

    async def feed_and_wait(self, stdin: bool | str | bytes) -> CommandResult:
        """Feed it and wait for its end; it is killed when the caller gives up."""
        feeding = asyncio.create_task(self.feed(stdin))

        try:
            return await self.wait()
        except (CommandError, SandboxError):
            raise
        except BaseException:
            await self.kill()
            await self._until_gone()
            raise
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _until_gone(self) -> None:
        async with aclosing(self._lease.backend.process_output(self._lease.id, self.pid)) as events:
            async for _ in events:
                pass

    async def _follow(self) -> tuple[CommandResult, ProcessExited]:
        texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in texts}
        exited = ProcessExited(exit_code=-1)

        async with aclosing(self._lease.backend.process_output(self._lease.id, self.pid)) as events:
            async for event in events:
                if isinstance(event, ProcessExited):
                    exited = event
                elif event.stream in texts:
                    await self._take(event.stream, decoders[event.stream].decode(event.data), texts)

        for name, decoder in decoders.items():
            await self._take(name, decoder.decode(b"", final=True), texts)

        result = CommandResult(
            stdout="".join(texts["stdout"]),
            stderr="".join(texts["stderr"]),
            exit_code=exited.exit_code,
            truncated=exited.truncated,
        )
        return result, exited

    async def _take(self, name: str, text: str, texts: dict[str, list[str]]) -> None:
        if not text:
            return

        texts[name].append(text)
        await notify(self._callbacks[name], text)


class CommandHandle:
    """A running command of a `Sandbox`, started in the background or connected to.

    Attributes:
        pid: Its number inside the sandbox.
    """

    def __init__(self, twin: AsyncCommandHandle, turn: Turn) -> None:
        self._twin = twin
        self._turn = turn

    @property
    def pid(self) -> int:
        """Its number inside the sandbox."""
        return self._twin.pid

    def wait(self) -> CommandResult:
        """Wait for the end, calling the callbacks meanwhile; later calls give the same answer.

        Raises:
            CommandExitError: It ended with a code other than 0.
            CommandTimeoutError: Its time was over.
        """
        return self._turn.call(self._twin.wait)

    def kill(self) -> bool:
        """Kill the command and everything that it started; False if it had ended."""
        return call(self._twin.kill)

    def send_stdin(self, data: str | bytes) -> None:
        """Write to its standard input, which `stdin=True` keeps open; returns when it was taken."""
        call(self._twin.send_stdin, data)

    def close_stdin(self) -> None:
        """End its standard input."""
        call(self._twin.close_stdin)


async def process_call(lease: Lease, request: ProcessCall) -> tuple[ProcessInfo, ...]:
    """Ask about the commands of a lease's sandbox."""
    return await lease.backend.process_call(lease.id, request)


async def check_known(lease: Lease, pid: int) -> None:
    """Raise ProcessNotFoundError unless a command with this pid runs, or has ended lately."""
    if any(process.pid == pid for process in await process_call(lease, ListProcesses())):
        return

    # What one that has ended wrote, or its end, comes at once.
    async with aclosing(lease.backend.process_output(lease.id, pid)) as events:
        await anext(events)


async def kill_process(lease: Lease, pid: int) -> bool:
    """Kill a command and everything that it started; False if it had ended."""
    try:
        await process_call(lease, SignalProcess(pid=pid, signal=signal.SIGKILL))
    except ProcessNotFoundError:
        return False

    return True


def as_bytes(data: str | bytes) -> bytes:
    """Return what is to be written, text as UTF-8."""
    if isinstance(data, bytes):
        return data

    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")

    raise InvalidArgumentError(field="data", value=data, allowed="text or bytes")
