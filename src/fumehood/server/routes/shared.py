"""The routes for readers of a share: the chosen parts of one sandbox, each by one route, and nothing else.

Only the token of that share is accepted here, and it is accepted nowhere else. Bytes of files come from a guest: they
are sent as downloads, with a policy under which no content of them can run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from functools import partial
from importlib import metadata
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Security, WebSocket
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from fumehood.cancellation import cancel_and_wait, first_of
from fumehood.errors import (
    FumehoodError,
    InvalidArgumentError,
    OverloadedError,
    SandboxClosedError,
    SandboxNotFoundError,
)
from fumehood.server.auth import StoresOf, offered_protocols
from fumehood.server.downloads import Download
from fumehood.server.openapi import stream_of
from fumehood.server.problems import problem_data
from fumehood.server.responses import off_loop_answer, stream_response
from fumehood.server.routes.pty import POLICY_VIOLATION, refuse_websocket
from fumehood.server.schemas.base import Body, GuestPath, model_of
from fumehood.server.schemas.cells import CellAnswer, CellPageAnswer
from fumehood.server.schemas.files import FileList
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.shares import SharedSandboxAnswer, SharedState
from fumehood.server.services import Services, stores_of
from fumehood.server.shared_records import SharedConnection, SharedEntry
from fumehood.server.shared_sandbox import SharedSandbox
from fumehood.server.shares import ANSWER_SECONDS, FILE_SECONDS, share_token_of
from fumehood.storage.shares import StoredShare
from fumehood.values.json_text import json_bytes
from fumehood.values.looking import MAX_CELLS, MAX_LISTED, VariablePage

router = APIRouter(tags=["shares"], prefix="/v1/shares/{share_id}")
socket_router = APIRouter(tags=["shares"])
_PROBLEMS = problems(401, 403, 404, 409, 410, 422, 429, 502, 503)
_PROTOCOL = "fumehood.watch"
_TOKEN_PROTOCOL = "fumehood.token."  # noqa: S105 - what goes before a token
_SEND_SECONDS = 60.0
_MAX_MESSAGE_CHARACTERS = 4096
_NO_NUL = r"^[^\x00]*$"
# So long a paused or busy sandbox may hold one of the few transfers before it gives the first piece.
_FIRST_SECONDS = 10.0
_INERT = {
    "Content-Type": "application/octet-stream",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "attachment",
    "Cache-Control": "no-store",
}
# What is sent of a large answer at once; a smaller one is sent whole.
_PIECE_BYTES = 1 << 20
_ShareId = Annotated[str, Path(max_length=64, description="The share.")]


_PathQuery = Annotated[GuestPath, Query(description="Path below /home/user, where relative ones start.")]
_Variables = model_of(VariablePage)
_BEARER = HTTPBearer(auto_error=False, description="`Authorization: Bearer TOKEN`")
_Bearer = Annotated[object, Security(_BEARER)]


class SharedAudit(BaseModel):
    """The entries of an audit record that a share shows."""

    items: list[model_of(SharedEntry)]  # type: ignore[valid-type]
    is_verifiable: Literal[False] = Field(
        description="False: an extract has no hashes. The key of the sandbox has the whole record, with its chain."
    )


class SharedNetworkLog(BaseModel):
    """The connections that a share shows, the oldest first."""

    items: list[model_of(SharedConnection)]  # type: ignore[valid-type]


async def _reader(request: Request, share_id: _ShareId, bearer: _Bearer) -> SharedSandbox:
    services = stores_of(request)
    share, principal = await services.shares.reader_of(share_id, share_token_of(request))
    request.state.share = share
    return SharedSandbox(share, services.backend_for(principal), services.shares.ends)


Reader = Annotated[SharedSandbox, Depends(_reader)]


async def _large_answer(value: object, request: Request) -> Response:
    """Returns a value as JSON; a large value takes one of a few places while it is sent, for at most 30 seconds.

    Raises:
        OverloadedError: The maximum number of large answers is under way.
    """
    answer = await off_loop_answer(value)
    body = bytes(answer.body)

    if len(body) <= _PIECE_BYTES:
        return answer

    shares, share, token = stores_of(request).shares, request.state.share, share_token_of(request) or ""

    async def sent() -> AsyncGenerator[bytes, None]:
        with shares.answers.taken(share.id):
            for start in range(0, len(body), _PIECE_BYTES):
                yield body[start : start + _PIECE_BYTES]

    pieces = sent()
    first = await anext(pieces)
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    over = partial(shares.until_over, share.id, token, ANSWER_SECONDS)
    return Download(first, pieces, headers, until_over=over)


async def shared_answer(services: Services, share: StoredShare) -> SharedSandboxAnswer:
    """Returns the description of a share and its sandbox for a reader."""
    principal = await services.shares.key_of(share)
    state: SharedState = "ended"
    reason, info = "", None

    try:
        info = await SharedSandbox(share, services.backend_for(principal), services.shares.ends).info()
        state = info.state
    except SandboxClosedError as error:
        reason = error.reason
    except SandboxNotFoundError:
        reason = "unknown"

    return SharedSandboxAnswer.of(share, services.shares.readers[share.id], state, reason, info)


@router.get(
    "", summary="Describe what a share shows", response_model=SharedSandboxAnswer, responses=_PROBLEMS
)
async def describe_share(reader: Reader, request: Request) -> SharedSandboxAnswer:
    """Returns the parts that the share shows, its end, its number of readers, and the state of its sandbox."""
    return await shared_answer(stores_of(request), request.state.share)


@router.get(
    "/executions",
    summary="Read what ran, through a share",
    response_model=CellPageAnswer,
    responses=_PROBLEMS,
)
async def shared_cells(
    reader: Reader,
    request: Request,
    before: Annotated[
        int | None, Query(ge=-1, le=1 << 53, description="Only those before this position.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_CELLS, description="How many at most.")] = 50,
) -> Response:
    """Returns a page of the executions in the shared context and time, in order.

    The newest ones if no position is given.
    """
    return await _large_answer(await reader.cells(before, limit), request)


@router.get(
    "/executions/{execution_id}",
    summary="Read one execution, through a share",
    response_model=CellAnswer,
    responses=_PROBLEMS,
)
async def shared_cell(
    reader: Reader,
    request: Request,
    execution_id: Annotated[str, Path(max_length=255, description="The execution.")],
) -> Response:
    """Returns an execution with its outputs; without its tool calls and its changes."""
    return await _large_answer(await reader.cell(execution_id), request)


@router.get(
    "/variables", summary="List variables, through a share", response_model=_Variables, responses=_PROBLEMS
)
async def shared_variables(
    reader: Reader,
    request: Request,
    q: Annotated[str, Query(max_length=60, pattern=_NO_NUL, description="Only those with this text.")] = "",
    cursor: Annotated[
        str | None, Query(max_length=200, pattern=_NO_NUL, description="`next_cursor` of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="How many at most.")] = 200,
) -> Response:
    """Lists the variables of the shared context as they are now."""
    return await _large_answer(await reader.variables(q, cursor, limit), request)


@router.get(
    "/variables/{name}",
    summary="Show a variable, through a share",
    response_model=_Variables,
    responses=_PROBLEMS,
)
async def shared_variable(
    reader: Reader,
    request: Request,
    name: Annotated[str, Path(max_length=200, pattern=_NO_NUL, description="The variable.")],
) -> Response:
    """Returns one variable in detail, as the only item of the answer."""
    return await _large_answer(await reader.variable(name), request)


@router.get(
    "/files", summary="List a directory, through a share", response_model=FileList, responses=_PROBLEMS
)
async def shared_files(reader: Reader, request: Request, path: _PathQuery = ".") -> Response:
    """Lists a directory below the home directory; the list is empty if the sandbox is paused."""
    return await _large_answer({"items": await reader.files(path)}, request)


@router.get(
    "/files/content",
    summary="Read a file, through a share",
    response_class=Response,
    responses=_PROBLEMS
    | {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def shared_file(
    reader: Reader, share_id: _ShareId, path: _PathQuery, services: StoresOf, request: Request
) -> Response:
    """Returns the first 10 MiB of a file below the home directory, within two minutes.

    At most 4 files of a share, and 16 of all shares, are read at once.
    """
    shares, token = services.shares, share_token_of(request) or ""

    async def read() -> AsyncGenerator[bytes, None]:
        with shares.files.taken(share_id):
            async with aclosing(reader.file(path)) as pieces:
                async for piece in pieces:
                    yield piece

    pieces = read()
    try:
        # An error raised here becomes a response with its own status.
        async with asyncio.timeout(_FIRST_SECONDS):
            first = await anext(pieces, b"")
    except TimeoutError:
        reason = f"the sandbox gave nothing of the file within {_FIRST_SECONDS:g} s"
        raise OverloadedError(reason=reason, retry_after_seconds=_FIRST_SECONDS) from None
    except BaseException:
        await pieces.aclose()
        raise

    return Download(
        first, pieces, _INERT, until_over=partial(shares.until_over, share_id, token, FILE_SECONDS)
    )


@router.get(
    "/audit",
    summary="Read the audit record, through a share",
    response_model=SharedAudit,
    responses=_PROBLEMS,
)
async def shared_audit(reader: Reader, request: Request) -> Response:
    """Returns an extract without hashes: the executions of the context in the shared time, and the sandbox's states."""
    return await _large_answer({"items": await reader.audit(), "is_verifiable": False}, request)


@router.get(
    "/network/log",
    summary="Read the network log, through a share",
    response_model=SharedNetworkLog,
    responses=_PROBLEMS,
)
async def shared_network(reader: Reader, request: Request) -> Response:
    """Returns the connections of the shared time, each with the rule that applied."""
    return await _large_answer({"items": await reader.network()}, request)


@router.get(
    "/events",
    summary="Follow a sandbox, through a share",
    response_class=Response,
    responses=_PROBLEMS
    | {200: {"description": "A line for each event, `here` first.", "content": stream_of("EventLine")}},
)
async def shared_events(reader: Reader, share_id: _ShareId, request: Request) -> Response:
    """Streams the events of the parts that the share shows, from now on."""
    shares = stores_of(request).shares
    token = share_token_of(request) or ""

    async def lines() -> AsyncGenerator[dict[str, Any], None]:
        with shares.reading(share_id):
            async with aclosing(reader.events()) as events:
                async for event in events:
                    yield event.plain_data()

    return await stream_response(
        request, lines(), until_refused=lambda _: shares.until_refused(share_id, token)
    )


class FollowShared(Body):
    """The message by which a page begins to follow events, from now on; the same as on `/v1/watch`."""

    op: Literal["follow", "leave"]
    id: int = Field(ge=0, le=1 << 31)
    what: Literal["sandbox"] = "sandbox"
    sandbox_id: str | None = Field(default=None, max_length=64)
    after: int | None = Field(default=None, ge=0, le=1 << 53)
    metrics: bool = False


@socket_router.websocket("/v1/shares/{share_id}/watch")
async def watch_share(websocket: WebSocket, share_id: str) -> None:
    """Sends the events of the parts that a share shows, until the reader disconnects or the share ends."""
    offered = offered_protocols(websocket)
    token = next(
        (name.removeprefix(_TOKEN_PROTOCOL) for name in offered if name.startswith(_TOKEN_PROTOCOL)), ""
    )
    services = stores_of(websocket)

    try:
        share, principal = await services.shares.reader_of(share_id, token or share_token_of(websocket))
        # Raises when there are too many.
        with services.shares.reading(share.id):
            await websocket.accept(_PROTOCOL if _PROTOCOL in offered else None)
            sandbox = SharedSandbox(share, services.backend_for(principal), services.shares.ends)
            refused = services.shares.until_refused(share.id, token or share_token_of(websocket) or "")
            await _Socket(websocket, sandbox).run(refused)
    except FumehoodError as error:
        await refuse_websocket(websocket, error)


class _Socket:
    """One reader's connection. It only ever sends events of the shared sandbox, whatever the reader requests."""

    def __init__(self, websocket: WebSocket, sandbox: SharedSandbox) -> None:
        self._websocket = websocket
        self._sandbox = sandbox
        self._following: asyncio.Task[None] | None = None

    async def run(self, until_refused: Coroutine[Any, Any, FumehoodError]) -> None:
        """Returns when the reader has disconnected, or the share has ended."""
        listening = asyncio.create_task(self._listen())
        refused = asyncio.create_task(until_refused)
        try:
            is_refused = refused in await first_of(listening, refused)
            error = refused.result() if is_refused else None
        finally:
            await cancel_and_wait(*self._tasks())

        if error is not None:
            await self._say(None, {"type": "problem", "problem": problem_data(error, self._request_id)})

        with suppress(RuntimeError):
            # Closing a connection that is closed already raises, and is no fault.
            await self._websocket.close(1000 if error is None else POLICY_VIOLATION)

    async def _listen(self) -> None:
        while (message := await self._websocket.receive())["type"] == "websocket.receive":
            text = message.get("text") or ""

            try:
                asked = FollowShared.model_validate_json(text[: _MAX_MESSAGE_CHARACTERS + 1])
            except ValidationError:
                allowed = '{"op": "follow", "id"} or {"op": "leave", "id"}'
                error = InvalidArgumentError(field="message", value="this text", allowed=allowed)
                await self._say(None, {"type": "problem", "problem": problem_data(error, self._request_id)})
                continue

            # One at a time: a new one takes the place of the last.
            await cancel_and_wait(*self._tasks())
            self._following = asyncio.create_task(self._follow(asked.id)) if asked.op == "follow" else None

    async def _follow(self, name: int) -> None:
        try:
            async with aclosing(self._sandbox.events()) as events:
                async for event in events:
                    line = event.plain_data()

                    if event.type == "here":
                        line["version"] = metadata.version("fumehood")

                    await self._say(name, line)
        except FumehoodError as error:
            await self._say(name, {"type": "problem", "problem": problem_data(error, self._request_id)})

    def _tasks(self) -> tuple[asyncio.Task[None], ...]:
        return () if self._following is None else (self._following,)

    @property
    def _request_id(self) -> str:
        return str(self._websocket.scope.get("state", {}).get("request_id", ""))

    async def _say(self, name: int | None, what: dict[str, Any]) -> None:
        line = what if name is None else {"id": name, **what}

        with suppress(RuntimeError):
            # The reader may have disconnected meanwhile.
            async with asyncio.timeout(_SEND_SECONDS):
                await self._websocket.send_text(json_bytes(line).decode())
