"""The tool that forks a sandbox.

Runs in the process of the MCP server. It takes milliseconds, so a model may try several ways from one state, and go on
where it went best.
"""

from __future__ import annotations

from typing import Annotated

from mcp.types import CallToolResult
from pydantic import Field

from fumehood.llm.readable_text import readable
from fumehood.mcp.arguments import SandboxId
from fumehood.mcp.caller import CallContext, caller_of
from fumehood.mcp.shapes import Forks
from fumehood.mcp.tool_answers import answer, describe, describe_in_words

_MAX_COUNT = 16
_NAME_CHARS = 100
_MAX_LEFT_BEHIND = 20

ForkCount = Annotated[int, Field(ge=1, le=_MAX_COUNT, description="How many")]
FromCheckpoint = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=_NAME_CHARS,
        description="Where they begin; default: now",
    ),
]


async def fork_sandbox(
    context: CallContext,
    count: ForkCount = 1,
    checkpoint: FromCheckpoint = None,
    sandbox_id: SandboxId = None,
) -> Annotated[CallToolResult, Forks]:
    """Make copies of a sandbox, with its variables and files, to try several ways; return their ids."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)

    async with caller.forks(sandbox, count, checkpoint) as children:
        infos = [caller.shown(await child.get_info()) for child in children]

    left = [readable(item)[:200] for item in children[0].left_behind[:_MAX_LEFT_BEHIND]]
    lines = [f"forked {caller.name_of(sandbox.id)} into", *(describe_in_words(info) for info in infos)]

    if left:
        lines.append(f"not taken along: {', '.join(left)}")

    forks = Forks(
        sandbox_id=caller.name_of(sandbox.id), forks=[describe(info) for info in infos], left_behind=left
    )
    return answer("\n".join(lines), forks)
