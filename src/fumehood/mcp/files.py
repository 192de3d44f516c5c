"""Files of a sandbox for a model and its host: tools that read, write and list them, and `sandbox://ID/path` resources.

Names and bytes come from a guest: the type is derived from the name alone. A model gets text by lines, a picture as a
picture, and for any other file its description and a link by which its host can read it. A resource is sent as a whole,
so its size is bounded; its path is resolved inside the sandbox.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.shared.uri_template import UriTemplate
from mcp.types import CallToolResult, ContentBlock, ResourceLink, ResourceTemplate
from pydantic import Field

from fumehood import AsyncSandbox, FileInfo, FumehoodError, PathIsDirectoryError, Result
from fumehood.llm.images import ImageBounds, ImageShelf
from fumehood.llm.readable_text import in_bytes, readable
from fumehood.mcp.caller import CallContext, caller_of, in_order
from fumehood.mcp.refusals import refuse_resource
from fumehood.mcp.shapes import DirectoryListing, Encoding, FileEntry, FilePart, Path, SandboxId, WrittenFile
from fumehood.mcp.tool_answers import MAX_IMAGE_BYTES, MAX_TEXT_CHARS, answer, as_content, time_of
from fumehood.text import visible_line

UNKNOWN_TYPE = "application/octet-stream"
# Text types that do not begin with text/.
_TEXT_TYPES = frozenset(
    {
        "application/javascript",
        "application/json",
        "application/toml",
        "application/x-ipynb+json",
        "application/x-ndjson",
        "application/x-python-code",
        "application/x-sh",
        "application/xml",
        "application/yaml",
        "image/svg+xml",
    }
)
# Types that the system's table lacks, or that differ between systems.
_OWN_TYPES = {
    ".csv": "text/csv",
    ".md": "text/markdown",
    ".ipynb": "application/x-ipynb+json",
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
    ".parquet": "application/vnd.apache.parquet",
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".py": "text/x-python",
    ".js": "text/javascript",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_TABLE = mimetypes.MimeTypes()


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines of a text.

    Attributes:
        text: The lines.
        next_line: The number of the line that follows them; None at the end.
        is_cut: Whether the last line was cut, because it is too long.
    """

    text: str
    next_line: int | None
    is_cut: bool


def type_of(path: str) -> str:
    """Return the type of a file by its name."""
    name = path.rpartition("/")[2].lower()
    ending = name[name.rfind(".") :] if "." in name else ""
    return _OWN_TYPES.get(ending) or _TABLE.guess_type(f"x{ending}")[0] or UNKNOWN_TYPE


def is_text_type(mime_type: str) -> bool:
    """Return whether files of a type are read as text."""
    return mime_type.startswith("text/") or mime_type in _TEXT_TYPES


async def read_bounded(sandbox: AsyncSandbox, path: str, max_bytes: int) -> tuple[bytes, bool]:
    """Return the head of a file, and whether that is the whole file."""
    content = bytearray()

    async with aclosing(await sandbox.files.read(path, format="stream")) as pieces:
        async for piece in pieces:
            content += piece

            if len(content) > max_bytes:
                return bytes(content[:max_bytes]), False

    return bytes(content), True


async def read_lines(
    sandbox: AsyncSandbox, path: str, first_line: int, max_lines: int, max_chars: int
) -> Lines | None:
    """Return lines of a file, from the first one wanted on; None when it is no UTF-8 text.

    Args:
        sandbox: The sandbox that has the file.
        path: The file.
        first_line: The first line wanted, from 1.
        max_lines: The most lines to return.
        max_chars: The most characters to return; a longer line is cut.
    """
    window = _Window(first_line, max_lines, 4 * max_chars)

    async with aclosing(await sandbox.files.read(path, format="stream")) as pieces:
        async for piece in pieces:
            if window.take(piece):
                break

    return window.lines(max_chars)


class _Window:
    """Takes a file piece by piece and keeps the wanted lines, within a bound."""

    def __init__(self, first_line: int, max_lines: int, max_bytes: int) -> None:
        self._first_line = first_line
        # Lines that are still wanted: kept ones are not counted again with each piece.
        self._lines_left = max_lines
        self._max_bytes = max_bytes
        self._skip = first_line - 1
        self._kept = bytearray()
        self._is_binary = False
        self._has_more = False

    def take(self, piece: bytes) -> bool:
        """Take the next piece; return True if no more are needed."""
        if b"\0" in piece:
            self._is_binary = True
            return True

        if self._skip:
            piece = self._after_skipped(piece)

        end = _end_of_lines(piece, self._lines_left)

        if 0 <= end < len(piece):
            self._kept += piece[:end]
            self._has_more = True
            return True

        self._kept += piece
        self._lines_left -= piece.count(b"\n")

        if len(self._kept) > self._max_bytes:
            self._has_more = True
            return True

        return False

    def lines(self, max_chars: int) -> Lines | None:
        """Return the kept lines."""
        if self._is_binary:
            return None

        try:
            # A cut may be inside a character.
            text = self._kept.decode("utf-8") if not self._has_more else _decode_head(bytes(self._kept))
        except UnicodeDecodeError:
            return None

        shown = text[:max_chars]
        is_cut = False

        if len(shown) < len(text):
            self._has_more = True
            whole = shown.rfind("\n") + 1
            is_cut = not whole
            shown = shown[:whole] if whole else shown

        count = shown.count("\n") + (1 if is_cut else 0)
        return Lines(shown, self._first_line + count if self._has_more else None, is_cut)

    def _after_skipped(self, piece: bytes) -> bytes:
        found = piece.count(b"\n")

        if found < self._skip:
            self._skip -= found
            return b""

        end = _end_of_lines(piece, self._skip)
        self._skip = 0
        return piece[end:]


def _end_of_lines(content: bytes | bytearray, count: int) -> int:
    """Return the position at which the line of this number ends; -1 when there are fewer lines."""
    end = 0

    for _ in range(count):
        end = content.find(b"\n", end) + 1

        if not end:
            return -1

    return end


def _decode_head(head: bytes) -> str:
    """Decode text that may end in the middle of a character."""
    for cut in range(4):
        try:
            return head[: len(head) - cut].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.start < len(head) - 4:
                raise

    return head.decode("utf-8")


_MAX_LINES = 2_000
_MAX_LISTED = 200
_MAX_DEPTH = 5
_MAX_CONTENT_CHARS = 8_000_000
_PICTURES = ("image/png", "image/jpeg")

FirstLine = Annotated[int, Field(ge=1, le=1_000_000_000, description="Where to begin")]
MaxLines = Annotated[int, Field(ge=1, le=_MAX_LINES, description="How many")]
Depth = Annotated[int, Field(ge=1, le=_MAX_DEPTH, description="Levels")]
Content = Annotated[str, Field(max_length=_MAX_CONTENT_CHARS, description="All of it")]
ContentEncoding = Annotated[Encoding, Field(description="Of content")]


async def read_file(
    context: CallContext,
    path: Path,
    first_line: FirstLine = 1,
    max_lines: MaxLines = _MAX_LINES,
    sandbox_id: SandboxId = None,
) -> Annotated[CallToolResult, FilePart]:
    """Read a file: text by lines, PNG and JPEG as pictures. For tables and large files use run_code."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)
    name = caller.name_of(sandbox.id)
    info = await sandbox.files.get_info(path)

    if info.type == "dir":
        raise PathIsDirectoryError(path=path, operation="read", errno_value=21)

    mime = type_of(info.path)

    if mime in _PICTURES:
        return await _picture(sandbox, name, info, mime)

    lines = await in_order(lambda: read_lines(sandbox, info.path, first_line, max_lines, MAX_TEXT_CHARS))
    text = None if lines is None else readable(lines.text)
    data = FilePart(
        sandbox_id=name,
        path=info.path,
        size_bytes=info.size_bytes,
        mime_type=mime,
        text=text,
        first_line=first_line,
        next_line=None if lines is None else lines.next_line,
    )

    if lines is None or text is None:
        return answer(f"{_named(info)} is no text", data, more=[_link(name, info)])

    return answer(text + _rest(lines) or "(nothing at these lines)", data)


async def write_file(
    context: CallContext,
    path: Path,
    content: Content,
    encoding: ContentEncoding = "text",
    sandbox_id: SandboxId = None,
) -> Annotated[CallToolResult, WrittenFile]:
    """Write a whole file, and the directories it lies in."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)
    name = caller.name_of(sandbox.id)
    info = await in_order(lambda: sandbox.files.write(path, _decoded(content, encoding)))
    data = WrittenFile(
        sandbox_id=name, path=info.path, size_bytes=info.size_bytes, uri=uri_of(name, info.path)
    )
    return answer(f"wrote {_named(info)}", data)


async def list_files(
    context: CallContext, path: Path = ".", depth: Depth = 1, sandbox_id: SandboxId = None
) -> Annotated[CallToolResult, DirectoryListing]:
    """List a directory."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)
    name = caller.name_of(sandbox.id)
    infos = await in_order(lambda: sandbox.files.list(path, depth=depth))
    shown, more = infos[:_MAX_LISTED], max(0, len(infos) - _MAX_LISTED)
    lines = [_line(info) for info in shown] or ["(nothing here)"]

    if more:
        lines.append(f"... and {more} more; list a directory further down, or use run_command")

    data = DirectoryListing(sandbox_id=name, path=path, files=[_entry(info) for info in shown], more=more)
    return answer("\n".join(lines), data)


def uri_of(sandbox_id: str, path: str) -> str:
    """Return the address of a file as a resource."""
    return f"sandbox://{sandbox_id}/{quote(path.lstrip('/'))}"


async def _picture(sandbox: AsyncSandbox, name: str, info: FileInfo, mime: str) -> CallToolResult:
    content, _ = await in_order(lambda: read_bounded(sandbox, info.path, MAX_IMAGE_BYTES + 1))
    shelf = ImageShelf(ImageBounds(1, MAX_IMAGE_BYTES))
    said = shelf.take(Result(parts={mime: content}))
    data = FilePart(
        sandbox_id=name,
        path=info.path,
        size_bytes=info.size_bytes,
        mime_type=mime,
        text=None,
        first_line=1,
        next_line=None,
    )
    more: list[ContentBlock] = [*as_content(shelf.images)] or [_link(name, info)]
    return answer(f"{_named(info)}\n{said}", data, more=more)


def _decoded(content: str, encoding: Encoding) -> str | bytes:
    if encoding == "text":
        return content

    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise ToolError("content is no base64; give text with encoding `text`") from None


def _rest(lines: Lines) -> str:
    if lines.next_line is None:
        return ""

    cut = "the line is longer than what is shown; " if lines.is_cut else ""
    return f"\n[{cut}more follows: go on with first_line={lines.next_line}]"


def _link(sandbox_id: str, info: FileInfo) -> ResourceLink:
    return ResourceLink(
        uri=uri_of(sandbox_id, info.path),
        name=visible_line(info.name),
        mime_type=type_of(info.path),
        size=info.size_bytes,
    )


def _entry(info: FileInfo) -> FileEntry:
    return FileEntry(
        path=visible_line(info.path, max_characters=4096),
        type=info.type,
        size_bytes=info.size_bytes,
        modified_at=time_of(info.modified_at),
    )


def _line(info: FileInfo) -> str:
    path = visible_line(info.path, max_characters=1000)
    return f"{path}/" if info.type == "dir" else f"{path}  {in_bytes(info.size_bytes)}"


def _named(info: FileInfo) -> str:
    path = visible_line(info.path, max_characters=1000)
    return f"{path} ({type_of(info.path)}, {in_bytes(info.size_bytes)})"


MAX_RESOURCE_BYTES = 4 * 1024 * 1024
_MAX_URI_CHARS = 16_384
_TEMPLATE = "sandbox://{sandbox_id}/{+path}"
_ADDRESS = UriTemplate.parse(_TEMPLATE)

TEMPLATE = ResourceTemplate(
    uri_template=_TEMPLATE,
    name="file",
    title="File of a sandbox",
    description=f"A file by its path in the sandbox; at most {in_bytes(MAX_RESOURCE_BYTES)}.",
)


async def read_file_at(uri: str, context: CallContext) -> ReadResourceContents:
    """Return the file at an address.

    Raises:
        ResourceNotFoundError: The file does not exist, or is not the caller's.
        ResourceError: The file is too large.
    """
    found = _ADDRESS.match(uri) if len(uri) <= _MAX_URI_CHARS else None

    if found is None:
        raise ResourceNotFoundError(f"{visible_line(uri)!r} is no address of a file; write {_TEMPLATE}")

    sandbox_id, path = str(found["sandbox_id"]), f"/{found['path']}"

    try:
        sandbox = await caller_of(context).sandbox(sandbox_id)
        content, is_whole = await in_order(lambda: read_bounded(sandbox, path, MAX_RESOURCE_BYTES))
    except FumehoodError as error:
        refuse_resource(error, caller_of(context))

    if not is_whole:
        raise ResourceError(
            f"{visible_line(path)} is larger than {in_bytes(MAX_RESOURCE_BYTES)}, the most that is read as a resource\n"
            "Next: read a part of it with read_file, or look at it with run_code"
        )

    return _as_contents(content, type_of(path))


def _as_contents(content: bytes, mime_type: str) -> ReadResourceContents:
    if mime_type == UNKNOWN_TYPE or is_text_type(mime_type):
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return ReadResourceContents(content=content, mime_type=mime_type)

        if "\0" not in text:
            is_named = mime_type != UNKNOWN_TYPE
            return ReadResourceContents(content=text, mime_type=mime_type if is_named else "text/plain")

    return ReadResourceContents(content=content, mime_type=mime_type)
