"""Events of sandboxes, live: one WebSocket for all subscriptions of a page, and streams of lines for programs.

A follower reads at its own pace: a slow follower gets a `gap`, reads the missed data by other routes, and never slows
down a sandbox. Following resumes no sandbox and extends no lifetime. A socket whose key or login has ended is closed
within two seconds (decision 44).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from importlib import metadata
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, WebSocket
from pydantic import Field, TypeAdapter, ValidationError
from starlette.responses import Response

from fumehood.cancellation import cancel_and_wait, first_of
from fumehood.errors import FumehoodError, InvalidArgumentError, OverloadedError
from fumehood.port.backend import Backend
from fumehood.server.auth import (
    CallersBackend,
    offered_protocols,
    principal_of,
    principal_of_websocket,
    until_refused,
)
from fumehood.server.openapi import stream_of
from fumehood.server.principal import Principal
from fumehood.server.problems import problem_data
from fumehood.server.responses import Line, LinesAtOnce, stream_response
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.pty import POLICY_VIOLATION, refuse_websocket
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId
from fumehood.server.schemas.base import Body
from fumehood.server.schemas.problem import problems
from fumehood.server.services import AppServices, services_of
from fumehood.values.json_text import json_bytes
from fumehood.values.looking import ReadUse
from fumehood.values.plain_data import as_data
from fumehood.values.watching import WatchEvents

router = guarded_router("watching", "/v1")
socket_router = APIRouter(tags=["watching"])
_PROTOCOL = "fumehood.watch"
_EVERY_SECONDS = 2.0
_SEND_SECONDS = 60.0
_MAX_FOLLOWED = 32
_MAX_SOCKETS_OF_KEY = 16
_RETRY_SECONDS = 5.0
_MAX_MESSAGE_CHARACTERS = 4096
_After = Annotated[
    int | None,
    Query(ge=0, le=1 << 53, description="Begin behind the event with this `seq`; without it, with the next."),
]
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "A line for each event, `here` first.", "content": stream_of("EventLine")}
}


@router.get(
    "/events",
    summary="Follow all sandboxes",
    response_class=Response,
    responses=problems(401, 403, 422, 503) | _STREAM,
)
async def follow_sandboxes(
    request: Request,
    backend: CallersBackend,
    after: _After = None,
    owner: Annotated[
        str | None,
        Query(max_length=255, description="Only those of this key; others than the owner have their own."),
    ] = None,
) -> Response:
    """Streams the starts, changes and ends of the caller's sandboxes.

    The server's owner sees the sandboxes of all keys.
    """
    return await stream_response(
        request, _lines(backend.watch_sandboxes(owner, after)), until_refused=until_refused
    )


@router.get(
    "/sandboxes/{sandbox_id}/events",
    summary="Follow a sandbox",
    response_class=Response,
    responses=SANDBOX_PROBLEMS | _STREAM,
)
async def follow_sandbox(
    sandbox_id: SandboxId, request: Request, backend: CallersBackend, after: _After = None
) -> Response:
    """Streams the events of a sandbox, whichever client or dialect causes them, until it ends."""
    return await stream_response(
        request, _lines(backend.watch_events(sandbox_id, after)), until_refused=until_refused
    )


async def _lines(coming: AsyncGenerator[WatchEvents, None]) -> AsyncGenerator[Line, None]:
    async with aclosing(coming):
        async for events in coming:
            yield LinesAtOnce([event.plain_data() for event in events])


class Follow(Body):
    """The message by which a page begins to follow a sandbox, or all."""

    op: Literal["follow"]
    id: int = Field(ge=0, le=1 << 31)
    what: Literal["server", "sandbox"]
    sandbox_id: str | None = Field(default=None, max_length=64)
    after: int | None = Field(default=None, ge=0, le=1 << 53)
    metrics: bool = False


class Leave(Body):
    """The message by which a page stops following."""

    op: Literal["leave"]
    id: int = Field(ge=0, le=1 << 31)


_MESSAGE: TypeAdapter[Follow | Leave] = TypeAdapter(Annotated[Follow | Leave, Field(discriminator="op")])


@socket_router.websocket("/v1/watch")
async def watch(websocket: WebSocket) -> None:
    """Sends the events that the client's messages subscribe to, until it disconnects or loses the right to them."""
    try:
        principal = await principal_of_websocket(websocket)
        principal.require_look()
        socket = _Socket(websocket, services_of(websocket), principal)
    except FumehoodError as error:
        await refuse_websocket(websocket, error)
        return

    try:
        await websocket.accept(_PROTOCOL if _PROTOCOL in offered_protocols(websocket) else None)
        await socket.run()
    finally:
        socket.close()


class _Socket:
    """One connection with its subscriptions; the caller closes it.

    Raises:
        OverloadedError: The key already has the maximum number of sockets.
    """

    def __init__(self, websocket: WebSocket, services: AppServices, principal: Principal) -> None:
        self._key_id = principal.key_id

        if not principal.is_owner and services.sockets[self._key_id] >= _MAX_SOCKETS_OF_KEY:
            reason = f"{_MAX_SOCKETS_OF_KEY} sockets of this key follow already"
            raise OverloadedError(reason=reason, retry_after_seconds=_RETRY_SECONDS)

        services.sockets[self._key_id] += 1
        self._websocket = websocket
        self._services = services
        self._backend: Backend = services.backend_for(principal)
        self._followed: dict[int, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()

    def close(self) -> None:
        """Makes room for another socket of the key."""
        self._services.sockets -= Counter({self._key_id: 1})

    async def run(self) -> None:
        """Serves the connection until the client has disconnected, or may no longer follow."""
        listening = asyncio.create_task(self._listen())
        refused = asyncio.create_task(until_refused(self._websocket))
        try:
            is_refused = refused in await first_of(listening, refused)
        finally:
            await cancel_and_wait(*self._followed.values())

        if is_refused:
            await self._complain(None, refused.result())

        with suppress(RuntimeError):
            # Closing a connection that is closed already raises, and is no fault.
            await self._websocket.close(POLICY_VIOLATION if is_refused else 1000)

    async def _listen(self) -> None:
        while (message := await self._websocket.receive())["type"] == "websocket.receive":
            text = message.get("text") or ""

            try:
                asked = _MESSAGE.validate_json(text[: _MAX_MESSAGE_CHARACTERS + 1])
            except ValidationError:
                allowed = (
                    '{"op": "follow", "id", "what": "server" or "sandbox", ...} or {"op": "leave", "id"}'
                )
                await self._complain(
                    None, InvalidArgumentError(field="message", value="this text", allowed=allowed)
                )
                continue

            await self._leave(asked.id)

            if isinstance(asked, Follow):
                try:
                    self._services.count_request(await principal_of(self._websocket))
                except FumehoodError as error:
                    await self._complain(asked.id, error)
                    continue

                await self._begin(asked)

    async def _leave(self, name: int) -> None:
        task = self._followed.pop(name, None)

        if task is not None:
            await cancel_and_wait(task)

    async def _begin(self, asked: Follow) -> None:
        self._followed = {name: task for name, task in self._followed.items() if not task.done()}

        if len(self._followed) >= _MAX_FOLLOWED:
            error = InvalidArgumentError(
                field="follow", value=asked.id, allowed=f"at most {_MAX_FOLLOWED} at a time"
            )
            await self._complain(asked.id, error)
        elif (asked.what == "sandbox") != (asked.sandbox_id is not None):
            error = InvalidArgumentError(
                field="sandbox_id",
                value=asked.sandbox_id,
                allowed="the sandbox to follow, and none for the server",
            )
            await self._complain(asked.id, error)
        else:
            self._followed[asked.id] = asyncio.create_task(self._follow(asked))

    async def _follow(self, asked: Follow) -> None:
        figures = asyncio.create_task(self._tell_figures(asked))
        sandbox_id = asked.sandbox_id
        try:
            coming = (
                self._backend.watch_sandboxes(None, asked.after)
                if sandbox_id is None
                else self._backend.watch_events(sandbox_id, asked.after)
            )

            async with aclosing(coming):
                async for events in coming:
                    if events[0].type == "here":
                        version = {"version": metadata.version("fumehood")}
                        await self._say(asked.id, events[0].plain_data() | version)
                    else:
                        # In one message, and in the JSON that all followers share.
                        await self._send(b'{"id":%d,"events":%s}' % (asked.id, events.json))
        except FumehoodError as error:
            await self._complain(asked.id, error)
        finally:
            await cancel_and_wait(figures)

    async def _tell_figures(self, asked: Follow) -> None:
        """Sends figures every two seconds: of a sandbox if requested, and of the server for keys that may see them."""
        while True:
            # Also before the first: following again and again gives no more of them.
            await asyncio.sleep(_EVERY_SECONDS)

            if asked.sandbox_id is not None and asked.metrics:
                with suppress(FumehoodError):
                    use = await self._backend.look(asked.sandbox_id, ReadUse())
                    await self._say(asked.id, {"type": "metrics", "metrics": as_data(use)})
            elif asked.sandbox_id is None and "keys" in (await principal_of(self._websocket)).scopes:
                with suppress(FumehoodError):
                    await self._say(asked.id, {"type": "counters", "counters": await self._counters()})

    async def _counters(self) -> dict[str, Any]:
        queue, capacity = self._services.queue, await self._services.backend.capacity()
        return {
            "runs_running": queue.running,
            "runs_waiting": queue.waiting,
            "sandboxes": capacity.sandboxes,
            "max_sandboxes": capacity.max_sandboxes,
            "pool_ready": capacity.pool_ready,
            "memory_available_bytes": capacity.memory_available_bytes,
            "memory_total_bytes": capacity.memory_total_bytes,
            "cpu_cores": capacity.cpu_cores,
            "load": capacity.load,
        }

    async def _complain(self, name: int | None, error: FumehoodError) -> None:
        request_id = str(self._websocket.scope.get("state", {}).get("request_id", ""))
        await self._say(name, {"type": "problem", "problem": problem_data(error, request_id)})

    async def _say(self, name: int | None, what: dict[str, Any]) -> None:
        await self._send(json_bytes(what if name is None else {"id": name, **what}))

    async def _send(self, message: bytes) -> None:
        with suppress(RuntimeError):
            # The client may have disconnected meanwhile.
            async with self._sending, asyncio.timeout(_SEND_SECONDS):
                await self._websocket.send_text(message.decode())
