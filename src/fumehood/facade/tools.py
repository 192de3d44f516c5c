"""Tools: functions of the caller's that code inside may call while it runs.

Runs in the caller's process, and is what a caller writes down: the function, its limits, and what may refuse a
call. Code inside is hostile, so arguments are JSON and are checked against the tool's schema before the function is
called (`fumehood.facade.tool_schemas` says by whom, and why), and of an exception the code hears no more than the name
of its type. Nothing here calls a function: `fumehood.facade.tool_running` does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fumehood.backends.tool_requests import (
    DEFAULT_TOOL_CALLS,
    DEFAULT_TOOL_SECONDS,
    MAX_DESCRIPTION_CHARACTERS,
    ToolSpec,
)
from fumehood.charts import JsonValue
from fumehood.errors import InvalidArgumentError
from fumehood.facade.tool_schemas import Check, check_of, schema_of

ToolFunction: TypeAlias = Callable[..., object]


class ToolError(Exception):
    """Raised by a tool to tell the code inside what went wrong: the message is what the code sees.

    Of any other exception the code sees the name of its type and nothing else.
    """


@dataclass(frozen=True, slots=True)
class HostTool:
    """A function that code inside may call, and how.

    Attributes:
        function: The function, `def` or `async def`; it is given arguments by name.
        name: What it is called inside; None: as the mapping names it.
        description: What `help()` says of it inside; None: its docstring.
        parameters: JSON Schema of its arguments; None: made from its signature and hints.
        timeout: Seconds that one call may take, with the time that `on_tool_call` takes.
        max_calls: How often one execution may call it.
        awaited: Whether code inside awaits it; None: if it is an `async def`.
    """

    function: ToolFunction
    name: str | None = None
    description: str | None = None
    parameters: Mapping[str, JsonValue] | None = None
    timeout: float = DEFAULT_TOOL_SECONDS
    max_calls: int = DEFAULT_TOOL_CALLS
    awaited: bool | None = None


Tools: TypeAlias = Mapping[str, ToolFunction | HostTool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call, as `on_tool_call` is asked about it.

    Attributes:
        execution_id: Who calls.
        name: The tool.
        arguments: What it is given, by name. They fit the tool's schema; what they say is the guest's.
    """

    execution_id: str
    name: str
    arguments: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyTool:
    """A tool whose schema is known.

    Attributes:
        spec: What the sandbox knows of it.
        function: What is called.
        check: Holds arguments against the schema.
    """

    spec: ToolSpec
    function: ToolFunction
    check: Check


def ready_tools(tools: Tools | None) -> Mapping[str, ReadyTool]:
    """Returns the tools of an execution by their names.

    Raises:
        InvalidArgumentError: One of them cannot be a tool; the error names it.
    """
    if tools is None:
        return {}

    if not isinstance(tools, Mapping):
        raise InvalidArgumentError(field="tools", value=tools, allowed="a mapping of names to functions")

    return {name: _ready(name, tool) for name, tool in tools.items()}


def described(name: str, tool: ToolFunction | HostTool) -> HostTool:
    """Returns a tool of which nothing is left open."""
    given = tool if isinstance(tool, HostTool) else HostTool(tool)
    where = f"tools[{name!r}]"

    if not callable(given.function):
        raise InvalidArgumentError(field=where, value=given.function, allowed="a function or a HostTool")

    if given.name is not None and given.name != name:
        raise InvalidArgumentError(
            field=f"{where}.name", value=given.name, allowed=f"{name!r}, as the mapping names it, or None"
        )

    documented = inspect.getdoc(given.function) if inspect.isroutine(given.function) else None
    description = (documented or "")[:MAX_DESCRIPTION_CHARACTERS]
    return HostTool(
        function=given.function,
        name=name,
        description=description if given.description is None else given.description,
        parameters=schema_of(given.function, where) if given.parameters is None else given.parameters,
        timeout=given.timeout,
        max_calls=given.max_calls,
        awaited=is_async(given.function) if given.awaited is None else given.awaited,
    )


def is_async(function: ToolFunction) -> bool:
    """Whether a function, or an object that is called like one, is an `async def`."""
    if isinstance(function, functools.partial):
        return is_async(function.func)

    return inspect.iscoroutinefunction(function) or (
        callable(function) and inspect.iscoroutinefunction(type(function).__call__)
    )


def _ready(name: str, tool: ToolFunction | HostTool) -> ReadyTool:
    whole = described(name, tool)
    assert whole.parameters is not None, "a described tool has them"
    spec = ToolSpec(
        name=name,
        description=whole.description or "",
        parameters=whole.parameters,
        awaited=bool(whole.awaited),
        timeout_seconds=whole.timeout,
        max_calls=whole.max_calls,
    )
    check = check_of(whole.parameters, f"tools[{name!r}].parameters")
    return ReadyTool(spec=spec, function=whole.function, check=check)
