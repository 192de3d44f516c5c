"""What a context is told when it shall run code: the request as the wire has it.

Runs in the host process. A pure translation: the frame's header and payload of what a caller has asked for, within the
limits of the sandbox; and what the reply says of how much was dropped. Sends nothing.
"""

from __future__ import annotations

from typing import Any

from fumehood.backends.questions import CommMessage
from fumehood.backends.requests import ExecuteRequest
from fumehood.backends.tool_requests import ToolSpec
from fumehood.host.contexts.comms import comm_request
from fumehood.limits import Limits
from fumehood.models import NOTHING_CUT, Truncation


def wire_request(
    request: ExecuteRequest, comm: CommMessage | None, limits: Limits, *, telemetry: bool = False
) -> tuple[dict[str, Any], bytes]:
    """Returns header and payload of a request to run code, or the handlers of a comm message.

    Args:
        request: What a caller has asked for.
        comm: The message, if it is one.
        limits: Those of the sandbox.
        telemetry: Whether the host wants to hear what the code does in its interpreter.
    """
    bounds = {
        "stdout_bytes": limits.stdout_bytes,
        "stderr_bytes": limits.stderr_bytes,
        "result_bytes": limits.result_bytes,
        "result_count": limits.result_count,
    }

    if comm is not None:
        header, payload = comm_request(comm)
        return {**header, **bounds}, payload

    header = {
        "type": "execute_request",
        **bounds,
        "allow_stdin": request.allow_input,
        "silent": request.silent,
        "store_history": not request.silent,
        "envs": dict(request.envs),
    }
    # A byte order mark is no part of a program, to `python` neither.
    code = request.code.removeprefix("\ufeff").encode("utf-8", "surrogatepass")

    if request.tools:
        tools = [_wire_tool(tool) for tool in request.tools]
        header = {**header, "tools": tools, "tool_calls": request.max_tool_calls}

    if request.tell_changes or request.ask_commit:
        header = {**header, "changes": True}

    if telemetry:
        header = {**header, "telemetry": True}

    if request.stdin is None:
        return header, code

    stdin = request.stdin.encode("utf-8", "surrogatepass")
    return {**header, "stdin_bytes": len(stdin)}, code + stdin


def _wire_tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "required": list(tool.required),
        "optional": list(tool.optional),
        "awaited": tool.awaited,
    }


def dropped_by_guest(reply: dict[str, Any] | None) -> Truncation:
    """Returns what the context has not sent because there was no room."""
    if reply is None:
        return NOTHING_CUT

    dropped = reply["dropped"]

    if not any(dropped.values()):
        return NOTHING_CUT

    return Truncation(
        stdout_bytes=dropped["stdout"], stderr_bytes=dropped["stderr"], results=dropped["results"]
    )
