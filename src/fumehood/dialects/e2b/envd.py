"""envd, E2B's daemon in a sandbox (port 49983), answered by this server: files, commands, health.

Every request except for a correctly signed URL needs the sandbox's access token.
"""

from __future__ import annotations

from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.dialects.e2b import connect
from fumehood.dialects.e2b.answers import DEAD_CODES, connect_answer, plain_answer, sandbox_answer
from fumehood.dialects.e2b.callers import Callers
from fumehood.dialects.e2b.calls import Call
from fumehood.dialects.e2b.connect import DeadlineError
from fumehood.dialects.e2b.file_service import FileService
from fumehood.dialects.e2b.paths import check_user, user_of
from fumehood.dialects.e2b.process_service import ProcessService, Tags
from fumehood.dialects.e2b.sandbox_words import measures_data
from fumehood.dialects.e2b.surroundings import shown_envs
from fumehood.dialects.e2b.tokens import SandboxTokens, SignedPath
from fumehood.dialects.e2b.transfers import Transfers
from fumehood.dialects.e2b.watchers import Watchers
from fumehood.errors import FumehoodError, SandboxClosedError, SandboxPausedError, UnauthenticatedError
from fumehood.port.backend import Backend
from fumehood.values.requests import ProcessOutput, ProcessSpec

_ENVS_BYTES = 1 << 20


class Envd:
    """Answers in place of the daemons of all sandboxes.

    Args:
        callers: Finds the backend for a sandbox.
        tokens: The sandboxes' tokens.
        max_upload_bytes: The largest file that is taken.
    """

    def __init__(self, callers: Callers, tokens: SandboxTokens, max_upload_bytes: int) -> None:
        self._callers = callers
        self._tokens = tokens
        self._max_upload_bytes = max_upload_bytes
        self._tags = Tags()
        self._watchers = Watchers()

    async def answer(self, request: Request, sandbox_id: str) -> Response:
        """Answers one request to a sandbox's daemon."""
        service, _, method = request.url.path.removeprefix("/").partition("/")

        if method and service in ("process.Process", "filesystem.Filesystem"):
            return await self._called(request, sandbox_id, service, method)

        try:
            self._check(request, sandbox_id)
            return await self._plain(request, sandbox_id)
        except FumehoodError as error:
            return sandbox_answer(error, sandbox_id)

    async def _plain(self, request: Request, sandbox_id: str) -> Response:
        backend = await self._callers.backend_of(sandbox_id)
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
        UnauthenticatedError: It was not, or it has.
    """
    if not tokens.is_signed(sandbox_id, signed):
        raise UnauthenticatedError(reason="the signature does not belong to this sandbox and path")

    signed.check_time()


async def wake(backend: Backend, sandbox_id: str) -> None:
    """Makes a sandbox ready to answer: resumes one that was paused with automatic resume.

    Raises:
        SandboxPausedError: It stays paused.
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
    spec = ProcessSpec(argv=("/usr/bin/env", "-0"), envs=shown_envs(sandbox_id, {}), timeout_seconds=10)
    info = await backend.start_process(sandbox_id, spec)
    output = bytearray()

    async with aclosing(backend.process_output(sandbox_id, info.pid)) as events:
        async for event in events:
            if isinstance(event, ProcessOutput) and event.stream == "stdout" and len(output) < _ENVS_BYTES:
                output += event.data

    pairs = (item.partition("=") for item in output.decode("utf-8", "replace").split("\0"))
    return {name: value for name, sign, value in pairs if sign}
