"""The tool that keeps what was done: everything that ran in a sandbox, as a notebook.

Runs in the process of the MCP server. The notebook is written inside the sandbox, never on the host, and is read from
there like any other file.
"""

from __future__ import annotations

from typing import Annotated

from mcp.types import CallToolResult, ResourceLink
from pydantic import Field

from fumehood.llm.readable_text import in_bytes
from fumehood.mcp.arguments import SandboxId
from fumehood.mcp.caller import CallContext, caller_of, in_order
from fumehood.mcp.content import type_of
from fumehood.mcp.files import uri_of
from fumehood.mcp.shapes import WrittenFile
from fumehood.mcp.tool_answers import answer

NotebookPath = Annotated[
    str,
    Field(min_length=1, max_length=4096, pattern=r"\.ipynb$", description="Of the notebook"),
]


async def to_notebook(
    context: CallContext, path: NotebookPath = "notebook.ipynb", sandbox_id: SandboxId = None
) -> Annotated[CallToolResult, WrittenFile]:
    """Write all that run_code ran, with its outputs, as a Jupyter notebook in the sandbox."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)
    name = caller.name_of(sandbox.id)
    text = await in_order(sandbox.to_notebook)
    info = await in_order(lambda: sandbox.files.write(path, text))
    uri = uri_of(name, info.path)
    link = ResourceLink(uri=uri, name=info.name, mime_type=type_of(info.path), size=info.size_bytes)
    data = WrittenFile(sandbox_id=name, path=info.path, size_bytes=info.size_bytes, uri=uri)
    return answer(f"wrote {info.path} ({in_bytes(info.size_bytes)})", data, more=[link])
