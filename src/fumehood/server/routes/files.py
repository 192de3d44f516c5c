"""Files of a sandbox: described, listed, made, moved, removed, watched.

`content.py` reads and writes the content of files; nothing here opens a path of the host.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Query, Request
from starlette.responses import Response

from fumehood.server.auth import CallersBackend, ServicesOf, principal_of, until_refused
from fumehood.server.openapi import stream_of
from fumehood.server.responses import Line, stream_response
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer, items
from fumehood.server.schemas.base import GuestPath
from fumehood.server.schemas.files import (
    FileAnswer,
    FileList,
    NewDirectory,
    Renaming,
    SettledWatch,
    SignedUrl,
    SigningRequest,
)
from fumehood.server.schemas.problem import problems
from fumehood.server.services import Services, services_of
from fumehood.server.signed_urls import Grant, signing_secret
from fumehood.values.plain_data import as_data
from fumehood.values.requests import ListFiles, MakeDir, RemoveFile, RenameFile, StatFile, WatchFiles
from fumehood.values.sandbox import FileChange

router = guarded_router("files", "/v1/sandboxes/{sandbox_id}/files")
PathQuery = Annotated[GuestPath, Query(description="Path in the sandbox; relative ones start at /home/user.")]
FILE_PROBLEMS = SANDBOX_PROBLEMS | problems(413, 507)
_MAX_ID_CHARACTERS = 64
_WITH_BODY = FILE_PROBLEMS | problems(400)


@router.get("", summary="List a directory", response_model=FileList, responses=FILE_PROBLEMS)
async def list_files(
    sandbox_id: SandboxId,
    backend: CallersBackend,
    path: PathQuery = ".",
    depth: Annotated[int, Query(ge=1, le=64, description="How many levels deep.")] = 1,
    *,
    request: Request,
) -> Response:
    """Lists the entries below a directory, sorted by path."""
    wanted = ListFiles(path=path, depth=depth, share=share_of(request))
    return items(await backend.file_call(sandbox_id, wanted))


def share_of(request: Request) -> str:
    """Returns the share for whose reader the request is made, as a server tells its host daemon; empty at a server."""
    return _named_by_server(request, "x-fumehood-share")


def volume_of(request: Request) -> str:
    """Returns the volume that the request keeps up to date, as a server tells its host daemon; empty at a server."""
    return _named_by_server(request, "x-fumehood-volume")


def _named_by_server(request: Request, header: str) -> str:
    if isinstance(services_of(request), Services):
        return ""

    return request.headers.get(header, "")[:_MAX_ID_CHARACTERS]


@router.delete(
    "",
    summary="Remove a file or directory",
    status_code=204,
    response_class=Response,
    responses=FILE_PROBLEMS,
)
async def remove_file(sandbox_id: SandboxId, path: PathQuery, backend: CallersBackend) -> Response:
    """Removes a file, or a directory with its content."""
    await backend.file_call(sandbox_id, RemoveFile(path=path))
    return Response(status_code=204)


@router.get("/info", summary="Describe a path", response_model=FileAnswer, responses=FILE_PROBLEMS)
async def describe_file(sandbox_id: SandboxId, path: PathQuery, backend: CallersBackend) -> Response:
    """Describes a file or directory; links are followed."""
    (info,) = await backend.file_call(sandbox_id, StatFile(path=path))
    return answer(info)


@router.post(
    "/directories",
    summary="Make a directory",
    status_code=201,
    response_model=FileAnswer,
    responses=_WITH_BODY,
)
async def make_directory(sandbox_id: SandboxId, body: NewDirectory, backend: CallersBackend) -> Response:
    """Makes a directory and its parents; status 409 if the path exists already."""
    (info,) = await backend.file_call(sandbox_id, MakeDir(path=body.path))
    return answer(info, 201)


@router.post("/rename", summary="Rename a file or directory", response_model=FileAnswer, responses=_WITH_BODY)
async def rename_file(sandbox_id: SandboxId, body: Renaming, backend: CallersBackend) -> Response:
    """Moves a file or directory within the sandbox, and describes it at its new path."""
    call = RenameFile(source=body.source, destination=body.destination)
    (info,) = await backend.file_call(sandbox_id, call)
    return answer(info)


def _watch(
    path: PathQuery = ".",
    recursive: Annotated[bool, Query(description="With all directories below.")] = False,
    entries: Annotated[bool, Query(description="Describe in each change what is there.")] = False,
    name: Annotated[str, Query(max_length=255, description="A name by which the watch can be settled.")] = "",
) -> WatchFiles:
    return WatchFiles(path=path, recursive=recursive, entries=entries, name=name)


@router.get(
    "/watch",
    summary="Watch a directory",
    response_class=Response,
    responses=FILE_PROBLEMS
    | {200: {"description": "Changes as they happen.", "content": stream_of("WatchLine")}},
)
async def watch_directory(
    sandbox_id: SandboxId,
    backend: CallersBackend,
    request: Request,
    wanted: Annotated[WatchFiles, Depends(_watch)],
) -> Response:
    """Streams each change below a directory as a line, until the client disconnects.

    The first line is `watching`: every change after it is reported. At most 10,000 changes are kept for a slow reader.
    """
    changes = await backend.watch(sandbox_id, wanted)
    return await stream_response(request, _lines(wanted.path, changes), until_refused=until_refused)


@router.post("/watch/settle", summary="Settle a watch", response_model=SettledWatch, responses=FILE_PROBLEMS)
async def settle_watch(
    sandbox_id: SandboxId,
    backend: CallersBackend,
    name: Annotated[str, Query(min_length=1, max_length=255, description="The name given to the watch.")],
) -> Response:
    """Makes a named watch report all changes up to now, and returns how many changes it has had.

    A reader of the watch that has received this many changes has missed none.
    """
    return answer({"changes": await backend.settle_watch(sandbox_id, name)})


@router.post("/sign", summary="Sign an address", response_model=SignedUrl, responses=_WITH_BODY)
async def sign(
    sandbox_id: SandboxId,
    body: SigningRequest,
    backend: CallersBackend,
    services: ServicesOf,
    request: Request,
) -> Response:
    """Returns an address with which one file can be read or written for a time, without a token.

    The address expires after that time, and ends with the sandbox and with the key that requested it. The file need not
    exist yet.
    """
    # Only a caller that may use the sandbox may sign for it.
    await backend.info(sandbox_id)
    principal = await principal_of(request)
    grant = Grant(
        method=body.method,
        sandbox_id=sandbox_id,
        path=body.path,
        expires=int(time.time()) + body.expires_in_seconds,
        signer=principal.key_id,
    )
    base = services.settings.public_url or str(request.base_url)
    place = f"{base.rstrip('/')}/v1/sandboxes/{sandbox_id}/files/content"
    expires_at = datetime.fromtimestamp(grant.expires, UTC)
    url = f"{place}?{grant.query(signing_secret(services.state))}"
    return answer({"url": url, "method": body.method, "expires_at": expires_at})


async def _lines(path: str, changes: AsyncGenerator[FileChange, None]) -> AsyncGenerator[Line, None]:
    async with aclosing(changes):
        yield {"type": "watching", "path": path}

        async for change in changes:
            data = as_data(change)
            assert isinstance(data, dict)
            yield {"type": "change", **data}
