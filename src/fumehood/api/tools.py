"""Tools: functions of the caller that code in the sandbox may call while it runs.

Carries out each call of an execution.

Runs in the caller's process, on the loop of the call that runs the code; every call is a task of its own, so that
several are under way at once. The tasks end with the execution. The code sees as little as possible of an exception in
a function, and the caller's log has all of it; an exception of `on_tool_call` ends the run.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from fumehood.api.tool_schemas import Check, check_of, schema_of
from fumehood.cancellation import cancel_and_wait, is_cancelled
from fumehood.errors import InvalidArgumentError, SandboxError
from fumehood.log import events
from fumehood.portal import Turn, awaited_apart, check_callbacks, notify
from fumehood.values.charts import JsonValue
from fumehood.values.events import Event, ToolCallEvent
from fumehood.values.requests import (
    DEFAULT_TOOL_CALLS,
    DEFAULT_TOOL_SECONDS,
    MAX_DESCRIPTION_CHARACTERS,
    MAX_ERROR_CHARACTERS,
    ToolAnswer,
    ToolSpec,
)

ToolFunction: TypeAlias = Callable[..., object]


class ToolError(Exception):
    """Raised by a tool to report an error to the code in the sandbox, which sees the message.

    For any other exception the code sees only the name of its type.
    """


@dataclass(frozen=True, slots=True)
class HostTool:
    """A function that code in the sandbox may call, with its settings.

    Attributes:
        function: The function, `def` or `async def`; arguments are passed by name.
        name: Its name in the sandbox; None: its key in the mapping.
        description: The text that `help()` shows for it in the sandbox; None: its docstring.
        parameters: JSON Schema of its arguments; None: made from its signature and hints.
        timeout: Seconds that one call may take, including the time of `on_tool_call`.
        max_calls: How often one execution may call it.
        awaited: Whether code in the sandbox awaits it; None: only if it is an `async def`.
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
    """One call, as `on_tool_call` receives it.

    Attributes:
        execution_id: The execution.
        name: The tool.
        arguments: Its arguments, by name. They fit the tool's schema; their values come from the guest.
    """

    execution_id: str
    name: str
    arguments: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyTool:
    """A tool with its schema.

    Attributes:
        spec: Its description for the sandbox.
        function: The function.
        check: Checks arguments against the schema.
    """

    spec: ToolSpec
    function: ToolFunction
    check: Check


def ready_tools(tools: Tools | None) -> Mapping[str, ReadyTool]:
    """Returns the tools of an execution by their names.

    Raises:
        InvalidArgumentError: A value cannot be a tool; the error names it.
    """
    if tools is None:
        return {}

    if not isinstance(tools, Mapping):
        raise InvalidArgumentError(field="tools", value=tools, allowed="a mapping of names to functions")

    return {name: _ready(name, tool) for name, tool in tools.items()}


def described(name: str, tool: ToolFunction | HostTool) -> HostTool:
    """Returns a tool with every default filled in."""
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
    """Returns whether a function, or a callable object, is an `async def`."""
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


# How long a cancelled function may take to end.
_CLEANUP_SECONDS = 5.0

Approval: TypeAlias = bool | str | None
AsyncToolCallback: TypeAlias = Callable[[ToolCall], Awaitable[Approval] | Approval]
# What a plain function returns is taken as it is, so both faces take the same.
ToolCallback: TypeAlias = AsyncToolCallback


class ToolRunner:
    """The tools of one execution.

    Args:
        tools: The tools by name.
        on_tool_call: Called before each call, if there is one.
        send: Sends an answer to the sandbox.
    """

    def __init__(
        self,
        tools: Mapping[str, ReadyTool],
        on_tool_call: AsyncToolCallback | None,
        send: Callable[[ToolAnswer], Awaitable[None]],
    ) -> None:
        self._tools = tools
        self._on_tool_call = on_tool_call
        self._send = send
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def follow(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """Yields the events of an execution, and answers its calls meanwhile.

        Raises:
            Exception: The exception that `on_tool_call` raised; the execution is ended.
        """
        async with aclosing(events):
            try:
                while (event := await self._next(events)) is not None:
                    if isinstance(event, ToolCallEvent):
                        self._begin(event)

                    yield event
            finally:
                await self._close()

    async def _next(self, events: AsyncGenerator[Event, None]) -> Event | None:
        """Returns the next event, or None at the end; raises at once an exception of a callback."""
        pull = asyncio.create_task(_next_or_none(events))
        try:
            futures: tuple[asyncio.Future[Any], ...] = (pull, self._failed)
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)

            if self._failed.done():
                self._failed.result()

            return pull.result()
        finally:
            await cancel_and_wait(pull)

    def _begin(self, event: ToolCallEvent) -> None:
        task = asyncio.create_task(self._serve(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()

        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_CLEANUP_SECONDS)

            for task in left:
                events.TOOL_GOES_ON.log(task=task.get_name())

        if not self._failed.cancel() and not self._failed.cancelled():
            # Retrieved once: a failure after the end is not used.
            self._failed.exception()

    async def _serve(self, event: ToolCallEvent) -> None:
        try:
            answer = await self._answer(event)

            # The reader of the events gets the sandbox's end.
            with suppress(SandboxError):
                await self._send(answer)
        except Exception as error:  # noqa: BLE001 - it is raised where the caller waits
            if not self._failed.done():
                self._failed.set_exception(error)

    async def _answer(self, event: ToolCallEvent) -> ToolAnswer:
        tool = self._tools.get(event.name)

        if tool is None:
            return _failure(event, f"{event.name}() is not known here")

        fault = tool.check(event.arguments)

        if fault is not None:
            return _failure(event, f"{event.name}(): {fault}")

        call = ToolCall(execution_id=event.execution_id, name=event.name, arguments=event.arguments)
        denial = _denial(call, await notify(self._on_tool_call, call))
        return _failure(event, denial) if denial is not None else await _call(tool, event)


def relay_tools(turn: Turn, tools: Tools | None) -> dict[str, HostTool] | None:
    """Returns an async version of tools, for the engine to await: a plain function runs in the caller's thread."""
    if tools is None or not isinstance(tools, Mapping):
        return tools

    alone = asyncio.Lock()
    return {name: _relayed(turn, alone, described(name, tool)) for name, tool in tools.items()}


def relay_approval(turn: Turn, callback: AsyncToolCallback | None) -> AsyncToolCallback | None:
    """Returns an async version of `on_tool_call`, for the engine to await."""
    check_callbacks(on_tool_call=callback)

    if callback is None:
        return None

    function = _relayed_function(turn, asyncio.Lock(), callback)

    async def ask(call: ToolCall) -> Any:
        return await function(call)

    return ask


def _relayed(turn: Turn, alone: asyncio.Lock, tool: HostTool) -> HostTool:
    return HostTool(
        function=_relayed_function(turn, alone, tool.function),
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        timeout=tool.timeout,
        max_calls=tool.max_calls,
        awaited=tool.awaited,
    )


def _relayed_function(
    turn: Turn, alone: asyncio.Lock, function: ToolFunction
) -> Callable[..., Awaitable[Any]]:
    """An async version of a tool: a coroutine function runs on the loop of callbacks, any other in the caller's thread.

    The caller's thread runs one call at a time, and begins the next when the loop has taken the result of the last one
    (`alone`): it is faster than the loop, so that the answers to a flood of calls would pile up between the two. The
    same applies to coroutines that return at once; when one waits, the next begins.
    """
    beginning = asyncio.Lock()

    async def apart(*positional: Any, **arguments: Any) -> Any:
        await beginning.acquire()

        with ExitStack() as until_it_waits:
            until_it_waits.callback(beginning.release)
            return await awaited_apart(lambda: function(*positional, **arguments), until_it_waits.close)

    async def in_callers_thread(*positional: Any, **arguments: Any) -> Any:
        is_wanted = True

        def call(_: None) -> Any:
            # The call may have been cancelled before the caller's thread gets to it.
            return function(*positional, **arguments) if is_wanted else None

        relayed = turn.relay(call)
        assert relayed is not None, "there is a callback"
        try:
            async with alone:
                value = await relayed(None)
        except asyncio.CancelledError:
            is_wanted = False
            raise

        return await awaited_apart(lambda: value) if inspect.isawaitable(value) else value

    return apart if is_async(function) else in_callers_thread


async def _next_or_none(events: AsyncGenerator[Event, None]) -> Event | None:
    try:
        return await anext(events)
    except StopAsyncIteration:
        return None


async def _call(tool: ReadyTool, event: ToolCallEvent) -> ToolAnswer:
    """Calls the function, within its time."""
    name, seconds = tool.spec.name, tool.spec.timeout_seconds
    try:
        async with asyncio.timeout(seconds) as deadline:
            value = tool.function(**event.arguments)

            if inspect.isawaitable(value):
                value = await value
    except ToolError as error:
        kind = type(error).__name__
        said = str(error) if type(error) is ToolError else f"{kind}: {error}"
        return _failure(event, said or f"{name}() failed")
    except asyncio.CancelledError:
        if is_cancelled():
            raise

        return _failure(event, f"{name}() failed with CancelledError")
    except Exception as error:  # noqa: BLE001 - whatever it is, the code hears its name and the log the rest
        if isinstance(error, TimeoutError) and deadline.expired():
            events.TOOL_TIMED_OUT.log(tool=name, timeout_seconds=seconds)
            return _failure(event, f"{name}() took longer than {seconds:g} s")

        events.TOOL_FAILED.log(exc_info=error, tool=name)
        return _failure(event, f"{name}() failed with {type(error).__name__}")

    return _success(event, value)


def _success(event: ToolCallEvent, value: Any) -> ToolAnswer:
    try:
        return ToolAnswer(execution_id=event.execution_id, request_id=event.request_id, value=value)
    except InvalidArgumentError as error:
        events.TOOL_GAVE_NO_JSON.log(tool=event.name, reason=error.log_reason)
        return _failure(event, f"{event.name}() gave something that is no JSON value, or a large one")


def _failure(event: ToolCallEvent, error: str) -> ToolAnswer:
    text = error[:MAX_ERROR_CHARACTERS].encode("utf-8", "backslashreplace").decode()[:MAX_ERROR_CHARACTERS]
    return ToolAnswer(execution_id=event.execution_id, request_id=event.request_id, error=text)


def _denial(call: ToolCall, said: object) -> str | None:
    """Returns the error of a refused call for the code; None for a call that may proceed."""
    if said is True or said is None:
        return None

    if said is False:
        return f"the call of {call.name}() was denied"

    if isinstance(said, str):
        return said

    raise InvalidArgumentError(
        field="on_tool_call", value=said, allowed="a callback that returns True, False, a text, or None"
    )
