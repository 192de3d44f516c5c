"""The main tool: runs code in a sandbox with state.

Runs in the process of the MCP server. A call without a sandbox makes one, and kills it again if the call gets no
answer: its id would be lost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated

from mcp.types import CallToolResult
from pydantic import Field

from fumehood import AsyncSandbox, FumehoodError, Limits
from fumehood.llm.execution_text import is_about_install
from fumehood.llm.hints import Surroundings
from fumehood.llm.readable_text import unfenced
from fumehood.mcp.arguments import Seconds, SomeSandbox
from fumehood.mcp.caller import CallContext, Caller, NewSandbox, caller_of, in_order
from fumehood.mcp.network import surroundings
from fumehood.mcp.progress import reporting
from fumehood.mcp.shapes import RunOutcome
from fumehood.mcp.tool_answers import tell_execution
from fumehood.text import visible_line

_MAX_CODE_CHARS = 1_000_000
_MAX_HINTED_FILES = 200
DEFAULT_SECONDS = Limits().wall_seconds

Code = Annotated[
    str,
    Field(
        max_length=_MAX_CODE_CHARS,
        description="Python as in a notebook cell: the value of the last expression is shown, figures appear by "
        "themselves, `!` runs a command. Variables, imports and files stay for the next call with the same sandbox_id.",
    ),
]


async def run_code(
    context: CallContext, code: Code, sandbox_id: SomeSandbox = None, timeout: Seconds = DEFAULT_SECONDS
) -> Annotated[CallToolResult, RunOutcome]:
    """Run Python code in an isolated sandbox and return its output, the value of the last expression and its figures.

    Without sandbox_id a new sandbox is made and its id returned: give that id to every later call, or nothing of this
    one is remembered. A sandbox ends by itself after 30 minutes without a call. Code that runs out of time is
    interrupted, and its variables are kept.
    """
    # Some models send it in a Markdown fence.
    code = unfenced(code)
    caller = caller_of(context)

    async with _place(caller, sandbox_id) as sandbox, reporting(context, timeout) as note:
        execution = await in_order(
            lambda: sandbox.run_code(code, timeout=timeout, on_stdout=note, on_stderr=note)
        )

    around = Surroundings()

    # Only hints of an error mention the network.
    if execution.error is not None or is_about_install(execution, code):
        around = surroundings((await sandbox.get_info()).network, caller.max_network)

        if execution.error is not None and execution.error.name == "FileNotFoundError":
            around = replace(around, files=await _data_files(sandbox))

    return tell_execution(execution, code, sandbox.id, is_new=sandbox_id is None, around=around)


async def _data_files(sandbox: AsyncSandbox) -> tuple[str, ...]:
    """Return the paths of the data files, for a hint about one that was missed."""
    try:
        entries = await sandbox.files.list("/mnt/data", depth=2)
    except FumehoodError:
        return ()

    return tuple(visible_line(entry.path) for entry in entries[:_MAX_HINTED_FILES] if entry.type == "file")


@asynccontextmanager
async def _place(caller: Caller, sandbox_id: str | None) -> AsyncGenerator[AsyncSandbox, None]:
    """Returns the sandbox of this id, or a new one."""
    if sandbox_id is not None:
        yield await caller.sandbox(sandbox_id)
        return

    async with caller.new(NewSandbox()) as sandbox:
        yield sandbox
