"""The WebSocket of a kernel: frames in and out, for as long as the client, its token and the kernel last.

Frames are read one at a time, bounded by the server, and at a pace that never keeps the server's loop from its other
work: a connection without credit of processor time waits after each message. The client's queue bounds the messages
that wait to be sent. A frame that cannot be read ends the connection with a reason, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from fumehood.cancellation import first_of
from fumehood.dialects.jupyter.answers import refusal_response
from fumehood.dialects.jupyter.audience import GONE, Client
from fumehood.dialects.jupyter.auth import JupyterAuthenticator
from fumehood.dialects.jupyter.kernel import Kernel
from fumehood.dialects.jupyter.kernels import Kernels
from fumehood.dialects.jupyter.messages import V1_PROTOCOL, decode_default, decode_v1
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.server.admission import until_right_is_lost
from fumehood.server.pace import ConnectionPace, SharedPace
from fumehood.server.services import Services

# Part of the loop's time for what all clients send together. The answers to it take several times as long as taking it.
_PART = 0.04
_MALFORMED = 1007
_POLICY_VIOLATION = 1008
_MAX_SESSION_CHARACTERS = 255
_MAX_REASON_BYTES = 123


class ChannelsEndpoint:
    """Answers `/api/kernels/{kernel_id}/channels`.

    Args:
        services: The services of the handlers.
        callers: Authenticates callers.
        kernels: The kernels.
    """

    def __init__(self, services: Services, callers: JupyterAuthenticator, kernels: Kernels) -> None:
        self._services = services
        self._callers = callers
        self._kernels = kernels
        self._pace = SharedPace(_PART)

    async def serve(self, socket: WebSocket) -> None:
        """Serves one connection to its end."""
        try:
            token = self._callers.token_of(socket)
            caller = await self._callers.principal_of_token(token)
            kernel = await self._kernels.find(caller, socket.path_params["kernel_id"])
        except FumehoodError as error:
            await socket.send_denial_response(refusal_response(error))
            return

        speaks_v1 = V1_PROTOCOL in socket.scope["subprotocols"]
        client = Client(_session_of(socket), self._services.backend_for(caller), speaks_v1=speaks_v1)
        await socket.accept(subprotocol=V1_PROTOCOL if speaks_v1 else None)
        kernel.audience.join(client)
        try:
            await _until_first(
                _send(socket, client),
                _receive(socket, client, kernel, ConnectionPace(self._pace), speaks_v1=speaks_v1),
                _until_refused(socket),
            )
        finally:
            kernel.audience.leave(client)


async def _until_refused(socket: WebSocket) -> None:
    """Ends the connection when its caller's credential is not valid any more."""
    error = await until_right_is_lost()
    await _close(socket, _POLICY_VIOLATION, error.message)


async def _send(socket: WebSocket, client: Client) -> None:
    while (frame := await client.next_frame()) is not None:
        if isinstance(frame, str):
            await socket.send_text(frame)
        else:
            await socket.send_bytes(frame)

    await _close(socket, client.close_code or GONE, "")


async def _receive(
    socket: WebSocket, client: Client, kernel: Kernel, pace: ConnectionPace, *, speaks_v1: bool
) -> None:
    decode = decode_v1 if speaks_v1 else decode_default

    while True:
        event = await socket.receive()

        if event["type"] == "websocket.disconnect":
            return

        # Either field may be there and None.
        text = event.get("text")
        frame = event.get("bytes") or b"" if text is None else text
        try:
            with pace.charged():
                message = decode(frame)
        except InvalidArgumentError as error:
            await _close(socket, _MALFORMED, error.message)
            return

        with pace.charged():
            kernel.accept(message, len(frame), client)

        await pace.wait()


async def _until_first(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs coroutines until one has ended, and cancels the others."""
    tasks = [asyncio.create_task(part) for part in parts]
    await first_of(*tasks)

    for task in tasks:
        error = None if task.cancelled() else task.exception()

        # A client that disconnects is the ordinary end.
        if isinstance(error, Exception) and not isinstance(error, WebSocketDisconnect):
            raise error


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    if socket.application_state is WebSocketState.CONNECTED:
        await socket.close(code, reason.encode()[:_MAX_REASON_BYTES].decode("utf-8", "ignore"))


def _session_of(socket: WebSocket) -> str:
    given = socket.query_params.get("session_id", "")
    return given if len(given) <= _MAX_SESSION_CHARACTERS else ""
