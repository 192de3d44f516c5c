"""The text of a refused tool call for the model: the error, with the value, and the next step.

Runs in the process of the MCP server. Errors of the tree name the verbs of Python in their hints; a model has tools, so
the way out is described in their terms here. An error outside of the tree stays in the server's log.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import NoReturn, ParamSpec, TypeVar

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError

from fumehood import FumehoodError, QuotaError
from fumehood.mcp.caller import Caller, caller_of

_P = ParamSpec("_P")
_T = TypeVar("_T")

_AGAIN = (
    "its variables and files are gone: make a new one with create_sandbox, or run_code without sandbox_id, and do "
    "again what is still needed"
)
_ROOM = (
    "end sandboxes that are no longer needed with kill_sandbox (list_sandboxes shows them), then try again"
)
# Ways out in terms of the tools, by stable code of the error.
_WAYS_OUT = {
    "sandbox_not_found": "list_sandboxes shows the ids there are; run_code without sandbox_id makes a new sandbox",
    "sandbox_closed": _AGAIN,
    "protocol_violation": _AGAIN,
    "sandbox_paused": "it runs again when the program that paused it resumes it; meanwhile use another sandbox",
    "capacity": _ROOM,
    "path_not_found": "list_files shows what is there; relative paths start at /home/user",
    "path_is_directory": "name a file in it; list_files shows them",
    "path_not_directory": "name the directory it lies in",
    "path_permission": "write below /home/user, /mnt/data or /tmp; the rest of the system is read-only",
    "disk_full": "remove files that are no longer needed, with run_command",
    "template": "leave template out to get the default one",
    "command_start": "check that cwd is a directory of the sandbox; list_files shows what is there",
    "checkpoint_not_found": "give the id or the name that checkpoint returned; at most 16 are kept",
    "network_forbidden": "leave network out, or ask the user to allow more: max_network of the server or of its key",
}
_NOT_THERE = {"sandbox_not_found", "sandbox_closed", "path_not_found", "path_is_directory"}


def explain(error: FumehoodError) -> str:
    """Return the text of an error for a model: one line for the error, one for the way out."""
    way_out = _WAYS_OUT.get(error.code, error.hint)

    if isinstance(error, QuotaError) and error.quota == "sandboxes":
        way_out = _ROOM

    unknown = "\nIt may or may not have happened." if error.outcome_unknown else ""
    return f"{error.message}{unknown}" + (f"\nNext: {way_out}" if way_out else "")


def refusing(tool: Callable[_P, Awaitable[_T]]) -> Callable[_P, Awaitable[_T]]:
    """Return a tool whose errors of the tree reach the model."""

    @functools.wraps(tool)
    async def told(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return await tool(*args, **kwargs)
        except FumehoodError as error:
            text = explain(error)
            found = kwargs.get("context", args[0] if args else None)
            raise ToolError(
                caller_of(found).with_names(text) if isinstance(found, Context) else text
            ) from error

    return told


def refuse_resource(error: FumehoodError, caller: Caller) -> NoReturn:
    """Raise the SDK's error for a resource that cannot be read."""
    kind = ResourceNotFoundError if error.code in _NOT_THERE else ResourceError
    raise kind(caller.with_names(explain(error))) from error
