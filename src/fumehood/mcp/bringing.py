"""Brings the files that a call has made to the user, after the call.

Runs in the process of the MCP server. The answer names them, so that a model can say where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, TextContent

from fumehood.mcp.caller import caller_of, in_order

_P = ParamSpec("_P")


def bringing(tool: Callable[_P, Awaitable[CallToolResult]]) -> Callable[_P, Awaitable[CallToolResult]]:
    """Return a tool that brings new files of its sandbox to the user where one has asked for that."""

    @functools.wraps(tool)
    async def brought(*args: _P.args, **kwargs: _P.kwargs) -> CallToolResult:
        result = await tool(*args, **kwargs)
        context = kwargs.get("context", args[0] if args else None)
        assert isinstance(context, Context)
        line = await in_order(caller_of(context).bring_files)
        return result.model_copy(
            update={"content": [*result.content, *([TextContent(text=line)] if line else [])]}
        )

    return brought
