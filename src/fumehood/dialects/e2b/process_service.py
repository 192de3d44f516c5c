"""`process.Process`: commands and terminals of a sandbox.

A command outlives the stream that started it; the timeout of `Start` is the command's own. Tags are stored here only, a
few for each sandbox, and mean nothing to the sandbox.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from cachetools import LRUCache

from fumehood.dialects.e2b.connect import DeadlineError
from fumehood.dialects.e2b.environment import given_envs
from fumehood.dialects.e2b.messages import ClientMessage
from fumehood.dialects.e2b.process_messages import (
    ProcessRequest,
    SendInputRequest,
    SendSignalRequest,
    StartRequest,
    StreamInputRequest,
    UpdateRequest,
)
from fumehood.dialects.e2b.results import dropped_text
from fumehood.errors import InvalidArgumentError, ProcessNotFoundError
from fumehood.port.backend import Backend
from fumehood.values.checks import check_text
from fumehood.values.requests import (
    CloseStdin,
    ListProcesses,
    ProcessCall,
    ProcessEvent,
    ProcessExited,
    ResizePty,
    SendStdin,
    SignalProcess,
)
from fumehood.values.sandbox import ProcessInfo, Truncation
from fumehood.values.transcript import notice

KEEPALIVE: dict[str, Any] = {"event": {"keepalive": {}}}


def process_data(info: ProcessInfo, tag: str | None) -> dict[str, Any]:
    """Returns a running command in the form of `List`."""
    config = {
        "cmd": info.argv[0],
        "args": list(info.argv[1:]),
        "envs": given_envs(info.envs),
        "cwd": info.cwd,
    }
    data: dict[str, Any] = {"config": config, "pid": info.pid}
    return data if tag is None else {**data, "tag": tag}


def started_data(pid: int) -> dict[str, Any]:
    """Returns the event that begins a stream."""
    return {"event": {"start": {"pid": pid}}}


def event_data(event: ProcessEvent) -> dict[str, Any]:
    """Returns an event of a command."""
    if isinstance(event, ProcessExited):
        return {"event": {"end": _end(event.exit_code, dropped_text(event.truncated))}}

    data = event.data

    if event.skipped_bytes and event.stream != "pty":
        data = notice(event.stream, event.skipped_bytes).encode() + data

    return {"event": {"data": {event.stream: base64.b64encode(data).decode()}}}


def _end(exit_code: int, dropped: str) -> dict[str, Any]:
    status = f"exit status {exit_code}"
    data: dict[str, Any] = {"exitCode": exit_code, "exited": True, "status": status}
    errors = [*([status] if exit_code else []), *([dropped] if dropped else [])]
    return {**data, "error": "; ".join(errors)} if errors else data


_MAX_TAGS = 1000
_MAX_TAGGED_SANDBOXES = 10_000
_MAX_TAG_BYTES = 255


class Tags:
    """The tags that callers gave to commands."""

    def __init__(self) -> None:
        self._known: LRUCache[str, LRUCache[str, int]] = LRUCache(_MAX_TAGGED_SANDBOXES)

    def note(self, sandbox_id: str, tag: str, pid: int) -> None:
        """Records the tag of a new command; an older command with the same tag loses it."""
        self._known.setdefault(sandbox_id, LRUCache(_MAX_TAGS))[tag] = pid

    def pid(self, sandbox_id: str, tag: str) -> int | None:
        """Returns the command of a tag."""
        tags = self._known.get(sandbox_id)
        return None if tags is None else tags.get(tag)

    def tag(self, sandbox_id: str, pid: int) -> str | None:
        """Returns the tag of a command."""
        tags: Mapping[str, int] = self._known.get(sandbox_id) or {}
        return next((tag for tag, known in tags.items() if known == pid), None)


class ProcessService:
    """The commands of one sandbox, for one call.

    Args:
        backend: The backend as the caller may see it.
        sandbox_id: The sandbox.
        tags: The tags of all sandboxes.
        timeout_seconds: The deadline of the call.
    """

    def __init__(self, backend: Backend, sandbox_id: str, tags: Tags, timeout_seconds: float | None) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._tags = tags
        self._timeout_seconds = timeout_seconds

    # -- calls

    async def list(self, _request: ClientMessage) -> dict[str, Any]:
        """Names the running commands."""
        found = await self._call(ListProcesses())
        return {
            "processes": [process_data(info, self._tags.tag(self._sandbox_id, info.pid)) for info in found]
        }

    async def send_input(self, request: SendInputRequest) -> dict[str, Any]:
        """Writes to a command's input."""
        await self._call(SendStdin(pid=self._pid(request), data=request.input.data()))
        return {}

    async def close_stdin(self, request: ProcessRequest) -> dict[str, Any]:
        """Ends a command's input."""
        await self._call(CloseStdin(pid=self._pid(request)))
        return {}

    async def send_signal(self, request: SendSignalRequest) -> dict[str, Any]:
        """Signals a command, and what it started."""
        number = request.number()
        await self._call(SignalProcess(pid=self._pid(request), signal=number))
        return {}

    async def update(self, request: UpdateRequest) -> dict[str, Any]:
        """Changes the size of a terminal."""
        await self._call(ResizePty(pid=self._pid(request), size=request.size()))
        return {}

    async def stream_input(self, messages: AsyncIterator[StreamInputRequest]) -> dict[str, Any]:
        """Writes the received data to a command's input, in order."""
        pid: int | None = None

        async for message in messages:
            if message.start is not None:
                pid = self._pid(message.start)

                if not await self._is_running(pid):
                    raise ProcessNotFoundError(pid=pid)
            elif message.data is not None:
                if pid is None:
                    raise InvalidArgumentError(
                        field="stream", value="data", allowed="`start` as the first message"
                    )

                await self._call(SendStdin(pid=pid, data=message.data.input.data()))

        return {}

    # -- streams

    async def start(self, request: StartRequest) -> AsyncGenerator[dict[str, Any], None]:
        """Starts a command and follows it."""
        check_text("tag", request.tag, max_bytes=_MAX_TAG_BYTES, empty=True)
        spec = request.spec(self._sandbox_id, self._timeout_seconds)
        info = await self._backend.start_process(self._sandbox_id, spec)

        if request.tag:
            self._tags.note(self._sandbox_id, request.tag, info.pid)

        async with aclosing(self._followed(info.pid, is_running=True)) as messages:
            async for message in messages:
                yield message

    async def connect(self, request: ProcessRequest) -> AsyncGenerator[dict[str, Any], None]:
        """Follows a running command, or one that ended a moment ago."""
        pid = self._pid(request)

        async with aclosing(self._followed(pid, is_running=await self._is_running(pid))) as messages:
            async for message in messages:
                yield message

    async def _followed(self, pid: int, *, is_running: bool) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the pid first: at once for a running command, for another when it is found."""
        skipped = {"stdout": 0, "stderr": 0, "pty": 0}

        async with aclosing(self._backend.process_output(self._sandbox_id, pid)) as events:
            if is_running:
                yield started_data(pid)

            async for event in events:
                if not is_running:
                    is_running = True
                    yield started_data(pid)

                if isinstance(event, ProcessExited) and event.timed_out:
                    raise DeadlineError(seconds=self._timeout_seconds)

                if isinstance(event, ProcessExited):
                    # E2B's clients get all that is streamed, which is more than a result of ours keeps.
                    missing = Truncation(stdout_bytes=skipped["stdout"], stderr_bytes=skipped["stderr"])
                    yield event_data(replace(event, truncated=missing))
                else:
                    skipped[event.stream] += event.skipped_bytes
                    yield event_data(event)

    # -- inside

    async def _is_running(self, pid: int) -> bool:
        return any(info.pid == pid for info in await self._call(ListProcesses()))

    async def _call(self, call: ProcessCall) -> Any:
        return await self._backend.process_call(self._sandbox_id, call)

    def _pid(self, request: ProcessRequest) -> int:
        if not (tag := request.process.tag):
            return request.process.pid

        pid = self._tags.pid(self._sandbox_id, tag)

        if pid is None:
            raise InvalidArgumentError(
                field="process.tag", value=tag, allowed="the tag of a command that runs"
            )

        return pid
