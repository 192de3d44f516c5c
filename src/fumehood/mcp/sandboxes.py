"""Tools that make, list and end sandboxes.

Each caller sees only its own; what a caller may have is decided where the sandboxes live.
"""

from __future__ import annotations

from typing import Annotated

from mcp.types import CallToolResult
from pydantic import Field

from fumehood.llm.system_prompt import describe_inside, look_inside
from fumehood.mcp.caller import IDLE_SECONDS, CallContext, SandboxOptions, caller_of
from fumehood.mcp.network import NetworkArgument
from fumehood.mcp.shapes import KillOutcome, LivingSandboxes, MadeSandbox, NamedSandbox
from fumehood.mcp.tool_answers import answer, describe, describe_in_words

_MAX_LISTED = 50
_MAX_ENVS = 100

Template = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=200,
        description="What it starts from",
    ),
]
Envs = Annotated[
    dict[str, Annotated[str, Field(max_length=32_768)]] | None,
    Field(max_length=_MAX_ENVS, description="Environment variables"),
]
IdleSeconds = Annotated[float, Field(ge=1, le=86_400, description="Seconds without a call until it ends")]


async def create_sandbox(
    context: CallContext,
    template: Template = None,
    envs: Envs = None,
    idle_timeout: IdleSeconds = IDLE_SECONDS,
    network: NetworkArgument = "none",
) -> Annotated[CallToolResult, MadeSandbox]:
    """Make another sandbox; return its id and what it has. run_code makes the first by itself."""
    wanted = SandboxOptions(template=template, envs=envs, idle_timeout_seconds=idle_timeout, network=network)

    caller = caller_of(context)

    async with caller.new(wanted) as sandbox:
        info = caller.shown(await sandbox.get_info())
        has = describe_inside(await look_inside(sandbox))

    words = f"made sandbox {describe_in_words(info)}"
    return answer(f"{words}\n{has}".rstrip(), MadeSandbox(**describe(info).model_dump(), has=has))


async def list_sandboxes(context: CallContext) -> Annotated[CallToolResult, LivingSandboxes]:
    """List the sandboxes that live."""
    caller = caller_of(context)
    found = sorted(await caller.list(), key=lambda info: info.started_at, reverse=True)
    infos = [caller.shown(info) for info in found]
    shown, more = infos[:_MAX_LISTED], max(0, len(infos) - _MAX_LISTED)
    lines = [describe_in_words(info) for info in shown] or ["no sandbox lives; run_code makes one"]

    if more:
        lines.append(f"... and {more} more")

    return answer("\n".join(lines), LivingSandboxes(sandboxes=[describe(info) for info in shown], more=more))


async def kill_sandbox(
    context: CallContext, sandbox_id: NamedSandbox
) -> Annotated[CallToolResult, KillOutcome]:
    """End a sandbox; its variables and files are gone."""
    caller = caller_of(context)
    was_alive = await caller.kill(sandbox_id)
    text = f"sandbox {sandbox_id} has ended" if was_alive else f"no living sandbox has the id {sandbox_id}"
    return answer(text, KillOutcome(sandbox_id=sandbox_id, was_alive=was_alive), is_error=not was_alive)
