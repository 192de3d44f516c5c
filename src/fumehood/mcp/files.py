"""Tools for the files of a sandbox: read, write, list.

Runs in the process of the MCP server. A model gets text by lines, a picture as a picture, and of everything else what
it is and a link by which its host can read it; nothing of unbounded size passes here.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated
from urllib.parse import quote

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ContentBlock, ResourceLink
from pydantic import Field

from fumehood import AsyncSandbox, FileInfo, PathIsDirectoryError, Result
from fumehood.llm.images import ImageBounds, ImageShelf
from fumehood.llm.readable_text import in_bytes, readable
from fumehood.mcp.arguments import Path, SandboxId
from fumehood.mcp.caller import CallContext, caller_of, in_order
from fumehood.mcp.content import Lines, read_bounded, read_lines, type_of
from fumehood.mcp.shapes import Encoding, FileContent, FileEntry, FileList, WrittenFile
from fumehood.mcp.tool_answers import MAX_IMAGE_BYTES, MAX_TEXT_CHARS, answer, as_content, time_of
from fumehood.text import visible_line

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
) -> Annotated[CallToolResult, FileContent]:
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
    data = FileContent(
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
) -> Annotated[CallToolResult, FileList]:
    """List a directory."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)
    name = caller.name_of(sandbox.id)
    infos = await in_order(lambda: sandbox.files.list(path, depth=depth))
    shown, more = infos[:_MAX_LISTED], max(0, len(infos) - _MAX_LISTED)
    lines = [_line(info) for info in shown] or ["(nothing here)"]

    if more:
        lines.append(f"... and {more} more; list a directory further down, or use run_command")

    data = FileList(sandbox_id=name, path=path, files=[_entry(info) for info in shown], more=more)
    return answer("\n".join(lines), data)


def uri_of(sandbox_id: str, path: str) -> str:
    """Return the address of a file as a resource."""
    return f"sandbox://{sandbox_id}/{quote(path.lstrip('/'))}"


async def _picture(sandbox: AsyncSandbox, name: str, info: FileInfo, mime: str) -> CallToolResult:
    content, _ = await in_order(lambda: read_bounded(sandbox, info.path, MAX_IMAGE_BYTES + 1))
    shelf = ImageShelf(ImageBounds(1, MAX_IMAGE_BYTES))
    said = shelf.take(Result(parts={mime: content}))
    data = FileContent(
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
