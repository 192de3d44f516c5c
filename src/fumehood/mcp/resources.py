"""Files of sandboxes as resources: `sandbox://ID/path`, for hosts that show or keep what was made.

Runs in the process of the MCP server. The path is one of the sandbox and is resolved inside it. How large a resource
may be is bounded, because it is sent as a whole.
"""

from __future__ import annotations

from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.shared.uri_template import UriTemplate
from mcp.types import ResourceTemplate

from fumehood import FumehoodError
from fumehood.llm.readable_text import in_bytes
from fumehood.mcp.caller import CallContext, caller_of, in_order
from fumehood.mcp.content import UNKNOWN_TYPE, is_text_type, read_bounded, type_of
from fumehood.mcp.refusals import refuse_resource
from fumehood.text import visible_line

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
        ResourceNotFoundError: There is none, or none of the caller's.
        ResourceError: It is too large.
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
