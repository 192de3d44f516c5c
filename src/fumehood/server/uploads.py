"""Bodies of uploads, piece by piece: nothing of a file is ever held but the piece that has just come.

What is read here is a stranger's until it is written; a client that stops sending in the middle is given up after a
while, and what it had sent is not kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request

from fumehood.errors import InvalidArgumentError
from fumehood.values.checks import check_metadata

_STALL_SECONDS = 60.0
_MAX_FILES = 1000
_METADATA = "x-metadata-"


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """One file of a form; `pieces` must be read to its end before the next file is asked for."""

    name: str
    pieces: AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form, to be read like `UploadedFile`: a file, or a field, whose `filename` is None."""

    field: str
    filename: str | None
    pieces: AsyncGenerator[bytes, None]


def metadata_of(headers: Headers) -> dict[str, str]:
    """Returns the metadata that the headers of a request give a file.

    Raises:
        InvalidArgumentError: It is too much, or cannot be metadata.
    """
    found = {name[len(_METADATA) :]: value for name, value in headers.items() if name.startswith(_METADATA)}
    check_metadata(found)
    return found


async def pieces_of(request: Request) -> AsyncGenerator[bytes, None]:
    """Gives a request's body as it comes.

    Raises:
        HTTPException: 408: nothing came for a minute.
        ClientDisconnect: The client has gone.
    """
    stream = request.stream().__aiter__()

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


async def files_of(request: Request) -> AsyncGenerator[UploadedFile, None]:
    """Gives the files of a multipart form, one after the other.

    Raises:
        InvalidArgumentError: The body is no such form, or has a part that is no file.
    """
    form = _form_of(request)
    count = 0

    while (name := await form.next_file()) is not None:
        count += 1

        if count > _MAX_FILES:
            raise InvalidArgumentError(
                field="body", value=f"{count} files", allowed=f"at most {_MAX_FILES} files"
            )

        yield UploadedFile(name, form.content())

    if not count:
        raise _refused("body", "a form without files")


async def parts_of(request: Request) -> AsyncGenerator[FormPart, None]:
    """Gives the parts of a multipart form, fields and files, one after the other.

    Raises:
        InvalidArgumentError: The body is no such form, or has too many parts.
    """
    form = _form_of(request)
    count = 0

    while (part := await form.next_part()) is not None:
        count += 1

        if count > _MAX_FILES:
            raise InvalidArgumentError(
                field="body", value=f"{count} parts", allowed=f"at most {_MAX_FILES} parts"
            )

        yield FormPart(*part, form.content())


def _form_of(request: Request) -> _Form:
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")

    if kind != b"multipart/form-data" or not boundary:
        raise _refused("Content-Type", kind.decode("latin-1"))

    return _Form(boundary, pieces_of(request))


class _Form:
    """A form as it comes: the parser's calls, one after the other."""

    def __init__(self, boundary: bytes, source: AsyncGenerator[bytes, None]) -> None:
        self._source = source
        self._seen: deque[tuple[str, bytes]] = deque()
        self._headers: dict[bytes, bytes] = {}
        self._field = b""
        self._value = b""
        callbacks: Any = {
            "on_header_field": self._on_field,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers,
            "on_part_data": lambda data, start, end: self._seen.append(("data", data[start:end])),
            "on_part_end": lambda: self._seen.append(("part_end", b"")),
            "on_end": lambda: self._seen.append(("end", b"")),
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError:
            raise _refused("body", "its boundary") from None

    async def next_file(self) -> str | None:
        kind, data = await self._next()

        if kind == "end":
            return None

        if kind != "file":
            raise _refused("body", "a part that is no file")

        return _name(data)

    async def next_part(self) -> tuple[str, str | None] | None:
        kind, data = await self._next()

        if kind == "end":
            return None

        return ("", _name(data)) if kind == "file" else (data.decode("utf-8", "replace"), None)

    async def content(self) -> AsyncGenerator[bytes, None]:
        while True:
            kind, data = await self._next()

            if kind == "part_end":
                return

            yield data

    async def _next(self) -> tuple[str, bytes]:
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
        name = options.get(b"filename")
        self._seen.append(("field", options.get(b"name", b"")) if name is None else ("file", name))


def _name(data: bytes) -> str:
    """A file's name, which may lie in directories, but not above the one that was chosen."""
    try:
        name = data.decode()
    except UnicodeDecodeError:
        name = ""

    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise InvalidArgumentError(
            field="filename", value=data.decode("utf-8", "replace"), allowed="a relative name without `..`"
        )

    return name


def _refused(field: str, value: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        field=field, value=value, allowed="multipart/form-data, each part with a file name"
    )
