"""The routes of files: uploads, downloads, lists, and the description of one.

An upload is streamed to the store. A file of another key answers like one that does not exist, and so does one of
another entity of the same key when a client names both.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fumehood.dialects.librechat.answers import NotThereError, answering, caller_of
from fumehood.dialects.librechat.bodies import MAX_FILES, is_safe_name
from fumehood.dialects.librechat.stored_files import NewFile, Shelf, described, etag_of, new_session_id
from fumehood.errors import FumehoodError
from fumehood.server.downloads import attachment
from fumehood.server.json_bodies import refused
from fumehood.server.services import Services
from fumehood.server.uploads import FormPart, parts_of
from fumehood.storage.files import StoredFile

_MAX_FIELD_BYTES = 1024
_FIELDS = ("kind", "id", "version", "read_only", "entity_id")


class FileRoutes:
    """Answers the routes of files.

    Args:
        services: The services of the server.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self, prefix: str) -> list[Route]:
        """Returns the routes below a prefix."""
        one = "/{session_id}/{file_id}"
        return [
            Route(f"{prefix}/upload", answering(self._upload), methods=["POST"]),
            Route(f"{prefix}/upload/batch", answering(self._upload_batch), methods=["POST"]),
            Route(f"{prefix}/download{one}", answering(self._download), methods=["GET"]),
            Route(f"{prefix}/files/{{session_id}}", answering(self._list), methods=["GET"]),
            Route(f"{prefix}/files{one}", answering(self._delete), methods=["DELETE"]),
            Route(
                f"{prefix}/sessions/{{session_id}}/objects/{{file_id}}",
                answering(self._object),
                methods=["GET"],
            ),
        ]

    async def _upload(self, request: Request) -> Response:
        shelf = await self._shelf(request)
        session_id, fields = new_session_id(), {}
        stored: list[StoredFile] = []

        async for part in parts_of(request):
            if part.filename is None:
                fields[part.field] = await _field(part)
            else:
                stored.append(await _kept(shelf, session_id, part, fields))

        if not stored:
            raise refused("file", None, "a part that is a file")

        return JSONResponse(
            {
                "message": "success",
                "session_id": session_id,
                "storage_session_id": session_id,
                "files": [{"fileId": file.id, "filename": file.name} for file in stored],
            }
        )

    async def _upload_batch(self, request: Request) -> Response:
        shelf = await self._shelf(request)
        session_id, fields = new_session_id(), {}
        files: list[dict[str, Any]] = []
        is_full = False

        async for part in parts_of(request):
            if part.filename is None:
                fields[part.field] = await _field(part)
                continue

            if is_full := len(files) >= MAX_FILES:
                break

            files.append(await _tried(shelf, session_id, part, fields))

        succeeded = sum(file["status"] == "success" for file in files)
        failed = len(files) - succeeded
        message = "error" if not succeeded else ("partial_success" if failed or is_full else "success")
        body: dict[str, Any] = {
            "message": message,
            "session_id": session_id,
            "storage_session_id": session_id,
            "files": files,
            "succeeded": succeeded,
            "failed": failed,
        }

        if is_full:
            body |= {"filesLimitReached": True, "maxFiles": MAX_FILES}

        return JSONResponse(body, 200 if succeeded else 400)

    async def _download(self, request: Request) -> Response:
        shelf, file = await self._file(request)
        headers = {
            "Content-Length": str(file.size_bytes),
            "Content-Disposition": attachment(file.name),
            "ETag": etag_of(file),
            "Last-Modified": formatdate(file.created_at, usegmt=True),
        }
        return StreamingResponse(await shelf.content(file), headers=headers, media_type=file.content_type)

    async def _list(self, request: Request) -> Response:
        shelf = await self._shelf(request)
        detail = request.query_params.get("detail", "simple")
        files = await shelf.list(request.path_params["session_id"])
        return JSONResponse(
            [described(file, detail) for file in files if _is_for(file, request.query_params)]
        )

    async def _delete(self, request: Request) -> Response:
        shelf, file = await self._file(request)
        await shelf.remove(file)
        return JSONResponse({"message": "success", "session_id": file.session_id, "fileId": file.id})

    async def _object(self, request: Request) -> Response:
        _, file = await self._file(request)
        return JSONResponse(described(file, "full"))

    async def _shelf(self, request: Request) -> Shelf:
        principal = await caller_of(self._services, request)
        return Shelf(self._services, principal.key_id)

    async def _file(self, request: Request) -> tuple[Shelf, StoredFile]:
        shelf = await self._shelf(request)
        # Clients write the object's name as well, which ends with the suffix of the file's.
        file_id = request.path_params["file_id"].partition(".")[0]
        file = await shelf.get(file_id, request.path_params["session_id"])

        if not _is_for(file, request.query_params):
            raise NotThereError(field="file", value=file_id, allowed="a file of the entity that is named")

        return shelf, file


def _is_for(file: StoredFile, query: Mapping[str, str]) -> bool:
    """Returns whether the file is an output, or its kind, id, version and entity_id equal those in the query.

    A field that the file or the query lacks is not compared.
    """
    names = [("kind", "kind"), ("id", "id"), ("version", "version"), ("entity_id", "entity_id")]
    known = file.details
    return known.get("kind") == "output" or all(
        known[ours] == query[theirs] for ours, theirs in names if ours in known and theirs in query
    )


async def _field(part: FormPart) -> str:
    value = bytearray()

    async for piece in part.pieces:
        value += piece

        if len(value) > _MAX_FIELD_BYTES:
            raise refused(part.field, f"{len(value)} bytes", f"at most {_MAX_FIELD_BYTES} bytes")

    return value.decode("utf-8", "replace")


async def _kept(shelf: Shelf, session_id: str, part: FormPart, fields: Mapping[str, str]) -> StoredFile:
    assert part.filename is not None
    details = {name: fields[name] for name in _FIELDS if fields.get(name)}

    if not is_safe_name(part.filename):
        raise refused("filename", part.filename, "a relative name without `..`")

    return await shelf.put(NewFile(session_id=session_id, name=part.filename, details=details), part.pieces)


async def _tried(shelf: Shelf, session_id: str, part: FormPart, fields: Mapping[str, str]) -> dict[str, Any]:
    try:
        file = await _kept(shelf, session_id, part, fields)
        return {"status": "success", "filename": file.name, "fileId": file.id}
    except FumehoodError as error:
        return {"status": "error", "filename": part.filename, "error": error.message}
