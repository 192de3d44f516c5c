"""The files of a multipart form, one after the other, as they come.

The parser is python-multipart's; here it is pulled instead of pushing, so that a file is never held in memory and the
client waits while the sandbox writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from fumehood.errors import InvalidArgumentError

_MAX_HEADER_BYTES = 16 * 1024
# What browsers and E2B's clients write for characters that a quoted name cannot hold.
_ESCAPES = (("%22", '"'), ("%0D", "\r"), ("%0A", "\n"), ("%0d", "\r"), ("%0a", "\n"))


class FilePart:
    """A file of a form.

    Args:
        name: Its name as the client wrote it.
        pieces: Its content; to be read before the next part is asked for.
    """

    def __init__(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        self.name = name
        self.pieces = pieces


async def file_parts(
    content_type: str, body: AsyncIterator[bytes], field: str
) -> AsyncGenerator[FilePart, None]:
    """Gives the files of one field of a form.

    Args:
        content_type: The body's type, which holds the boundary.
        body: The form.
        field: The name of the field; parts of other fields are passed over.

    Raises:
        InvalidArgumentError: It is no form, or it breaks off.
    """
    form = _Form(content_type, body)

    while await form.next_part():
        if form.field == field:
            yield FilePart(form.filename, form.content())


class _Form:
    """A form that is read part by part."""

    def __init__(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")

        if not boundary:
            raise InvalidArgumentError(
                field="Content-Type", value=content_type, allowed="multipart/form-data with its boundary"
            )

        self.field = ""
        self.filename = ""
        self._body = body
        # What the parser has found and nobody has asked for: pieces, and None for the end of a part.
        self._found: deque[bytes | None] = deque()
        self._begun: deque[tuple[str, str]] = deque()
        self._header_name = b""
        self._header_value = b""
        self._disposition = b""
        self._is_inside = False
        self._is_over = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    async def next_part(self) -> bool:
        """Goes to the next part; false at the end of the form."""
        async for _ in self.content():
            continue

        while not self._begun:
            if self._is_over:
                return False

            await self._pull()

        self.field, self.filename = self._begun.popleft()
        self._is_inside = True
        return True

    async def content(self) -> AsyncGenerator[bytes, None]:
        """Gives what is left of the part."""
        while self._is_inside:
            if not self._found:
                await self._pull()
                continue

            piece = self._found.popleft()

            if piece is None:
                self._is_inside = False
            else:
                yield piece

    async def _pull(self) -> None:
        piece = await anext(self._body, None)

        if piece is None:
            raise InvalidArgumentError(field="body", value="cut off", allowed="a whole form")

        try:
            self._parser.write(piece)
        except FormParserError:
            raise InvalidArgumentError(field="body", value=piece[:40], allowed="a multipart form") from None

    # -- what the parser calls

    def _on_part_begin(self) -> None:
        self._header_name = self._header_value = self._disposition = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]
        self._check_header()

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]
        self._check_header()

    def _on_header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value

        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        field = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename", b"").decode("utf-8", "replace")

        for written, meant in _ESCAPES:
            filename = filename.replace(written, meant)

        self._begun.append((field, filename))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._found.append(data[start:end])

    def _on_part_end(self) -> None:
        self._found.append(None)

    def _on_end(self) -> None:
        self._is_over = True

    def _check_header(self) -> None:
        if len(self._header_name) + len(self._header_value) > _MAX_HEADER_BYTES:
            raise FormParserError("a header of a part is too long")
