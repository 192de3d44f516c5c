"""The content of files of a sandbox: read, in whole or in part, and written, in pieces of bounded size.

Content comes from a guest: it is sent as an attachment of no type, which no browser runs. These are the routes that a
signed address opens as well.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from fumehood.errors import FileError, PathIsDirectoryError
from fumehood.port.backend import Backend
from fumehood.server.auth import CallersBackend, principal_of
from fumehood.server.downloads import (
    Download,
    Span,
    attachment,
    etag_of,
    is_known,
    last_modified,
    span_of,
    wanted_span,
)
from fumehood.server.problems import no_such_part
from fumehood.server.routes.files import FILE_PROBLEMS, PathQuery, share_of, volume_of
from fumehood.server.routes.guarded import SignableRoute, guarded_router
from fumehood.server.routes.sandboxes import SandboxId, answer, items
from fumehood.server.schemas.files import FileAnswer, FileList
from fumehood.server.schemas.problem import problems
from fumehood.server.services import services_of
from fumehood.server.signed_urls import Grant, principal_behind
from fumehood.server.uploads import files_of, metadata_of, pieces_of
from fumehood.values.requests import ReadFile, StatFile
from fumehood.values.sandbox import FileInfo

router = APIRouter(tags=["files"], prefix="/v1/sandboxes/{sandbox_id}/files", route_class=SignableRoute)
upload_router = guarded_router("files", "/v1/sandboxes/{sandbox_id}/files")
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ANY_TYPE = {"application/octet-stream": _BINARY}
# A token, or a signature in the address.
_SECURITY: list[dict[str, list[str]]] = [{"HTTPBearer": []}, {"APIKeyHeader": []}, {}]
_READ: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole file.", "content": _ANY_TYPE},
    206: {"description": "The part that was asked for.", "content": _ANY_TYPE},
    304: {"description": "The client has this version already."},
}
_LARGEST_BYTES = 1 << 62
_FORM = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {"file": {"type": "array", "items": _BINARY["schema"], "minItems": 1}},
            "required": ["file"],
        }
    }
}


async def _granted(
    request: Request,
    sandbox_id: SandboxId,
    path: PathQuery,
    signature: Annotated[
        str | None, Query(max_length=128, description="With a signed address, in place of a token.")
    ] = None,
    signer: Annotated[str, Query(max_length=64, description="Part of a signed address.")] = "",
    expires: Annotated[int, Query(ge=0, le=253_402_300_799, description="Part of a signed address.")] = 0,
) -> Backend:
    services = services_of(request)

    if signature is None:
        principal = await principal_of(request)
    else:
        method = "PUT" if request.method == "PUT" else "GET"
        grant = Grant(method=method, sandbox_id=sandbox_id, path=path, expires=expires, signer=signer)
        principal = await principal_behind(services, grant, signature)

    principal.require("sandboxes")
    return services.backend_for(principal)


GrantedBackend = Annotated[Backend, Depends(_granted)]


@router.get(
    "/content",
    summary="Read a file",
    response_class=Response,
    responses=FILE_PROBLEMS | _READ | problems(416),
    openapi_extra={"security": _SECURITY},
)
async def read_file(
    sandbox_id: SandboxId, path: PathQuery, backend: GrantedBackend, request: Request
) -> Response:
    """Returns the content of a file; `Range`, `If-Range` and `If-None-Match` are honoured.

    A signed address works in place of a token.
    """
    return await _read(sandbox_id, path, backend, request)


@router.head(
    "/content",
    summary="Describe the content of a file",
    response_class=Response,
    responses=FILE_PROBLEMS | _READ | problems(416),
    openapi_extra={"security": _SECURITY},
)
async def head_file(
    sandbox_id: SandboxId, path: PathQuery, backend: GrantedBackend, request: Request
) -> Response:
    """Returns the headers of `read_file`, without the content."""
    return await _read(sandbox_id, path, backend, request)


@router.put(
    "/content",
    summary="Write a file",
    response_model=FileAnswer,
    responses=FILE_PROBLEMS | problems(408),
    openapi_extra={"security": _SECURITY, "requestBody": {"content": _ANY_TYPE, "required": True}},
)
async def write_file(
    sandbox_id: SandboxId, path: PathQuery, backend: GrantedBackend, request: Request
) -> Response:
    """Writes the body of the request to a file, and makes its parent folders.

    An existing file is replaced when the whole body has arrived.

    Headers `X-Metadata-NAME` become the metadata of the file. A signed address works in place of a token.
    """
    metadata = metadata_of(request.headers)
    return answer(await backend.write(sandbox_id, path, pieces_of(request), metadata=metadata))


@upload_router.post(
    "",
    summary="Upload files",
    status_code=201,
    response_model=FileList,
    responses=FILE_PROBLEMS | problems(408),
    openapi_extra={"requestBody": {"content": _FORM, "required": True}},
)
async def upload_files(
    sandbox_id: SandboxId, backend: CallersBackend, request: Request, path: PathQuery = "."
) -> Response:
    """Writes the files of a form into a directory, one after the other, each under the file name of its part.

    If one fails, the files before it have been written.
    """
    written: list[FileInfo] = []

    async with aclosing(files_of(request)) as files:
        async for name, pieces in files:
            written.append(await backend.write(sandbox_id, posixpath.join(path, name), pieces))

    answered = items(written)
    answered.status_code = 201
    return answered


async def _read(sandbox_id: str, path: str, backend: Backend, request: Request) -> Response:
    if share := share_of(request):
        # Nothing else is asked first: it would resume a paused sandbox.
        part = span_of(request.headers, _LARGEST_BYTES) or Span(0, _LARGEST_BYTES)
        wanted = ReadFile(path=path, offset_bytes=part.start, length_bytes=part.size, share=share)
        return await _download(
            backend.read(sandbox_id, wanted), {"Content-Type": "application/octet-stream"}, 200
        )

    try:
        (info,) = await backend.file_call(sandbox_id, StatFile(path=path))
    except FileError as error:
        # The caller asked to read the file; that it is described first is a detail of ours.
        raise FileError.from_errno(path=path, operation="read", errno_value=error.errno or 0) from None

    if info.type == "dir":
        raise PathIsDirectoryError(path=path, operation="read", errno_value=errno.EISDIR)

    etag = etag_of(info)

    if is_known(request.headers, etag):
        return Response(status_code=304, headers={"ETag": etag})

    span = wanted_span(request.headers, info, etag)

    if span is not None and not span.size:
        return no_such_part(request, "file", info.size_bytes)

    if request.method == "HEAD":
        return Response(status_code=200 if span is None else 206, headers=_headers(info, etag, span))

    whole = Span(0, info.size_bytes) if span is None else span
    # Files of /proc report a size of 0 without being empty.
    length_bytes = whole.size if info.size_bytes else None
    wanted = ReadFile(
        path=path, offset_bytes=whole.start, length_bytes=length_bytes, volume=volume_of(request)
    )
    return await _download(
        backend.read(sandbox_id, wanted), _headers(info, etag, span), 200 if span is None else 206
    )


async def _download(pieces: AsyncGenerator[bytes, None], headers: dict[str, str], status: int) -> Response:
    try:
        # An error raised here becomes a response with its own status.
        first = await anext(pieces, b"")
    except BaseException:
        await pieces.aclose()
        raise

    return Download(first, pieces, headers, status)


def _headers(info: FileInfo, etag: str, span: Span | None) -> dict[str, str]:
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": attachment(info.name),
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
        "Accept-Ranges": "bytes",
        "ETag": etag,
    }

    if (modified := last_modified(info)) is not None:
        headers["Last-Modified"] = modified

    if info.size_bytes:
        headers["Content-Length"] = str(info.size_bytes if span is None else span.size)

    if span is not None:
        headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{info.size_bytes}"

    return headers
