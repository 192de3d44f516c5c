"""`/files`: whole files into a sandbox and out of it, by a token or by a signed URL.

A file is sent as an attachment, whatever it holds: shown by a browser it would be a page of this server, written by a
guest.
"""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from fumehood.dialects.e2b import file_service
from fumehood.dialects.e2b.answers import GuestJSON
from fumehood.dialects.e2b.bodies import body_pieces, packed
from fumehood.dialects.e2b.environment import check_user, inside, user_of
from fumehood.dialects.e2b.streams import StreamAnswer, begun
from fumehood.errors import FileError, InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.server.uploads import form_parts, metadata_of
from fumehood.values.checks import check_path
from fumehood.values.requests import ReadFile, StatFile
from fumehood.values.sandbox import FileInfo

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_MAX_PARTS = 1000
# What browsers and E2B's clients write for characters that a quoted name cannot hold.
_ESCAPES = (("%22", '"'), ("%0D", "\r"), ("%0A", "\n"), ("%0d", "\r"), ("%0a", "\n"))


class Transfers:
    """The files of one sandbox, for one request.

    Args:
        backend: The backend as the caller may see it.
        sandbox_id: The sandbox.
        max_bytes: The largest file that is accepted, in bytes.
    """

    def __init__(self, backend: Backend, sandbox_id: str, max_bytes: int) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._max_bytes = max_bytes

    async def download(self, request: Request) -> Response:
        """Sends a file, or the requested part of it.

        Raises:
            FileError: The file cannot be read.
        """
        check_request_user(request)
        path = _path_of(request)
        (info,) = await self._backend.file_call(self._sandbox_id, StatFile(path=path))

        if info.type == "dir":
            raise FileError.from_errno(path=path, operation="read", errno_value=errno.EISDIR)

        headers = {
            "content-type": "application/octet-stream",
            "content-disposition": f"attachment; filename*=UTF-8''{quote(info.name)}",
            "vary": "Accept-Encoding",
        }
        # Some files of the kernel report a size of 0 without being empty.
        wanted = _range_of(request, info.size_bytes) if info.size_bytes else None
        is_packed = wanted is None and _accepts_gzip(request)

        if info.size_bytes and not is_packed:
            return await self._part(path, info.size_bytes, wanted, {**headers, "accept-ranges": "bytes"})

        pieces = await begun(self._backend.read(self._sandbox_id, ReadFile(path=path)))

        if is_packed:
            return StreamAnswer(packed(pieces), {**headers, "content-encoding": "gzip"})

        return StreamAnswer(pieces, headers)

    async def _part(
        self, path: str, size: int, wanted: tuple[int, int] | None, headers: dict[str, str]
    ) -> Response:
        """Yields a file or a part of it, exactly as long as the headers say, even if the file grows."""
        first, end = wanted or (0, size)

        if first >= end:
            return Response(status_code=416, headers={"content-range": f"bytes */{size}"})

        headers["content-length"] = str(end - first)

        if wanted is not None:
            headers["content-range"] = f"bytes {first}-{end - 1}/{size}"

        request = ReadFile(path=path, offset_bytes=first, length_bytes=end - first)
        pieces = await begun(self._backend.read(self._sandbox_id, request))
        return StreamAnswer(_exactly(pieces, end - first), headers, 200 if wanted is None else 206)

    async def upload(self, request: Request) -> Response:
        """Writes the uploaded files, and describes them.

        Raises:
            FileError: A file cannot be written; those before it have been.
        """
        check_request_user(request)
        metadata = metadata_of(request.headers)
        content_type = request.headers.get("content-type", "")
        kind = content_type.partition(";")[0].strip().lower()

        async with aclosing(body_pieces(request, self._max_bytes)) as body:
            if kind == "multipart/form-data":
                written = await self._write_parts(request, content_type, body, metadata)
            elif kind == "application/octet-stream":
                path = _path_of(request)
                written = [await self._backend.write(self._sandbox_id, path, body, metadata=metadata)]
            else:
                raise InvalidArgumentError(
                    field="Content-Type",
                    value=content_type,
                    allowed="multipart/form-data or application/octet-stream",
                )

        return GuestJSON([file_service.written_data(info) for info in written])

    async def _write_parts(
        self,
        request: Request,
        content_type: str,
        body: AsyncGenerator[bytes, None],
        metadata: Mapping[str, str],
    ) -> list[FileInfo]:
        written: list[FileInfo] = []
        given = request.query_params.get("path", "")

        async for part in form_parts(content_type, body):
            if part.field != "file":
                continue

            if len(written) >= _MAX_PARTS or (given and written):
                allowed = "one file where the URL has a path" if given else f"at most {_MAX_PARTS}"
                raise InvalidArgumentError(field="files", value=len(written) + 1, allowed=allowed)

            path = inside(given or file_name(part.filename or ""))
            check_path("path", path)
            written.append(await self._backend.write(self._sandbox_id, path, part.pieces, metadata=metadata))

        if not written:
            raise InvalidArgumentError(field="body", value="no file", allowed="parts with the name `file`")

        return written


def file_name(written: str) -> str:
    """Returns a file's name as it was before the client escaped it for the header of a part."""
    for escape, meant in _ESCAPES:
        written = written.replace(escape, meant)

    return written


def check_request_user(request: Request) -> None:
    """Checks that a request names a user of the sandbox, or none.

    Raises:
        UnauthenticatedError: The user does not exist.
    """
    check_user(request.query_params.get("username", ""))
    check_user(user_of(request.headers.get("authorization", "")))


def _path_of(request: Request) -> str:
    path = request.query_params.get("path", "")

    if not path:
        raise InvalidArgumentError(field="path", value=path, allowed="the path of a file, in the URL's query")

    check_path("path", path)
    return inside(path)


def _range_of(request: Request, size: int) -> tuple[int, int] | None:
    """Returns the first byte and the one after the last; None for the whole file, also for an unknown range."""
    match = _RANGE.fullmatch(request.headers.get("range", "").replace(" ", ""))

    if match is None or "if-range" in request.headers or match[1] == match[2] == "":
        return None

    if not match[1]:
        return max(0, size - int(match[2])), size

    last = int(match[2]) if match[2] else size
    return (int(match[1]), min(last + 1, size)) if last >= int(match[1]) else None


def _accepts_gzip(request: Request) -> bool:
    for item in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = item.partition(";")

        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")

    return False


async def _exactly(pieces: AsyncGenerator[bytes, Any], size: int) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        async for piece in pieces:
            size -= len(piece)
            yield piece

    if size:
        # The file has become shorter meanwhile; the client must not take the part for whole.
        raise FileError.from_errno(path="", operation="read", errno_value=errno.EIO)
