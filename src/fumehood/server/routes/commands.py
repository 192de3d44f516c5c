"""Routes of the commands of a sandbox: start, follow, write to, signal.

A command continues when no client follows it; its output is kept within the limits of its sandbox, and several clients
at once can follow it from the beginning.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from fumehood.server.admission import while_right_lasts
from fumehood.server.auth import CallersBackend, until_refused
from fumehood.server.openapi import stream_of
from fumehood.server.responses import Line, off_loop_answer, stream_response
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer, items
from fumehood.server.schemas.commands import (
    CommandAnswer,
    CommandList,
    NewCommand,
    NewSignal,
    RanCommandsAnswer,
    TerminalSize,
)
from fumehood.server.schemas.problem import problems
from fumehood.server.uploads import pieces_of
from fumehood.values.looking import MAX_CELLS, ReadCommands
from fumehood.values.plain_data import as_data
from fumehood.values.requests import (
    CloseStdin,
    ListProcesses,
    ProcessEvent,
    ProcessOutput,
    ResizePty,
    SendStdin,
    SignalProcess,
)

router = guarded_router("commands", "/v1/sandboxes/{sandbox_id}/commands")
Pid = Annotated[int, Path(ge=1, le=2**22, description="The command's number inside the sandbox.")]
AfterBytes = Annotated[
    int | None,
    Query(
        ge=0,
        le=1 << 53,
        description="Of a terminal: how many bytes of all it wrote come before the first wanted.",
    ),
]
AfterNumber = Annotated[int | None, Query(ge=-1, le=1 << 53, description="Only those after this number.")]
HowMany = Annotated[
    int, Query(ge=1, le=MAX_CELLS, description="How many at most; with much output fewer are given.")
]
_WITH_BODY = SANDBOX_PROBLEMS | problems(400, 413)


@router.post(
    "", summary="Start a command", status_code=201, response_model=CommandAnswer, responses=_WITH_BODY
)
async def start_command(sandbox_id: SandboxId, body: NewCommand, backend: CallersBackend) -> Response:
    """Starts a command, and answers as soon as it runs.

    It runs until it ends by itself, exceeds its time limit or the sandbox ends.
    """
    return answer(await backend.start_process(sandbox_id, body.spec()), 201)


@router.get("", summary="List commands", response_model=CommandList, responses=SANDBOX_PROBLEMS)
async def list_commands(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Lists the running commands."""
    return items(await backend.process_call(sandbox_id, ListProcesses()))


@router.get(
    "/history",
    summary="List commands that ran",
    response_model=RanCommandsAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def list_ran_commands(
    sandbox_id: SandboxId, backend: CallersBackend, after: AfterNumber = None, limit: HowMany = 200
) -> Response:
    """Lists the commands of a sandbox, those that run and those that have ended, with the ends of their output.

    The oldest come first; `next_cursor` is the `after` of the next page. The last 256 are kept, within 1 MiB; a fork
    begins with none. What the server starts for itself is not among them.
    """
    page = await backend.look(sandbox_id, ReadCommands(after=after, limit=limit))
    return await off_loop_answer(page)


@router.get(
    "/{pid}/output",
    summary="Follow a command",
    response_class=Response,
    responses=SANDBOX_PROBLEMS
    | {200: {"description": "Its output as it comes.", "content": stream_of("CommandLine")}},
)
async def follow_command(
    sandbox_id: SandboxId, pid: Pid, backend: CallersBackend, request: Request, after: AfterBytes = None
) -> Response:
    """Streams the output of a command from its beginning, and finally `exited`; an ended command is kept for 30 s.

    For a terminal, the stream starts with the unread output; with `after`, it starts at that position (in bytes) of the
    output, of which up to 256 KiB that were read are kept.

    Each line has `text` if the output is UTF-8, in whole characters, and otherwise `data` in base64. Disconnecting does
    not affect the command.
    """
    return await stream_response(
        request, output_lines(backend.process_output(sandbox_id, pid, after)), until_refused=until_refused
    )


@router.post(
    "/{pid}/stdin",
    summary="Feed a command",
    status_code=204,
    response_class=Response,
    responses=_WITH_BODY | problems(408),
    openapi_extra={
        "requestBody": {
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            "required": True,
        }
    },
)
async def send_stdin(sandbox_id: SandboxId, pid: Pid, backend: CallersBackend, request: Request) -> Response:
    """Writes the body of the request to the input or the terminal of a command; answers when it is accepted."""
    # An empty body still checks that there is such a command.
    await backend.process_call(sandbox_id, SendStdin(pid=pid, data=b""))

    async def send() -> None:
        async for piece in pieces_of(request):
            await backend.process_call(sandbox_id, SendStdin(pid=pid, data=piece))

    await while_right_lasts(send())
    return Response(status_code=204)


@router.post(
    "/{pid}/stdin/close",
    summary="End a command's input",
    status_code=204,
    response_class=Response,
    responses=SANDBOX_PROBLEMS,
)
async def close_stdin(sandbox_id: SandboxId, pid: Pid, backend: CallersBackend) -> Response:
    """Ends the standard input of a command."""
    await backend.process_call(sandbox_id, CloseStdin(pid=pid))
    return Response(status_code=204)


@router.post(
    "/{pid}/signal",
    summary="Signal a command",
    status_code=204,
    response_class=Response,
    responses=_WITH_BODY,
)
async def signal_command(
    sandbox_id: SandboxId, pid: Pid, body: NewSignal, backend: CallersBackend
) -> Response:
    """Sends a signal to a command and everything that it started."""
    await backend.process_call(sandbox_id, SignalProcess(pid=pid, signal=body.number()))
    return Response(status_code=204)


@router.post(
    "/{pid}/resize",
    summary="Resize a terminal",
    status_code=204,
    response_class=Response,
    responses=_WITH_BODY,
)
async def resize_terminal(
    sandbox_id: SandboxId, pid: Pid, body: TerminalSize, backend: CallersBackend
) -> Response:
    """Changes the size of a command's terminal."""
    await backend.process_call(sandbox_id, ResizePty(pid=pid, size=body.size()))
    return Response(status_code=204)


async def output_lines(events: AsyncGenerator[ProcessEvent, None]) -> AsyncGenerator[Line, None]:
    """Yields the events of a command as lines: output as text if it is UTF-8, and otherwise as bytes."""
    streams: dict[str, _Characters] = {}

    async with aclosing(events):
        async for event in events:
            for line in _lines_of(event, streams):
                yield line


def _lines_of(event: ProcessEvent, streams: dict[str, _Characters]) -> list[Line]:
    if isinstance(event, ProcessOutput):
        stream = streams.setdefault(event.stream, _Characters())
        before = stream.rest() if event.skipped_bytes else []
        pieces = stream.add(event.data)

        if event.skipped_bytes and pieces:
            pieces[0] = {**pieces[0], "skipped_bytes": event.skipped_bytes}

        return [{"type": event.stream, **piece} for piece in (*before, *pieces)]

    rest = [{"type": name, **piece} for name, stream in streams.items() for piece in stream.rest()]
    data = as_data(event)
    assert isinstance(data, dict)
    return [*rest, {"type": "exited", **data}]


class _Characters:
    """Bytes of one stream, as whole characters: an incomplete character waits for its remaining bytes."""

    def __init__(self) -> None:
        self._waiting = b""

    def add(self, data: bytes) -> list[Line]:
        """Returns the complete characters."""
        data = self._waiting + data
        decoder = codecs.getincrementaldecoder("utf-8")()
        self._waiting = b""

        try:
            text = decoder.decode(data)
        except UnicodeDecodeError:
            return [{"data": as_data(data)}]

        self._waiting = decoder.getstate()[0]
        return [{"text": text}] if text else []

    def rest(self) -> list[Line]:
        """Returns the bytes of an incomplete character at the end of the stream."""
        data, self._waiting = self._waiting, b""
        return [{"data": as_data(data)}] if data else []
