"""Saved states: a sandbox as one file, and a sandbox made from such a file.

Translation, with at most one piece of a state in memory: an upload is stored in a temporary file while it is loaded,
since it is read from its end.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from fastapi import Request
from pydantic import ValidationError
from starlette.responses import Response

from fumehood.errors import InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.server.auth import CallersBackend
from fumehood.server.downloads import Download
from fumehood.server.responses import GONE, unless_gone
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.sandboxes import LoadedAnswer, LoadOptions
from fumehood.server.uploads import FormPart, parts_of
from fumehood.values.requests import LoadRequest

router = guarded_router("saved", "/v1/sandboxes")
_MAX_OPTIONS_BYTES = 2 << 20
_HEADERS = {
    "Content-Type": "application/octet-stream",
    "Content-Disposition": 'attachment; filename="sandbox.fumehood"',
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_FORM = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {
                "options": {"type": "string", "description": "What it should be, as JSON; may be left out."},
                "state": _BINARY["schema"],
            },
            "required": ["state"],
        }
    }
}


@router.post(
    "/{sandbox_id}/save",
    summary="Save a sandbox",
    response_class=Response,
    responses=SANDBOX_PROBLEMS
    | {200: {"description": "The saved state.", "content": {"application/octet-stream": _BINARY}}},
)
async def save_sandbox(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Returns the lasting parts of a sandbox as one file: files, environment, records, serialised variables.

    Its member `manifest.json` lists its parts, and the parts that were left out with the reasons. The sandbox
    continues. An incomplete answer cannot be loaded.
    """
    pieces = backend.save(sandbox_id)
    try:
        # An error raised here becomes a response with its own status.
        first = await anext(pieces, b"")
    except BaseException:
        await pieces.aclose()
        raise

    return Download(first, pieces, _HEADERS)


@router.post(
    "/load",
    summary="Load a saved sandbox",
    status_code=201,
    response_model=LoadedAnswer,
    responses=problems(400, 401, 403, 408, 409, 413, 422, 429, 503),
    openapi_extra={"requestBody": {"content": _FORM, "required": True}},
)
async def load_sandbox(backend: CallersBackend, request: Request) -> Response:
    """Creates a sandbox from a saved state, which is sent as the part `state` of a form, after the part `options`.

    If a step fails, no sandbox is left. Its records begin with the cells of the saved state.
    """
    return await load_for(backend, request, "")


async def load_for(backend: Backend, request: Request, owner: str) -> Response:
    """Makes a sandbox from the saved state in a request, owned by `owner`."""
    async with _received(request) as (wish, path):
        wish = replace(wish, spec=replace(wish.spec, owner=owner))
        loaded = await unless_gone(request, backend.load(wish, path))

    return Response(status_code=GONE) if loaded is None else answer(loaded, 201)


@asynccontextmanager
async def _received(request: Request) -> AsyncIterator[tuple[LoadRequest, str]]:
    """Yields the options of an upload and the path of a temporary file with the state; the file ends with the block."""
    wish = LoadRequest()

    with tempfile.TemporaryDirectory(prefix="fumehood-") as folder:
        path = os.path.join(folder, "state")
        is_there = False

        async with aclosing(parts_of(request)) as parts:
            async for part in parts:
                if part.filename is None and part.field == "options":
                    wish = _options(await _content(part))
                elif part.filename is not None and not is_there:
                    is_there = True
                    await _write(part, path)
                else:
                    raise _refused(part.filename or part.field)

        if not is_there:
            raise _refused("no state")

        yield wish, path


async def _content(part: FormPart) -> bytes:
    content = bytearray()

    async for piece in part.pieces:
        content += piece

        if len(content) > _MAX_OPTIONS_BYTES:
            raise _refused("options that are too long")

    return bytes(content)


async def _write(part: FormPart, path: str) -> None:
    with open(path, "xb") as file:
        async for piece in part.pieces:
            await asyncio.to_thread(file.write, piece)


def _options(content: bytes) -> LoadRequest:
    try:
        return LoadOptions.model_validate_json(content).request()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "options"
        raise InvalidArgumentError(
            field=f"options.{where}"[:200], value=first.get("input"), allowed=first["msg"]
        ) from None


def _refused(value: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        field="body",
        value=value,
        allowed="a form with the part `state`, and before it, if need be, `options`",
    )
