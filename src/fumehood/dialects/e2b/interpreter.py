"""E2B's code interpreter in a sandbox (port 49999), answered by this server: code and contexts.

`/execute` brings the access token; the routes of contexts bring only the traffic token, so either opens both. When a
client disconnects, its code is interrupted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from pydantic import Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from fumehood.dialects.e2b.answers import plain_answer, sandbox_answer
from fumehood.dialects.e2b.auth import E2BAuthenticator, SandboxTokens
from fumehood.dialects.e2b.bodies import json_body
from fumehood.dialects.e2b.envd import wake
from fumehood.dialects.e2b.environment import inside, shown_envs
from fumehood.dialects.e2b.inside import InsideInterpreters, is_from_inside
from fumehood.dialects.e2b.messages import ClientMessage, TextMap
from fumehood.dialects.e2b.results import KEEPALIVE_LINE, event_lines
from fumehood.dialects.e2b.streams import StreamAnswer, begun, with_beats
from fumehood.errors import FumehoodError, InvalidArgumentError, PathNotFoundError
from fumehood.port.backend import Backend
from fumehood.server.json_bodies import Text
from fumehood.server.responses import rendered, unless_gone
from fumehood.values.events import Event
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.languages import CONTEXT_LANGUAGES, find_language
from fumehood.values.requests import (
    ContextCall,
    CreateContext,
    ExecuteRequest,
    ListContexts,
    MakeDir,
    RemoveContext,
    RestartContext,
)
from fumehood.values.sandbox import ContextInfo

_KEEPALIVE_SECONDS = 5.0
_JAVASCRIPT = "javascript"
_HOME_OF_ROOT = "/root"
# Names that E2B has for languages which are kernels of Jupyter here.
_KERNELS = {"deno": "kernel:deno"}


class InterpreterApp:
    """Answers in place of the code interpreters of all sandboxes.

    Args:
        callers: Finds the backend for a sandbox.
        tokens: The sandboxes' tokens.
        inside: Sends requests of programs in the sandboxes in the same way.
    """

    def __init__(self, callers: E2BAuthenticator, tokens: SandboxTokens, inside: InsideInterpreters) -> None:
        self._inside = inside
        self._callers = callers
        self._tokens = tokens

    async def answer(self, request: Request, sandbox_id: str) -> Response:
        """Answers one request to a sandbox's interpreter."""
        try:
            self._tokens.check_traffic(
                sandbox_id,
                request.headers.get("x-access-token"),
                request.headers.get("e2b-traffic-access-token"),
            )
            # A guest must not use up the requests of its key.
            backend = await self._callers.backend_of(sandbox_id, is_from_inside=is_from_inside(request))
            await self._inside.ensure_for(sandbox_id, request.app)
            return await self._routed(request, _Session(backend, sandbox_id))
        except FumehoodError as error:
            return sandbox_answer(error, sandbox_id)

    async def _routed(self, request: Request, session: _Session) -> Response:
        match request.method, request.url.path.rstrip("/").split("/")[1:]:
            case "GET", ["health"]:
                return await session.health()
            case "POST", ["execute"]:
                return await session.execute(request, await json_body(request, _NewExecution))
            case "GET", ["contexts"]:
                return await session.list_contexts()
            case "POST", ["contexts"]:
                return await session.create_context(await json_body(request, _NewContext))
            case "POST", ["contexts", context_id, "restart"]:
                return await session.change_context(RestartContext(context_id=context_id))
            case "DELETE", ["contexts", context_id]:
                return await session.change_context(RemoveContext(context_id=context_id))

        return plain_answer(404, f"no such route: {request.method} {request.url.path[:200]}")


class _NewExecution(ClientMessage):
    code: Text = ""
    language: Text = ""
    context_id: Text = ""
    env_vars: TextMap = Field(default_factory=dict)


class _NewContext(ClientMessage):
    language: Text = ""
    cwd: Text = ""


class _Session:
    """Answers one request to the interpreter of one sandbox."""

    def __init__(self, backend: Backend, sandbox_id: str) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id

    async def health(self) -> Response:
        await wake(self._backend, self._sandbox_id)
        return PlainTextResponse("OK")

    async def execute(self, request: Request, body: _NewExecution) -> Response:
        asked = await self._request(body)
        events = self._backend.execute(self._sandbox_id, asked)
        # Code that waits for other code has not begun, and its client may disconnect meanwhile.
        started = await unless_gone(request, begun(events))

        if started is None:
            raise ClientDisconnect

        lines = with_beats(_lines(started, asked.language), _KEEPALIVE_SECONDS, KEEPALIVE_LINE)
        return StreamAnswer(lines, {"content-type": "application/x-ndjson"})

    async def list_contexts(self) -> Response:
        found = list(await self._call(ListContexts()))

        if all(info.id != _JAVASCRIPT for info in found):
            # At E2B it has begun with the sandbox; here it begins when it is first used.
            found.insert(1, ContextInfo(id=_JAVASCRIPT, language=_JAVASCRIPT, cwd=HOME_PATH))

        return JSONResponse([_context_data(info) for info in found])

    async def create_context(self, body: _NewContext) -> Response:
        cwd = _folder(body.cwd) if body.cwd else None
        call = CreateContext(language=_language(body.language), cwd=cwd)
        try:
            (info,) = await self._call(call)
        except PathNotFoundError:
            if not call.cwd:
                raise

            # E2B takes folders that are not there.
            await self._backend.file_call(self._sandbox_id, MakeDir(path=call.cwd))
            (info,) = await self._call(call)

        return JSONResponse(_context_data(info), 201)

    async def change_context(self, call: RestartContext | RemoveContext) -> Response:
        await self._call(call)
        return Response(status_code=204)

    async def _request(self, body: _NewExecution) -> ExecuteRequest:
        context_id = body.context_id or None
        language = body.language

        if context_id and language:
            raise InvalidArgumentError(
                field="language", value=language, allowed="nothing where a context is given: that has its own"
            )

        if context_id:
            language = await self._language_of(context_id)
            # The default one of a language: it is made now if it is not there.
            context_id = None if context_id == language else context_id
        else:
            language = _language(language)

        return ExecuteRequest(
            code=body.code,
            language=language,
            context_id=context_id,
            envs=shown_envs(self._sandbox_id, body.env_vars),
        )

    async def _language_of(self, context_id: str) -> str:
        """Returns the language of a context; for an unknown context the execution raises the error."""
        found = await self._call(ListContexts())
        of_default = context_id if context_id == _JAVASCRIPT else "python"
        return next((info.language for info in found if info.id == context_id), of_default)

    async def _call(self, call: ContextCall) -> tuple[ContextInfo, ...]:
        return await self._backend.context_call(self._sandbox_id, call)


def _folder(path: str) -> str:
    """Returns the working directory for a context: /root, the home at E2B, is replaced by the home here."""
    own = inside(path)
    return HOME_PATH + own.removeprefix(_HOME_OF_ROOT) if f"{own}/".startswith(f"{_HOME_OF_ROOT}/") else own


def _language(name: str) -> str:
    known = name.strip().lower() or "python"
    language = find_language(_KERNELS.get(known, known))

    if language is None:
        names = " or ".join(repr(one) for one in CONTEXT_LANGUAGES)
        raise InvalidArgumentError(field="language", value=name, allowed=f"{names} on this server")

    return language.name


def _context_data(info: ContextInfo) -> dict[str, Any]:
    names = (name for name, kernel in _KERNELS.items() if kernel == info.language)
    return {"id": info.id, "language": next(names, info.language), "cwd": info.cwd}


async def _lines(events: AsyncGenerator[Event, None], language: str) -> AsyncGenerator[bytes, None]:
    encode = partial(event_lines, language=language)

    async with aclosing(events):
        async for event in events:
            if lines := await rendered(event, encode):
                yield lines
