"""Bodies of uploads, piece by piece: at most the latest piece of a file is in memory.

The bytes are hostile; a client that stops sending in the middle is dropped after a while, and the data that it has sent
is discarded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request

from fumehood.errors import InvalidArgumentError
from fumehood.server.admission import sent_while_right_lasts
from fumehood.values.checks import check_metadata

_STALL_SECONDS = 60.0
_MAX_PARTS = 1000
_METADATA = "x-metadata-"


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """One file of a form; `pieces` must be read to its end before the next file is requested."""

    name: str
    pieces: AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form: a file, or a field, whose `filename` is None.

    Attributes:
        field: The name of the field.
        filename: The name of the file.
        pieces: The content; pieces that are not read before the next part is requested are skipped.
    """

    field: str
    filename: str | None
    pieces: AsyncGenerator[bytes, None]


def metadata_of(headers: Headers) -> dict[str, str]:
    """Returns the metadata for a file in the headers of a request.

    Raises:
        InvalidArgumentError: The metadata is too large or invalid.
    """
    found = {name[len(_METADATA) :]: value for name, value in headers.items() if name.startswith(_METADATA)}
    check_metadata(found)
    return found


async def pieces_of(request: Request) -> AsyncGenerator[bytes, None]:
    """Yields a request's body as it arrives.

    Raises:
        FumehoodError: The caller's credential stopped being valid while it sent the body.
        HTTPException: With status 408: no data arrived for a minute.
        ClientDisconnect: The client has gone.
    """
    stream = sent_while_right_lasts(request.stream())

    while True:
        try:
            async with asyncio.timeout(_STALL_SECONDS):
                piece = await anext(stream, None)
        except TimeoutError:
            raise HTTPException(408, f"nothing came for {_STALL_SECONDS:g} s") from None

        if piece is None:
            return

        if piece:
            yield piece


async def files_of(request: Request) -> AsyncGenerator[tuple[str, AsyncGenerator[bytes, None]], None]:
    """Yields the name and the content of each file of a multipart form.

    Raises:
        InvalidArgumentError: The body is not a multipart form, or has a part that is not a file.
    """
    count = 0

    async for part in parts_of(request):
        if part.filename is None:
            raise _refused("body", "a part that is no file")

        count += 1
        yield part.filename, part.pieces

    if not count:
        raise _refused("body", "a form without files")


async def parts_of(request: Request) -> AsyncGenerator[FormPart, None]:
    """Yields the parts of a multipart form, fields and files; checks that file names stay below the folder.

    Raises:
        InvalidArgumentError: The body is not a multipart form, has too many parts, or a file name leads out of the
            folder.
    """
    count = 0

    async for part in form_parts(request.headers.get("content-type", ""), pieces_of(request)):
        count += 1

        if count > _MAX_PARTS:
            raise InvalidArgumentError(
                field="body", value=f"{count} parts", allowed=f"at most {_MAX_PARTS} parts"
            )

        if part.filename is not None:
            _check_name(part.filename)

        yield part


async def form_parts(content_type: str, body: AsyncIterator[bytes]) -> AsyncGenerator[FormPart, None]:
    """Yields the parts of a multipart form, without checking their names and their number.

    Args:
        content_type: The body's type, which holds the boundary.
        body: The form.

    Raises:
        InvalidArgumentError: The body is not such a form, or breaks off.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")

    if kind != b"multipart/form-data" or not boundary:
        raise _refused("Content-Type", kind.decode("latin-1"))

    form = _Form(boundary, body)

    while (part := await form.next_part()) is not None:
        yield part


class _Form:
    """A form as it arrives: the parser's calls, one after the other."""

    def __init__(self, boundary: bytes, source: AsyncIterator[bytes]) -> None:
        self._source = source
        # For each part its names, the pieces of its content, and None; None once more at the end of the form.
        self._seen: deque[tuple[str, str | None] | bytes | None] = deque()
        self._headers: dict[bytes, bytes] = {}
        self._field = b""
        self._value = b""
        self._is_inside = False
        callbacks: Any = {
            "on_header_field": self._on_field,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers,
            "on_part_data": lambda data, start, end: self._seen.append(data[start:end]),
            "on_part_end": lambda: self._seen.append(None),
            "on_end": lambda: self._seen.append(None),
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError:
            raise _refused("body", "its boundary") from None

    async def next_part(self) -> FormPart | None:
        """Goes to the next part; None at the end of the form."""
        async for _ in self._content():
            continue

        begun = await self._next()

        if not isinstance(begun, tuple):
            return None

        self._is_inside = True
        return FormPart(*begun, self._content())

    async def _content(self) -> AsyncGenerator[bytes, None]:
        """Yields the rest of the part."""
        while self._is_inside:
            piece = await self._next()

            if isinstance(piece, bytes):
                yield piece
            else:
                self._is_inside = False

    async def _next(self) -> tuple[str, str | None] | bytes | None:
        while not self._seen:
            piece = await anext(self._source, None)

            if piece is None:
                raise _refused("body", "a form that ends too early")

            try:
                self._parser.write(piece)
            except FormParserError:
                raise _refused("body", "what is no form") from None

        return self._seen.popleft()

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._headers.clear()
        filename = options.get(b"filename")
        self._seen.append((_text(options.get(b"name", b"")), None if filename is None else _text(filename)))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _check_name(name: str) -> None:
    """Checks that a file's name is text and stays below the chosen directory."""
    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name or "\ufffd" in name:
        raise InvalidArgumentError(field="filename", value=name, allowed="a relative name without `..`")


def _refused(field: str, value: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        field=field, value=value, allowed="multipart/form-data, each part with a file name"
    )
