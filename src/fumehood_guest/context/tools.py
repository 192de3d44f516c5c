"""Tools: functions of the host that the running cell calls, available in its namespace while it runs.

Runs in a context, in any of its threads. A call sends its arguments as JSON and waits for the answer, blocking or
awaiting; every failure is a ToolError, and the cell goes on. Checks here only save a round trip: the host trusts none
of them, and checks again. A tool that was kept beyond its cell, or is called in a forked process, raises an error and
sends nothing.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

from fumehood_guest.context.outlet import GuestExecution, Outlet
from fumehood_guest.context.replies import Frame, Replies, Waiter
from fumehood_guest.context.streams import Streams
from fumehood_wire.messages import MAX_TOOL_ARGUMENT_BYTES

if TYPE_CHECKING:
    import inspect

# Below what fumehood_wire.frames allows, with room for the object around the arguments.
_MAX_DEPTH = 30
_MAX_VALUES = 50_000
_MAX_INTEGER = 10**20
_NAMESPACE_NAME = "ToolError"
_to_json = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


class ToolError(Exception):
    """A call of a tool failed; the message is the reason.

    Attributes:
        tool: The tool's name.
    """

    def __init__(self, message: str = "", tool: str = "") -> None:
        super().__init__(message)
        self.tool = tool


class HostTools:
    """Adds tools to a namespace, and removes them."""

    def __init__(
        self, outlet: Outlet, streams: Streams, replies: Replies, namespace: Callable[[], Dict[str, Any]]
    ) -> None:
        self._outlet = outlet
        self._streams = streams
        self._replies = replies
        self._namespace = namespace
        self._lent: Dict[str, Any] = {}
        self._hidden: Dict[str, Any] = {}

    def lend(self, execution: GuestExecution) -> None:
        """Adds the tools of an execution; `take_back` restores names that they hide."""
        if not execution.tools:
            return

        line = _Line(execution, self._outlet, self._streams, self._replies)
        namespace = self._namespace()
        namespace.setdefault(_NAMESPACE_NAME, ToolError)
        self._lent = {tool["name"]: _make(line, tool) for tool in execution.tools}
        self._hidden = {name: namespace[name] for name in self._lent if name in namespace}
        namespace.update(self._lent)

    def take_back(self) -> None:
        """Removes the tools, at the end of the execution."""
        if not self._lent:
            return

        namespace = self._namespace()

        for name, function in self._lent.items():
            if namespace.get(name) is not function:
                continue

            if name in self._hidden:
                namespace[name] = self._hidden[name]
            else:
                del namespace[name]

        self._lent, self._hidden = {}, {}


class _Line:
    """Sends the tool calls of one execution to the host."""

    def __init__(self, execution: GuestExecution, outlet: Outlet, streams: Streams, replies: Replies) -> None:
        self._execution = execution
        self._outlet = outlet
        self._streams = streams
        self._replies = replies
        self._calls = 0

    def call(self, tool: Mapping[str, Any], positional: Tuple[Any, ...], arguments: Dict[str, Any]) -> Any:
        """Calls a tool and blocks until it has answered."""
        waiter = self._send(tool, positional, arguments)
        return _read(tool["name"], self._replies.wait(waiter))

    async def call_async(
        self, tool: Mapping[str, Any], positional: Tuple[Any, ...], arguments: Dict[str, Any]
    ) -> Any:
        """Calls a tool and awaits its answer."""
        # Imported late: contexts of other languages have no coroutines.
        import asyncio

        # Raises without a running loop, before anything is sent.
        asyncio.get_running_loop()
        waiter = self._send(tool, positional, arguments)
        return _read(tool["name"], await self._replies.wait_async(waiter))

    def _send(
        self, tool: Mapping[str, Any], positional: Tuple[Any, ...], arguments: Dict[str, Any]
    ) -> Waiter:
        name = tool["name"]

        if self._outlet.is_detached:
            raise ToolError(
                f"{name}() can be called in the process that runs the cell, not in one that it forked", name
            )

        if positional:
            example = ", ".join(f"{one}=..." for one in (*tool["required"], *tool["optional"]))
            raise TypeError(f"{name}() takes its arguments by name: {name}({example})")

        payload = _encode(name, arguments)
        self._streams.flush()

        with self._replies.held():
            if self._outlet.execution is not self._execution:
                raise ToolError(f"{name}() was given to an execution that has ended", name)

            if self._calls >= self._execution.tool_calls:
                raise ToolError(
                    f"{name}(): this execution has made all of its {self._calls:,} calls of tools", name
                )

            # Higher than the last in any case: an interrupt may leave a gap.
            self._calls += 1
            number = self._calls
            waiter = self._replies.expect(("tool_reply", self._execution.id, number))

            if waiter.is_done:
                raise ToolError(f"{name}() was given to an execution that has ended", name)

            self._outlet.call_tool(number, name, payload)
            return waiter


def _make(line: _Line, tool: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns the function for the namespace."""
    function: Any

    if tool["awaited"]:

        async def call_and_await(*positional: Any, **arguments: Any) -> Any:
            return await line.call_async(tool, positional, arguments)

        function = call_and_await
    else:

        def call(*positional: Any, **arguments: Any) -> Any:
            return line.call(tool, positional, arguments)

        function = call

    function.__name__ = function.__qualname__ = tool["name"]
    function.__module__ = "__main__"
    function.__doc__ = tool["description"]
    function.__signature__ = _signature(tool["required"], tool["optional"])
    return function  # type: ignore[no-any-return]


def _signature(required: List[str], optional: List[str]) -> inspect.Signature:
    # Imported late: contexts of other languages have no tools.
    import inspect

    kind = inspect.Parameter.KEYWORD_ONLY
    known = [inspect.Parameter(name, kind) for name in required if name.isidentifier()]
    known += [inspect.Parameter(name, kind, default=...) for name in optional if name.isidentifier()]
    return inspect.Signature(known)


def _read(name: str, reply: Optional[Frame]) -> Any:
    if reply is None:
        raise ToolError(f"{name}() was not answered before its execution ended", name)

    header, payload = reply
    value = json.loads(payload)

    if not header["ok"]:
        raise ToolError(value, name)

    return value


def _encode(name: str, arguments: Dict[str, Any]) -> bytes:
    values = 0

    for argument, value in arguments.items():
        faults = _Faults()
        fault = faults.of(value, argument, 1)
        values += faults.values

        if fault is not None:
            raise ToolError(f"{name}(): the argument {fault}", name)

    if values > _MAX_VALUES:
        raise ToolError(f"{name}(): the arguments hold more than {_MAX_VALUES:,} values", name)

    payload = _to_json(arguments).encode("ascii")

    if len(payload) > MAX_TOOL_ARGUMENT_BYTES:
        largest = max(arguments, key=lambda one: len(_to_json(arguments[one])))
        raise ToolError(
            f"{name}(): the arguments take {len(payload):,} bytes as JSON, and may take {MAX_TOOL_ARGUMENT_BYTES:,};"
            f" the largest is {largest!r}",
            name,
        )

    return payload


class _Faults:
    """Finds values that JSON cannot hold."""

    def __init__(self) -> None:
        self.values = 0

    def of(self, value: Any, where: str, depth: int) -> Optional[str]:
        """Returns what is wrong with a value, beginning with its place; None if it is valid."""
        self.values += 1

        if value is None or isinstance(value, bool):
            return None

        if isinstance(value, str):
            return None if _is_whole(value) else f"{where} is text that UTF-8 cannot hold"

        if isinstance(value, int):
            return None if -_MAX_INTEGER < value < _MAX_INTEGER else f"{where} has more than 20 digits"

        if isinstance(value, float):
            return None if math.isfinite(value) else f"{where} is {value!r}, which JSON does not know"

        if not isinstance(value, (list, tuple, dict)):
            return f"{where} is of type {type(value).__name__}, which JSON does not know"

        if depth > _MAX_DEPTH:
            return f"{where} is nested more than {_MAX_DEPTH} deep"

        if self.values + len(value) > _MAX_VALUES:
            return f"{where} holds more than {_MAX_VALUES:,} values"

        if isinstance(value, dict):
            return self._of_dict(value, where, depth)

        places = ((f"{where}[{place}]", item) for place, item in enumerate(value))
        return next((fault for at, item in places if (fault := self.of(item, at, depth + 1))), None)

    def _of_dict(self, value: Dict[Any, Any], where: str, depth: int) -> Optional[str]:
        for key, item in value.items():
            if not isinstance(key, str):
                return f"{where} has the key {key!r:.100}, and keys of JSON are text"

            if not _is_whole(key):
                return f"{where} has the key {key!r:.100}, which UTF-8 cannot hold"

            fault = self.of(item, f"{where}[{key[:40]!r}]", depth + 1)

            if fault is not None:
                return fault

        return None


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False

    return True
