"""Tools that keep a point to go back to, go back to it, and fork a sandbox.

Each takes milliseconds, so a model may keep a point before every step that it is not sure of, or try several ways from
one state and continue with the best.
"""

from __future__ import annotations

from typing import Annotated

from mcp.types import CallToolResult
from pydantic import Field

from fumehood import CheckpointInfo
from fumehood.llm.readable_text import in_bytes, readable
from fumehood.mcp.caller import CallContext, caller_of, in_order
from fumehood.mcp.shapes import Forks, KeptCheckpoint, SandboxId
from fumehood.mcp.tool_answers import answer, describe, describe_in_words

_NAME_CHARS = 100
_MAX_LEFT_BEHIND = 20

CheckpointName = Annotated[
    str | None, Field(min_length=1, max_length=_NAME_CHARS, description="To go back by")
]
CheckpointId = Annotated[str, Field(min_length=1, max_length=_NAME_CHARS, description="Its id or name")]


async def checkpoint(
    context: CallContext, name: CheckpointName = None, sandbox_id: SandboxId = None
) -> Annotated[CallToolResult, KeptCheckpoint]:
    """Keep variables and files as they are, to go back to with rollback. Takes milliseconds; the newest 16 are kept."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)
    older = [info for info in await sandbox.list_checkpoints() if name and info.name == name]
    info = await in_order(lambda: sandbox.checkpoint(name))
    again = f"; the name is the new one's, the older one is {older[-1].id}" if older else ""
    left = f"; not kept: {', '.join(_left_behind(info))}" if info.left_behind else ""
    text = f"kept {_named(info)}: the variables, and {info.files} files of {in_bytes(info.files_bytes)}{left}{again}"
    return answer(text, _describe(caller.name_of(sandbox.id), info))


async def rollback(
    context: CallContext, checkpoint_id: CheckpointId, sandbox_id: SandboxId = None
) -> Annotated[CallToolResult, KeptCheckpoint]:
    """Go back to a checkpoint: variables and files are what they were then."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)
    info = await in_order(lambda: sandbox.rollback(checkpoint_id))
    return answer(
        f"variables and files are what they were at {_named(info)}",
        _describe(caller.name_of(sandbox.id), info),
    )


def _named(info: CheckpointInfo) -> str:
    """Returns the id of a checkpoint, and its name where it has one: rollback takes both."""
    return f"{info.id} ({readable(info.name)})" if info.name else info.id


def _describe(sandbox_id: str, info: CheckpointInfo) -> KeptCheckpoint:
    return KeptCheckpoint(
        sandbox_id=sandbox_id,
        checkpoint_id=info.id,
        name=info.name,
        created_at=info.created_at.isoformat(timespec="seconds"),
        files=info.files,
        left_behind=_left_behind(info),
    )


def _left_behind(info: CheckpointInfo) -> list[str]:
    """Returns the parts that could not be kept, as the guest reports them."""
    return [readable(item)[:200] for item in info.left_behind[:_MAX_LEFT_BEHIND]]


_MAX_COUNT = 16

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
