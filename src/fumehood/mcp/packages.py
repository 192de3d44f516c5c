"""The tool that installs packages of the index into one sandbox.

Runs in the process of the MCP server. pip runs inside the sandbox, as its user; what it can reach is what the sandbox
can reach, and no other sandbox sees what it installed.
"""

from __future__ import annotations

import shlex
from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult
from pydantic import Field

from fumehood.api.packages import MAX_PACKAGES, REQUIREMENT, install_command
from fumehood.mcp.arguments import SandboxId, Seconds
from fumehood.mcp.caller import CallContext, caller_of
from fumehood.mcp.commands import outcome_of, tell_outcome
from fumehood.mcp.network import has_network
from fumehood.mcp.progress import reporting
from fumehood.mcp.shapes import CommandOutcome

_DEFAULT_SECONDS = 300.0

Requirement = Annotated[str, Field(max_length=200, pattern=REQUIREMENT)]
Requirements = Annotated[
    list[Requirement],
    Field(min_length=1, max_length=MAX_PACKAGES, description="Such as polars>=1"),
]


async def install_packages(
    context: CallContext,
    packages: Requirements,
    timeout: Seconds = _DEFAULT_SECONDS,
    sandbox_id: SandboxId = None,
) -> Annotated[CallToolResult, CommandOutcome]:
    """Install Python packages from the index; needs a sandbox with network `pip` or `internet`."""
    caller = caller_of(context)
    sandbox = await caller.sandbox(sandbox_id)

    if not await has_network(sandbox):
        raise ToolError(
            f"sandbox {caller.name_of(sandbox.id)!r} has no network, so nothing can be installed\n"
            "Next: make one that has it with create_sandbox and network `pip`; files and variables of this one "
            "do not go with it"
        )

    command = shlex.join(install_command(packages))

    async with reporting(context, timeout) as note:
        outcome = await outcome_of(caller, sandbox, command, cwd=None, timeout=timeout, note=note)

    return tell_outcome(outcome)
