"""Functions of the host under their own names in a sandbox's code, and a final value with which code ends itself.

Shared by the adapters whose frameworks let models call functions by position and by name, and stop by calling one more.
Runs in the user's process; nothing here knows a framework. The sandbox gets one tool, by which stubs of the same names
call the functions; arguments are JSON, checked and bounded by the core, and the code sees the message of an exception
in a function, as in these frameworks: put no secret into a message.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fumehood import Execution, HostTool, Result, ToolError

FINAL_MIME = "application/vnd.fumehood.final"
# The exception by which code ends itself inside; its frames are not shown.
FINAL_ERROR = "FumehoodFinal"

_TOOL = "__fumehood_call__"
_LONGEST_SECONDS = 86_400
_MAX_CALLS = 10_000
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "args": {"type": "array"}, "kwargs": {"type": "object"}},
    "required": ["name", "args", "kwargs"],
    "additionalProperties": False,
}

# Runs inside before each piece of code, so that code which has overwritten a name has it again. What JSON does not
# know but has a plain form, as numbers and arrays of NumPy have, is given in that form.
_INSIDE = '''
class FumehoodFinal(BaseException):
    """Ends the code: its value has been handed over."""

def __fumehood_plain__(value):
    import json

    def convert(other):
        if hasattr(other, "tolist"):
            return other.tolist()
        if isinstance(other, (set, frozenset)):
            return list(other)
        raise TypeError(f"a {type(other).__name__} is nothing that a function outside of the sandbox can be given")

    return json.loads(json.dumps(value, default=convert, allow_nan=False))

def __fumehood_finish__(value, **parts):
    from IPython.display import display
    display({"application/json": {"value": value}, "FINAL_MIME": "1", **parts}, raw=True)
    raise FumehoodFinal()

def __fumehood_bind__(names):
    space = globals()

    def stand_in(name):
        def call(*args, **kwargs):
            given = __fumehood_plain__({"args": args, "kwargs": kwargs})
            return __fumehood_call__(name=name, **given)

        call.__name__ = call.__qualname__ = name
        return call

    for name, function in space.get("__fumehood_lent__", {}).items():
        if space.get(name) is function:
            del space[name]

    space["__fumehood_lent__"] = {name: stand_in(name) for name in names}
    space.update(space["__fumehood_lent__"])
'''.replace("FINAL_MIME", FINAL_MIME)


class HostFunctions:
    """Functions that code inside calls by name.

    Args:
        functions: The functions by name; looked up at each call, so the mapping may change between executions.
        encode: Converts returned values to JSON values; by default, values that `json` cannot encode become text.
    """

    def __init__(
        self, functions: Mapping[str, Callable[..., Any]], *, encode: Callable[[Any], Any] | None = None
    ) -> None:
        self._functions = functions
        self._encode = _as_json if encode is None else encode

    def tools(self, *, on_a_loop: bool = False) -> dict[str, HostTool]:
        """The `tools` argument of `run_code`: for a `Sandbox`, or with a loop for an `AsyncSandbox`."""
        tool = HostTool(
            self.call_on_a_loop if on_a_loop else self.call,
            parameters=_SCHEMA,
            timeout=_LONGEST_SECONDS,
            max_calls=_MAX_CALLS,
            awaited=False,
        )
        return {_TOOL: tool}

    def call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call one of the functions, in this thread.

        Raises:
            ToolError: No function has this name, or it failed.
        """
        function = self._function(name)

        try:
            value = function(*args, **kwargs)
            return self._encode(_finished(value) if isinstance(value, Awaitable) else value)
        except Exception as error:
            raise _failure(name, error) from error

    async def call_on_a_loop(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call and await one of the functions, a synchronous one in a worker thread; raises like `call`."""
        function = self._function(name)

        try:
            if inspect.iscoroutinefunction(function):
                return self._encode(await function(*args, **kwargs))

            value = await asyncio.to_thread(function, *args, **kwargs)
            return self._encode(await value if isinstance(value, Awaitable) else value)
        except Exception as error:
            raise _failure(name, error) from error

    def _function(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            raise ToolError(f"{name}() is not there any more")

        return self._functions[name]


def binding(names: Iterable[str], more: str = "") -> str:
    """Return the code that defines stubs for exactly these functions in a sandbox's namespace.

    Args:
        names: The names of the functions, which must be identifiers.
        more: Further definitions, which may use `__fumehood_finish__(value, **parts)`.
    """
    return f"{_INSIDE}\n{more}\n__fumehood_bind__({json.dumps([*names])})\n"


def final_result(execution: Execution) -> Result | None:
    """Return the result with the final value, if the code ended itself with one; else None."""
    if execution.error is None or execution.error.name != FINAL_ERROR:
        return None

    return next((result for result in reversed(execution.results) if FINAL_MIME in result.parts), None)


def final_value(result: Result) -> Any:
    """Return the final value that a result holds.

    Raises:
        ValueError: The value was cut, because it is larger than `limits.result_bytes`.
    """
    if not isinstance(result.json, dict) or "value" not in result.json:
        raise ValueError("the final value is too large: `limits.result_bytes` bounds it")

    return result.json["value"]


def _failure(name: str, error: Exception) -> ToolError:
    return ToolError(f"{name}() failed with {type(error).__name__}: {error}")


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _finished(awaitable: Awaitable[Any]) -> Any:
    """Run the awaitable of an asynchronous function on a loop of its own, and return its result."""

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())

    context = contextvars.copy_context()

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(context.run, asyncio.run, wait()).result()
