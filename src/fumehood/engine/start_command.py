"""Starts the command of a template in a sandbox, and waits until it is ready.

Runs in the host process, before the sandbox is handed out: with the variables of its template, and without its caller's
variables and network. The output of the command and the answers of its servers are hostile: only a few bytes of them
are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from fumehood.cancellation import cancel_and_wait
from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import FileError, PortClosedError, SandboxStartError
from fumehood.text import visible_line
from fumehood.values.requests import ProcessEvent, ProcessExited, ProcessOutput, ProcessSpec, StatFile
from fumehood.values.start_command import ReadyCheck, StartCommand

_SHELL = ("/bin/bash", "-l", "-c")
_KEPT_BYTES = 2000
_SHORTEST_SECONDS = 0.01
_LONGEST_SECONDS = 0.5
# How much of an answer to a request is read: the status line is enough.
_STATUS_BYTES = 12
_ANSWER_SECONDS = 10.0


async def start_and_wait(sandbox: LiveSandbox, start: StartCommand, envs: Mapping[str, str]) -> None:
    """Starts a template's command, and returns when it is ready.

    Args:
        sandbox: A sandbox that no caller has yet.
        start: The command.
        envs: All variables of the command.

    Raises:
        SandboxStartError: The command ended with an error before it was ready, or was not ready in time.
        CommandStartError: The command could not be started.
    """
    started = await sandbox.processes.start(ProcessSpec(argv=(*_SHELL, start.command), is_own=True), envs)
    check = start.check()

    if check is None:
        return

    output = _LastOutput()
    following = asyncio.create_task(output.follow(sandbox.processes.output(started.pid)))
    try:
        async with asyncio.timeout(start.ready_seconds):
            await _wait(sandbox, check, envs, output)
    except TimeoutError:
        late = f"did not hold within {start.ready_seconds:g} s"
        raise _failed(start, f"{start.ready} {late}", output, f"its ready check {late}") from None
    finally:
        await cancel_and_wait(following)

    if output.exit_code:
        reason = f"it ended with {output.exit_code}"
        raise _failed(start, reason, output, reason)


async def _wait(
    sandbox: LiveSandbox, check: ReadyCheck, envs: Mapping[str, str], output: _LastOutput
) -> None:
    """Returns when the readiness check succeeds or the command has failed."""
    pause_seconds = _SHORTEST_SECONDS

    while not output.exit_code and not await _holds(sandbox, check, envs):
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(1.5 * pause_seconds, _LONGEST_SECONDS)


async def _holds(sandbox: LiveSandbox, check: ReadyCheck, envs: Mapping[str, str]) -> bool:
    try:
        if check.kind == "command":
            return await _succeeds(sandbox, check.text, envs)

        if check.kind == "file":
            await sandbox.files.call(StatFile(path=check.text))
            return True

        async with await sandbox.ports.open(check.port) as stream:
            if check.kind == "port":
                return True

            request = (
                f"GET {check.text} HTTP/1.1\r\nHost: localhost:{check.port}\r\nConnection: close\r\n\r\n"
            )
            await stream.write(request.encode())
            answer = b""

            async with asyncio.timeout(_ANSWER_SECONDS):
                while len(answer) < _STATUS_BYTES and (data := await stream.read()):
                    answer = (answer + data)[:_STATUS_BYTES]

            return answer.startswith(b"HTTP/1.") and answer[8:10] == b" 2" and answer[10:12].isdigit()
    except (FileError, PortClosedError, BrokenPipeError, TimeoutError):
        return False


async def _succeeds(sandbox: LiveSandbox, command: str, envs: Mapping[str, str]) -> bool:
    started = await sandbox.processes.start(ProcessSpec(argv=(*_SHELL, command), is_own=True), envs)

    async with aclosing(sandbox.processes.output(started.pid)) as events:
        async for event in events:
            if isinstance(event, ProcessExited):
                return event.exit_code == 0

    return False


class _LastOutput:
    """Follows a command, and keeps the end of its output and its exit code."""

    def __init__(self) -> None:
        self.words = b""
        self.exit_code: int | None = None

    async def follow(self, events: AsyncGenerator[ProcessEvent, None]) -> None:
        """Reads output until the command ends."""
        async with aclosing(events):
            async for event in events:
                if isinstance(event, ProcessOutput):
                    self.words = (self.words + event.data)[-_KEPT_BYTES:]
                elif isinstance(event, ProcessExited):
                    self.exit_code = event.exit_code


def _failed(start: StartCommand, reason: str, output: _LastOutput, logged: str) -> SandboxStartError:
    words = visible_line(output.words.decode("utf-8", "replace").strip(), max_characters=_KEPT_BYTES)
    command = visible_line(start.command, max_characters=200)
    return SandboxStartError(
        step="run the template's start command",
        reason=f"{command}: {reason}{f': {words}' if words else ''}",
        hint="mend the command or its ready check, and build the template again",
        logged=logged,
    )
