"""envd, E2B's daemon in a sandbox (port 49983), answered by this server: files, commands, health.

Every request except for a correctly signed URL needs the sandbox's access token. A call by Connect has its method, its
deadline and the keepalives of its stream. A signed URL names no sandbox, so the living sandbox whose token signed it is
searched for: a caller without a valid signature learns only that no sandbox fits, and however many requests arrive, one
list of the sandboxes is made at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.dialects.e2b import connect
from fumehood.dialects.e2b.answers import DEAD_CODES, GuestJSON, connect_answer, plain_answer, sandbox_answer
from fumehood.dialects.e2b.auth import E2BAuthenticator, SandboxTokens, SignedPath
from fumehood.dialects.e2b.bodies import json_body
from fumehood.dialects.e2b.connect import DeadlineError
from fumehood.dialects.e2b.environment import check_user, shown_envs, user_of
from fumehood.dialects.e2b.file_messages import (
    ListDirRequest,
    MoveRequest,
    PathRequest,
    WatcherRequest,
    WatchRequest,
)
from fumehood.dialects.e2b.file_service import WATCH_KEEPALIVE, FileService, Watchers
from fumehood.dialects.e2b.messages import ClientMessage
from fumehood.dialects.e2b.process_messages import (
    ProcessRequest,
    SendInputRequest,
    SendSignalRequest,
    StartRequest,
    StreamInputRequest,
    UpdateRequest,
)
from fumehood.dialects.e2b.process_service import KEEPALIVE, ProcessService, Tags
from fumehood.dialects.e2b.sandboxes import measures_data
from fumehood.dialects.e2b.streams import begun, with_beats
from fumehood.dialects.e2b.transfers import Transfers
from fumehood.errors import (
    FumehoodError,
    InvalidArgumentError,
    SandboxClosedError,
    SandboxPausedError,
    UnauthenticatedError,
)
from fumehood.port.backend import Backend
from fumehood.server.admission import while_right_lasts
from fumehood.server.json_bodies import read_fields
from fumehood.values.requests import ProcessOutput, ProcessSpec

# The message that a method takes, and the method.
Unary = tuple[type[ClientMessage], Callable[[Any], Awaitable[dict[str, Any]]]]
Streamed = tuple[type[ClientMessage], Callable[[Any], AsyncGenerator[dict[str, Any], None]]]

_KEEPALIVE_SECONDS = 90.0


class Call:
    """One call.

    Args:
        request: The HTTP request.
        processes: Answers calls about commands.
        files: Answers calls about files.
        timeout_seconds: The deadline of the caller.
    """

    def __init__(
        self,
        request: Request,
        processes: ProcessService,
        files: FileService,
        timeout_seconds: float | None,
    ) -> None:
        self._request = request
        self._processes = processes
        self._timeout_seconds = timeout_seconds
        self._unary: dict[str, Unary] = {
            "process.Process/List": (ClientMessage, processes.list),
            "process.Process/SendInput": (SendInputRequest, processes.send_input),
            "process.Process/CloseStdin": (ProcessRequest, processes.close_stdin),
            "process.Process/SendSignal": (SendSignalRequest, processes.send_signal),
            "process.Process/Update": (UpdateRequest, processes.update),
            "filesystem.Filesystem/Stat": (PathRequest, files.stat),
            "filesystem.Filesystem/MakeDir": (PathRequest, files.make_dir),
            "filesystem.Filesystem/Move": (MoveRequest, files.move),
            "filesystem.Filesystem/ListDir": (ListDirRequest, files.list_dir),
            "filesystem.Filesystem/Remove": (PathRequest, files.remove),
            "filesystem.Filesystem/CreateWatcher": (WatchRequest, files.create_watcher),
            "filesystem.Filesystem/GetWatcherEvents": (WatcherRequest, files.get_watcher_events),
            "filesystem.Filesystem/RemoveWatcher": (WatcherRequest, files.remove_watcher),
        }
        self._streams: dict[str, tuple[Streamed, dict[str, Any]]] = {
            "process.Process/Start": ((StartRequest, processes.start), KEEPALIVE),
            "process.Process/Connect": ((ProcessRequest, processes.connect), KEEPALIVE),
            "filesystem.Filesystem/WatchDir": ((WatchRequest, files.watch_dir), WATCH_KEEPALIVE),
        }

    async def unary(self, name: str) -> Response:
        """Answers a call without a stream."""
        if name not in self._unary:
            return JSONResponse({"code": "unimplemented", "message": f"no such method: {name[:200]}"}, 501)

        kind, method = self._unary[name]
        message = await json_body(self._request, kind)

        async with self._deadline():
            return GuestJSON(await method(message))

    async def stream(self, name: str) -> Response:
        """Answers a Connect call in which the client or the server sends a stream of messages."""
        if name == "process.Process/StreamInput":
            async with self._deadline(), aclosing(connect.frames(self._request.stream())) as inputs:
                messages = (read_fields(StreamInputRequest, one) async for one in inputs)
                return connect.reply_answer(await while_right_lasts(self._processes.stream_input(messages)))

        if name not in self._streams:
            return JSONResponse({"code": "unimplemented", "message": f"no such method: {name[:200]}"}, 501)

        (kind, method), beat = self._streams[name]
        message = read_fields(kind, await connect.only_frame(self._request))
        answers = await begun(method(message))

        # The timeout of `Start` is that of the command: the command's end is the stream's.
        if self._timeout_seconds is not None and name != "process.Process/Start":
            answers = _until(answers, self._timeout_seconds)

        return connect.stream_answer(with_beats(answers, _beat_seconds(self._request), beat))

    def _deadline(self) -> _Deadline:
        return _Deadline(self._timeout_seconds)


class _Deadline:
    """Context manager that ends its block with a DeadlineError when the time is over."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError:
            raise DeadlineError(seconds=self._seconds) from None


async def _until(
    messages: AsyncGenerator[dict[str, Any], None], seconds: float
) -> AsyncGenerator[dict[str, Any], None]:
    """Yields messages until a deadline; each is awaited separately, since any task may request it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async with aclosing(messages):
        while True:
            try:
                async with asyncio.timeout_at(end):
                    message = await anext(messages, None)
            except TimeoutError:
                raise DeadlineError(seconds=seconds) from None

            if message is None:
                return

            yield message


def _beat_seconds(request: Request) -> float:
    text = request.headers.get("keepalive-ping-interval", "").strip()

    if not text:
        return _KEEPALIVE_SECONDS

    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise InvalidArgumentError(field="Keepalive-Ping-Interval", value=text, allowed="a number of seconds")

    return max(1.0, float(text))


_ENVS_BYTES = 1 << 20


class Envd:
    """Answers in place of the daemons of all sandboxes.

    Args:
        callers: Finds the backend for a sandbox.
        tokens: The sandboxes' tokens.
        max_upload_bytes: The largest file that is accepted, in bytes.
    """

    def __init__(self, callers: E2BAuthenticator, tokens: SandboxTokens, max_upload_bytes: int) -> None:
        self._callers = callers
        self._tokens = tokens
        self._max_upload_bytes = max_upload_bytes
        self._tags = Tags()
        self._watchers = Watchers()

    async def answer(self, request: Request, sandbox_id: str) -> Response:
        """Answers one request to envd, E2B's daemon in a sandbox, in its place."""
        service, _, method = request.url.path.removeprefix("/").partition("/")

        if method and service in ("process.Process", "filesystem.Filesystem"):
            return await self._called(request, sandbox_id, service, method)

        try:
            self._check(request, sandbox_id)
            return await self._plain(request, sandbox_id)
        except FumehoodError as error:
            return sandbox_answer(error, sandbox_id)

    async def _plain(self, request: Request, sandbox_id: str) -> Response:
        backend = await self._callers.backend_of(sandbox_id, is_visit=signed_path(request) is not None)
        transfers = Transfers(backend, sandbox_id, self._max_upload_bytes)

        match request.method, request.url.path:
            case "GET", "/files":
                return await transfers.download(request)
            case "POST", "/files":
                return await transfers.upload(request)
            case "GET", "/health":
                await wake(backend, sandbox_id)
                return Response(status_code=204)
            case "GET", "/metrics":
                return JSONResponse(await measures_data(backend, sandbox_id))
            case "GET", "/envs":
                return JSONResponse(await _envs(backend, sandbox_id))

        return plain_answer(404, f"no such route: {request.method} {request.url.path[:200]}")

    def _check(self, request: Request, sandbox_id: str) -> None:
        """Checks the token, or for a file the signature of the URL."""
        signed = signed_path(request)

        if signed is None:
            self._tokens.check_access(sandbox_id, request.headers.get("x-access-token"))
        else:
            check_signature(self._tokens, sandbox_id, signed)

    # -- Connect

    async def _called(self, request: Request, sandbox_id: str, service: str, method: str) -> Response:
        is_stream = connect.has_type(request, connect.STREAM_TYPE)

        if request.method != "POST":
            return Response(status_code=405, headers={"Allow": "POST"})

        if not is_stream and not connect.has_type(request, connect.UNARY_TYPE):
            return connect.wrong_type_answer()

        try:
            self._tokens.check_access(sandbox_id, request.headers.get("x-access-token"))
            check_user(user_of(request.headers.get("authorization", "")))
            call = await self._call(request, sandbox_id)
            return await (call.stream if is_stream else call.unary)(f"{service}/{method}")
        except DeadlineError as error:
            return connect.error_stream_answer(error) if is_stream else connect.deadline_answer(error)
        except FumehoodError as error:
            if is_stream and error.code not in DEAD_CODES:
                return connect.error_stream_answer(error)

            return connect_answer(error, sandbox_id)

    async def _call(self, request: Request, sandbox_id: str) -> Call:
        backend = await self._callers.backend_of(sandbox_id)
        timeout_seconds = connect.timeout_of(request)
        processes = ProcessService(backend, sandbox_id, self._tags, timeout_seconds)
        return Call(request, processes, FileService(backend, sandbox_id, self._watchers), timeout_seconds)


def signed_path(request: Request) -> SignedPath | None:
    """Returns the fields of a signed URL, or None if the URL is not signed."""
    query = request.query_params
    operation = {"GET": "read", "POST": "write"}.get(request.method)

    if request.url.path != "/files" or not query.get("signature") or operation is None:
        return None

    return SignedPath(
        query.get("path", ""),
        operation,
        query.get("username", ""),
        query["signature"],
        query.get("signature_expiration", ""),
    )


def check_signature(tokens: SandboxTokens, sandbox_id: str, signed: SignedPath) -> None:
    """Checks that a URL was signed for this sandbox and has not expired.

    Raises:
        UnauthenticatedError: The URL was not signed for this sandbox, or has expired.
    """
    if not tokens.is_signed(sandbox_id, signed):
        raise UnauthenticatedError(reason="the signature does not belong to this sandbox and path")

    signed.check_time()


async def wake(backend: Backend, sandbox_id: str) -> None:
    """Makes a sandbox ready to answer: resumes one that was paused with automatic resume.

    Raises:
        SandboxPausedError: The sandbox stays paused.
    """
    info = await backend.info(sandbox_id)

    if info.state == "ending":
        raise SandboxClosedError(sandbox_id=sandbox_id, reason="killed")

    if info.state == "paused" and not info.auto_resume:
        raise SandboxPausedError(sandbox_id=sandbox_id)

    if info.state == "paused":
        await backend.resume(sandbox_id)


async def _envs(backend: Backend, sandbox_id: str) -> dict[str, str]:
    """Returns the environment that commands see."""
    # Its output has the secrets of the environment, which the history would show to keys that watch.
    spec = ProcessSpec(
        argv=("/usr/bin/env", "-0"), envs=shown_envs(sandbox_id, {}), timeout_seconds=10, is_own=True
    )
    info = await backend.start_process(sandbox_id, spec)
    output = bytearray()

    async with aclosing(backend.process_output(sandbox_id, info.pid)) as events:
        async for event in events:
            if isinstance(event, ProcessOutput) and event.stream == "stdout" and len(output) < _ENVS_BYTES:
                output += event.data

    pairs = (item.partition("=") for item in output.decode("utf-8", "replace").split("\0"))
    return {name: value for name, sign, value in pairs if sign}


class SignedUrls:
    """Finds the sandbox that a URL was signed for, and serves the request.

    Args:
        backend: The sandboxes of all keys.
        tokens: Verifies the tokens of sandboxes.
        envd: Answers for the daemons of sandboxes.
    """

    def __init__(self, backend: Backend, tokens: SandboxTokens, envd: Envd) -> None:
        self._living = _Living(backend)
        self._tokens = tokens
        self._envd = envd

    async def answer(self, request: Request) -> Response:
        """Answers a request by a signed URL."""
        signed = signed_path(request)
        assert signed is not None, "the route takes signed URLs alone"

        try:
            signed.check_form()
            signed.check_time()
            sandbox_id = await self._signer(signed)
        except FumehoodError as error:
            return sandbox_answer(error, "")

        return await self._envd.answer(request, sandbox_id)

    async def _signer(self, signed: SignedPath) -> str:
        for sandbox_id in await self._living.ids():
            if self._tokens.is_signed(sandbox_id, signed):
                return sandbox_id

        raise UnauthenticatedError(reason="no living sandbox has signed this URL")


class _Living:
    """Lists the living sandboxes, once for all requests of the same time.

    A request gets a list that was begun after it arrived: a sandbox that lives when the request arrives is in it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._alone = asyncio.Lock()
        # Numbers of lists: the last one begun, and the one that filled `_ids`.
        self._begun = 0
        self._listed = 0
        self._ids: tuple[str, ...] = ()

    async def ids(self) -> tuple[str, ...]:
        before = self._begun

        async with self._alone:
            if self._listed <= before:
                self._begun += 1
                self._ids = tuple([info.id for info in await self._backend.list()])
                self._listed = self._begun

            return self._ids
