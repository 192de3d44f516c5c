"""Terminals of a sandbox over WebSockets: keystrokes in, output out.

Bytes are binary messages, all other messages are JSON text. A terminal that a connection has opened is killed when the
connection ends for any reason. The terminal of a command outlives the connections that attach to it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import ValidationError
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse
from starlette.websockets import WebSocketDisconnect

from fumehood.cancellation import complete, first_of
from fumehood.errors import FumehoodError, InvalidArgumentError, ProcessNotFoundError
from fumehood.port.backend import Backend
from fumehood.server.auth import offered_protocols, principal_of_websocket, until_refused
from fumehood.server.problems import MEDIA_TYPE, headers_of, problem_data
from fumehood.server.schemas.commands import TerminalSize
from fumehood.server.services import services_of
from fumehood.values.json_text import json_bytes
from fumehood.values.plain_data import as_data
from fumehood.values.requests import (
    ListProcesses,
    ProcessEvent,
    ProcessExited,
    ProcessSpec,
    ResizePty,
    SendStdin,
    SignalProcess,
)
from fumehood.values.sandbox import PtySize

router = APIRouter(tags=["commands"])
# An interactive login shell, in an environment as terminals have it.
_SHELL = ("/bin/bash", "-i", "-l")
_ENVS = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
_SIGKILL = 9
_SEND_SECONDS = 60.0
_PROTOCOL = "fumehood.pty"
# The code with which a WebSocket is closed whose client may use it no longer.
POLICY_VIOLATION = 1008


class Resize(TerminalSize):
    """A text message of a client."""

    type: Literal["resize"]


@router.websocket("/v1/sandboxes/{sandbox_id}/pty")
async def terminal(websocket: WebSocket, sandbox_id: str) -> None:
    """Opens a shell on a terminal of the size `cols` times `rows`, in the directory `cwd`."""
    try:
        backend = await _backend(websocket)
        spec = _spec(websocket.query_params)
        process = await backend.start_process(sandbox_id, spec)
    except FumehoodError as error:
        await refuse_websocket(websocket, error)
        return

    shell = _Terminal(websocket, backend, sandbox_id, process.pid)
    try:
        await websocket.accept(_PROTOCOL if _PROTOCOL in offered_protocols(websocket) else None)
        await shell.run()
    finally:
        await complete(shell.kill())


@router.websocket("/v1/sandboxes/{sandbox_id}/commands/{pid}/terminal")
async def attach(websocket: WebSocket, sandbox_id: str, pid: int) -> None:
    """Attaches to the terminal of a command: sends its kept output from byte `after` on, then new output.

    The command continues when the client disconnects. With `read_only=true` nothing can be typed or resized.
    """
    try:
        backend = await _backend(websocket)
        query = _allowed(websocket.query_params, ("after", "read_only"))
        after = _number(query, "after", 0, digits=16)
        read_only = query.get("read_only", "false") == "true"
        found = await backend.process_call(sandbox_id, ListProcesses())

        if not any(process.pid == pid and process.is_pty for process in found):
            raise ProcessNotFoundError(pid=pid)
    except FumehoodError as error:
        await refuse_websocket(websocket, error)
        return

    await websocket.accept(_PROTOCOL if _PROTOCOL in offered_protocols(websocket) else None)
    await _Terminal(websocket, backend, sandbox_id, pid, after=after, read_only=read_only).run()


class _Terminal:
    """One connection and its terminal.

    Args:
        websocket: The connection.
        backend: The caller's backend.
        sandbox_id: The sandbox.
        pid: The process id of the terminal's program.
        after: The byte from which on its output is shown; None: the output that no connection has read.
        read_only: Whether input of the client is refused.
    """

    def __init__(
        self,
        websocket: WebSocket,
        backend: Backend,
        sandbox_id: str,
        pid: int,
        *,
        after: int | None = None,
        read_only: bool = False,
    ) -> None:
        self._after = after
        self._read_only = read_only
        self._websocket = websocket
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._pid = pid
        self._has_exited = False

    async def run(self) -> None:
        """Returns when the shell has ended, or the client has disconnected or may no longer use the terminal."""
        await self._say({"type": "started", "pid": self._pid})
        typing = asyncio.create_task(self._type())
        showing = asyncio.create_task(self._show())
        refused = asyncio.create_task(until_refused(self._websocket))
        is_refused = refused in await first_of(typing, showing, refused)

        with suppress(WebSocketDisconnect, RuntimeError):
            if is_refused:
                await self._complain(refused.result())

            # Closing a connection that is closed already raises, and is no fault.
            await self._websocket.close(POLICY_VIOLATION if is_refused else 1000)

    async def kill(self) -> None:
        """Ends the shell with all that it has started, unless it has ended."""
        if not self._has_exited:
            with suppress(FumehoodError):
                await self._call(SignalProcess(pid=self._pid, signal=_SIGKILL))

    async def _type(self) -> None:
        while (message := await self._websocket.receive())["type"] == "websocket.receive":
            try:
                if self._read_only:
                    raise InvalidArgumentError(
                        field="message", value="this", allowed="nothing: it is read-only"
                    )

                if message.get("bytes") is not None:
                    await self._call(SendStdin(pid=self._pid, data=message["bytes"]))
                else:
                    asked = Resize.model_validate_json(message.get("text") or "")
                    await self._call(ResizePty(pid=self._pid, size=asked.size()))
            except ValidationError:
                allowed = (
                    '{"type": "resize", "cols": 1 to 10000, "rows": 1 to 10000}; what is typed is binary'
                )
                await self._complain(
                    InvalidArgumentError(field="message", value="this text", allowed=allowed)
                )
            except FumehoodError as error:
                await self._complain(error)

    async def _show(self) -> None:
        try:
            output = self._backend.process_output(self._sandbox_id, self._pid, self._after)

            async with aclosing(output) as events:
                async for event in events:
                    await self._pass_on(event)
        except FumehoodError as error:
            await self._complain(error)

    async def _pass_on(self, event: ProcessEvent) -> None:
        if isinstance(event, ProcessExited):
            self._has_exited = True
            data = as_data(event)
            assert isinstance(data, dict)
            await self._say({"type": "exited", **data})
            return

        if event.skipped_bytes:
            await self._say({"type": "skipped", "bytes": event.skipped_bytes})

        async with asyncio.timeout(_SEND_SECONDS):
            await self._websocket.send_bytes(event.data)

    async def _call(self, call: SendStdin | ResizePty | SignalProcess) -> None:
        await self._backend.process_call(self._sandbox_id, call)

    async def _complain(self, error: FumehoodError) -> None:
        await self._say({"type": "problem", "problem": problem_data(error, _request_id(self._websocket))})

    async def _say(self, what: dict[str, Any]) -> None:
        async with asyncio.timeout(_SEND_SECONDS):
            await self._websocket.send_text(json_bytes(what).decode())


async def _backend(websocket: WebSocket) -> Backend:
    principal = await principal_of_websocket(websocket)
    principal.require("sandboxes")
    return services_of(websocket).backend_for(principal)


def _spec(query: QueryParams) -> ProcessSpec:
    query = _allowed(query, ("cols", "rows", "cwd"))
    size = PtySize(cols=_number(query, "cols", 80), rows=_number(query, "rows", 24))
    return ProcessSpec(argv=_SHELL, cwd=query.get("cwd"), envs=_ENVS, stdin=True, pty=size)


def _allowed(query: QueryParams, names: tuple[str, ...]) -> QueryParams:
    for name in query:
        if name not in names:
            # A token in the address is refused like any other unknown parameter.
            raise InvalidArgumentError(field="query", value=name, allowed=", ".join(names))

    return query


def _number(query: QueryParams, name: str, default: int, *, digits: int = 5) -> int:
    text = query.get(name, str(default))

    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        raise InvalidArgumentError(
            field=name, value=text, allowed=f"a whole number of at most {digits} digits"
        )

    return int(text)


async def refuse_websocket(websocket: WebSocket, error: FumehoodError) -> None:
    """Answers the handshake of a WebSocket with a problem."""
    body = problem_data(error, _request_id(websocket))
    response = JSONResponse(body, body["status"], headers=headers_of(error), media_type=MEDIA_TYPE)
    await websocket.send_denial_response(response)


def _request_id(websocket: WebSocket) -> str:
    return str(websocket.scope.get("state", {}).get("request_id", ""))
