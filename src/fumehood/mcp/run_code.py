"""The main tool: runs code in a sandbox with state.

Runs in the process of the MCP server. A call without a sandbox goes on in the last one; over HTTP, where there is none,
it makes one, and kills it again if the call gets no answer: its id would be lost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from mcp.types import CallToolResult
from pydantic import Field

from fumehood import AsyncSandbox, FumehoodError, Limits
from fumehood.llm.execution_text import is_about_install
from fumehood.llm.hints import Surroundings
from fumehood.llm.readable_text import unfenced
from fumehood.mcp.arguments import SandboxId
from fumehood.mcp.caller import CallContext, Caller, NewSandbox, caller_of, in_order
from fumehood.mcp.network import surroundings
from fumehood.mcp.progress import reporting
from fumehood.mcp.shapes import RunOutcome
from fumehood.mcp.tool_answers import tell_execution
from fumehood.text import visible_line
from fumehood.values.guest_paths import DATA_PATH

_MAX_CODE_CHARS = 1_000_000
_MAX_HINTED_FILES = 200

Code = Annotated[
    str,
    Field(
        max_length=_MAX_CODE_CHARS,
        description="As in a notebook cell; `!` runs a command",
    ),
]


RunSeconds = Annotated[float | None, Field(ge=0.1, le=3600, description=f"Default {Limits().wall_seconds:g}")]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where code runs: the sandbox, whether it was made for this call, and the name of the one that it replaces."""

    sandbox: AsyncSandbox
    is_new: bool = False
    ended: str = ""


async def run_code(
    context: CallContext, code: Code, timeout: RunSeconds = None, sandbox_id: SandboxId = None
) -> Annotated[CallToolResult, RunOutcome]:
    """Run Python in an isolated sandbox; return its output, the value of the last expression and its figures.

    Variables, imports and files stay for later calls.
    """
    # Some models send it in a Markdown fence.
    code = unfenced(code)
    caller = caller_of(context)
    seconds = caller.setup.run_seconds if timeout is None else timeout

    async with _place(caller, sandbox_id) as place, reporting(context, seconds) as note:
        sandbox = place.sandbox
        execution = await in_order(
            lambda: sandbox.run_code(code, timeout=seconds, on_stdout=note, on_stderr=note)
        )

    around = Surroundings()

    # Only hints of an error mention the network.
    if execution.error is not None or is_about_install(execution, code):
        around = surroundings((await sandbox.get_info()).network, caller.max_network, caller.tools)

        if execution.error is not None and execution.error.name == "FileNotFoundError":
            around = replace(around, files=await _data_files(sandbox))

    name = caller.name_of(sandbox.id)
    return tell_execution(
        execution, code, name, is_new=place.is_new, notes=_notes(caller, place), around=around
    )


def _notes(caller: Caller, place: _Place) -> list[str]:
    """Return what the model has to know of the sandbox: its id where calls need it, and that its variables are new."""
    name = caller.name_of(place.sandbox.id)

    if place.ended:
        return [
            f"[sandbox {place.ended} has ended; this is a new one, {name}, without its variables and files]"
        ]

    # The id stands last, where a model that goes on finds it.
    if place.is_new and not caller.keeps:
        return [f"[sandbox_id: {name}; give it to the next call to go on with this state]"]

    return []


async def _data_files(sandbox: AsyncSandbox) -> tuple[str, ...]:
    """Return the paths of the data files, for a hint about one that was missed."""
    try:
        entries = await sandbox.files.list(DATA_PATH, depth=2)
    except FumehoodError:
        return ()

    return tuple(visible_line(entry.path) for entry in entries[:_MAX_HINTED_FILES] if entry.type == "file")


@asynccontextmanager
async def _place(caller: Caller, sandbox_id: str | None) -> AsyncGenerator[_Place, None]:
    """Returns the sandbox of this id; without one the last, or a new one."""
    if sandbox_id is not None:
        yield _Place(await caller.sandbox(sandbox_id))
    elif caller.keeps:
        before = caller.last
        sandbox, ended = await caller.sandbox_to_run()
        yield _Place(sandbox, is_new=sandbox.id != before, ended=ended)
    else:
        async with caller.new(NewSandbox()) as sandbox:
            yield _Place(sandbox, is_new=True)
