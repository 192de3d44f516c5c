"""The routes of the dialect: those of OpenAI's containers and of their files, at `/v1/containers`.

A container of another key answers like one that does not exist. Files are read and written inside the sandbox,
streamed, and only below the folder of a container's files.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from fumehood.dialects.openai.answers import UnknownFileError, answering, backend_of
from fumehood.dialects.openai.bodies import (
    NewContainer,
    container_data,
    file_data,
    is_container,
    page,
    path_of,
    path_of_upload,
    sandbox_id_of,
)
from fumehood.errors import PathNotFoundError
from fumehood.port.backend import Backend
from fumehood.server.downloads import attachment
from fumehood.server.json_bodies import read_body, refused
from fumehood.server.services import Services
from fumehood.server.uploads import parts_of
from fumehood.values.guest_paths import DATA_PATH
from fumehood.values.requests import ListFiles, ReadFile, RemoveFile, StatFile
from fumehood.values.sandbox import FileInfo

_DEPTH = 16
_REMEMBERED = 100_000


class ContainerRoutes:
    """Answers the routes of containers.

    Args:
        services: The services of the server.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        # The files that users have uploaded; a file that code makes afterwards at the same path is the code's.
        self._uploaded: LRUCache[tuple[str, str], FileInfo] = LRUCache(_REMEMBERED)

    def routes(self) -> list[Route]:
        """Returns the routes."""
        one = "/v1/containers/{container_id}"
        return [
            Route("/v1/containers", answering(self._create), methods=["POST"]),
            Route("/v1/containers", answering(self._list), methods=["GET"]),
            Route(one, answering(self._retrieve), methods=["GET"]),
            Route(one, answering(self._delete), methods=["DELETE"]),
            Route(f"{one}/files", answering(self._upload), methods=["POST"]),
            Route(f"{one}/files", answering(self._files), methods=["GET"]),
            Route(f"{one}/files/{{file_id}}", answering(self._file), methods=["GET"]),
            Route(f"{one}/files/{{file_id}}", answering(self._remove), methods=["DELETE"]),
            Route(f"{one}/files/{{file_id}}/content", answering(self._content), methods=["GET"]),
        ]

    async def _create(self, request: Request) -> Response:
        backend = await backend_of(self._services, request)
        spec = read_body(NewContainer, await request.body()).spec()
        return JSONResponse(container_data(await backend.create(spec)))

    async def _list(self, request: Request) -> Response:
        backend = await backend_of(self._services, request)
        name = request.query_params.get("name")
        infos = sorted(await backend.list(), key=lambda info: (info.started_at, info.id))
        found = [container_data(info) for info in infos if is_container(info)]
        return JSONResponse(page([one for one in found if name in (None, one["name"])], request.query_params))

    async def _retrieve(self, request: Request) -> Response:
        backend, sandbox_id = await self._container(request)
        return JSONResponse(container_data(await backend.info(sandbox_id)))

    async def _delete(self, request: Request) -> Response:
        backend, sandbox_id = await self._container(request)
        await backend.info(sandbox_id)
        await backend.kill(sandbox_id)
        answer = {"id": request.path_params["container_id"], "object": "container.deleted", "deleted": True}
        return JSONResponse(answer)

    async def _upload(self, request: Request) -> Response:
        backend, sandbox_id = await self._container(request)

        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise refused("file_id", "", "nothing: send the file itself, as multipart/form-data")

        stored: FileInfo | None = None

        async for part in parts_of(request):
            if part.filename is not None and stored is None:
                stored = await backend.write(sandbox_id, path_of_upload(part.filename), part.pieces)

        if stored is None:
            raise refused("file", None, "a part that is a file")

        self._remember(sandbox_id, stored)
        return JSONResponse(file_data(stored, request.path_params["container_id"], is_users=True))

    async def _files(self, request: Request) -> Response:
        backend, sandbox_id = await self._container(request)

        try:
            entries = await backend.file_call(sandbox_id, ListFiles(path=DATA_PATH, depth=_DEPTH))
        except PathNotFoundError:
            entries = ()

        files = [entry for entry in entries if _is_plain(entry)]
        files.sort(
            key=lambda entry: (entry.modified_at is not None and entry.modified_at.timestamp(), entry.path)
        )
        return JSONResponse(
            page([self._described(sandbox_id, file, request) for file in files], request.query_params)
        )

    async def _file(self, request: Request) -> Response:
        _, sandbox_id, info = await self._found(request)
        return JSONResponse(self._described(sandbox_id, info, request))

    async def _remove(self, request: Request) -> Response:
        backend, sandbox_id, info = await self._found(request)
        await backend.file_call(sandbox_id, RemoveFile(path=info.path))
        answer = {"id": request.path_params["file_id"], "object": "container.file.deleted", "deleted": True}
        return JSONResponse(answer)

    async def _content(self, request: Request) -> Response:
        backend, sandbox_id, info = await self._found(request)
        chunks = backend.read(sandbox_id, ReadFile(path=info.path))
        # An error of the first piece can still become the status of the response.
        first = await anext(chunks, b"")

        async def content() -> AsyncGenerator[bytes, None]:
            async with aclosing(chunks):
                yield first

                async for chunk in chunks:
                    yield chunk

        headers = {"Content-Disposition": attachment(info.name), "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(content(), headers=headers, media_type="application/octet-stream")

    async def _container(self, request: Request) -> tuple[Backend, str]:
        backend = await backend_of(self._services, request)
        return backend, sandbox_id_of(request.path_params["container_id"])

    async def _found(self, request: Request) -> tuple[Backend, str, FileInfo]:
        backend, sandbox_id = await self._container(request)
        file_id = request.path_params["file_id"]
        (info,) = await backend.file_call(sandbox_id, StatFile(path=path_of(file_id)))

        if not _is_plain(info):
            raise UnknownFileError(
                field="file_id", value=file_id, allowed="the id of a file of this container"
            )

        return backend, sandbox_id, info

    def _described(self, sandbox_id: str, info: FileInfo, request: Request) -> dict[str, object]:
        uploaded = self._uploaded.get((sandbox_id, info.path))
        is_users = uploaded is not None and (uploaded.size_bytes, uploaded.modified_at) == (
            info.size_bytes,
            info.modified_at,
        )
        return file_data(info, request.path_params["container_id"], is_users=is_users)

    def _remember(self, sandbox_id: str, info: FileInfo) -> None:
        self._uploaded[sandbox_id, info.path] = info


def _is_plain(entry: FileInfo) -> bool:
    return entry.type == "file" and entry.symlink_target is None


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of a server that keeps containers as OpenAI does."""
    return [*ContainerRoutes(services).routes()]
