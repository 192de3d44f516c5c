"""A sandbox as the code interpreter of DSPy: `dspy.configure(interpreter_factory=FumehoodInterpreter)`.

Runs in the program's process; a call blocks its thread, in which the tools that the code calls run meanwhile. Each
interpreter has a sandbox of its own, made at the first use. Its namespace has `SUBMIT`, the variables of the call, and
last values that come back whole: text that is run in the sandbox, from which the host takes nothing but bounded JSON.
Code that fails can be repaired and raises CodeExecutionError; a session that is lost, with all its state, raises
CodeInterpreterError, now and ever after.
"""

from __future__ import annotations

import json
import keyword
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from pydantic_core import to_jsonable_python

from fumehood import Execution, ProtocolViolationError, Sandbox, SandboxClosedError, SandboxNotFoundError
from fumehood.api.silent_runs import run_silently
from fumehood.frameworks.host_functions import HostFunctions, binding, final_result, final_value
from fumehood.frameworks.needed import needed

_VARIABLES_PATH = "/tmp/.fumehood-variables.json"  # noqa: S108 - a path inside the sandbox

# The function by which code ends a session with its answer; FIELDS is the list of names, or None.
_SUBMIT = """
def SUBMIT(*args, **kwargs):
    names = FIELDS
    if names is None:
        if len(args) != 1 or kwargs:
            raise TypeError("SUBMIT takes one value")
        values = {"output": args[0]}
    else:
        if args and kwargs or len(args) > len(names):
            raise TypeError(f"SUBMIT takes {names}, all by position or all by name")
        values = dict(zip(names, args)) if args else kwargs
        if set(values) != set(names):
            raise TypeError(f"SUBMIT takes {names}, and was given {sorted(values)}")
    try:
        values = __fumehood_plain__(values)
    except (TypeError, ValueError):
        values = {name: __fumehood_shown__(value) for name, value in values.items()}
    __fumehood_finish__(values)

def __fumehood_shown__(value):
    try:
        return __fumehood_plain__(value)
    except (TypeError, ValueError):
        return repr(value)
"""
# Plain values of last expressions come back as what they are, not as what they look like.
_VALUE_KEY = "__fumehood_value__"
_VALUES = f"""
def __fumehood_values__():
    import json

    def plain(value):
        try:
            return {{{_VALUE_KEY!r}: json.loads(json.dumps(value, allow_nan=False))}}
        except (TypeError, ValueError, RecursionError):
            return None

    formatter = get_ipython().display_formatter.formatters["application/json"]
    for kind in (str, int, float, bool, list, dict):
        formatter.for_type(kind, plain)

__fumehood_values__()
"""
_LOAD = f"""
def __fumehood_load__():
    import json, os
    with open({_VARIABLES_PATH!r}) as file:
        globals().update(json.load(file))
    os.unlink({_VARIABLES_PATH!r})

__fumehood_load__()
"""


def _namespace_code(names: Sequence[str] | None) -> str:
    """Return the code that defines `SUBMIT` for an answer with these fields, or for one value."""
    return _SUBMIT.replace("FIELDS", repr(None if names is None else [*names])) + _VALUES


with needed("dspy"):
    from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput
    from dspy.utils.callback import BaseCallback, with_callbacks

_RESERVED = frozenset({"SUBMIT", "__builtins__"})
_GONE = (ProtocolViolationError, SandboxClosedError, SandboxNotFoundError)


class FumehoodInterpreter:
    """Runs a module's code in a sandbox; state stays from call to call until `shutdown()`.

    Args:
        tools: Functions of the host that the code may call while it runs.
        output_fields: Definitions of the fields that `SUBMIT` takes; one value when there are none.
        timeout: Seconds of one execution, with the tools that it calls.
        callbacks: Callbacks of DSPy for this interpreter.
        options: Arguments of `fumehood.Sandbox`, such as *template*, *limits* and *url*.
    """

    execution_instructions = (
        "Code runs in a live CPython interpreter in an isolated sandbox without network. State, imports, functions and "
        "files persist for this session; the value of a last expression is returned. Host tools and SUBMIT are global "
        "functions and take JSON-compatible arguments."
    )

    def __init__(
        self,
        tools: dict[str, Callable[..., Any]] | None = None,
        output_fields: list[dict[str, Any]] | None = None,
        *,
        timeout: float = 600.0,
        callbacks: list[BaseCallback] | None = None,
        **options: Any,
    ) -> None:
        self.tools = dict(tools or {})
        self.output_fields = output_fields
        self.callbacks = list(callbacks or [])
        self._timeout = timeout
        self._options = options
        self._sandbox: Sandbox | None = None
        self._is_ended = False
        self._turn = threading.Lock()
        _check_names("tool", self.tools)

    @with_callbacks
    def start(self) -> None:
        """Make the sandbox, if there is none yet."""
        if self._is_ended:
            raise CodeInterpreterError("this interpreter was shut down; make a new one")

        if self._sandbox is None:
            self._sandbox = Sandbox(**self._options)

    @with_callbacks
    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """Run code; return the submitted answer, else the last value, else the output, else None."""
        _check_names("tool", self.tools)
        self._check_variables(variables or {})

        # A tool that comes back here would wait for the code that waits for the tool.
        if not self._turn.acquire(blocking=False):
            raise CodeInterpreterError("this interpreter runs code already")

        try:
            if self._sandbox is None:
                self.start()

            return self._outcome(self._run(code, variables or {}))
        except _GONE as error:
            self.shutdown()
            raise CodeInterpreterError(str(error)) from error
        finally:
            self._turn.release()

    @with_callbacks
    def invoke_tool(self, tool_name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call one of the tools with the arguments from the code."""
        return self.tools[tool_name](*args, **kwargs)

    @with_callbacks
    def shutdown(self) -> None:
        """Kill the sandbox."""
        self._is_ended = True

        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            sandbox.kill()

    def __call__(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """Run code, as `execute` does."""
        return self.execute(code, variables)

    def __enter__(self) -> FumehoodInterpreter:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.shutdown()

    def _run(self, code: str, variables: dict[str, Any]) -> Execution:
        sandbox = self._sandbox

        if sandbox is None:
            raise CodeInterpreterError("this interpreter was shut down; make a new one")

        names = None if self.output_fields is None else [field["name"] for field in self.output_fields]
        bind = binding(self.tools, _namespace_code(names))

        if variables:
            sandbox.files.write(_VARIABLES_PATH, json.dumps(variables, allow_nan=False))
            bind += _LOAD

        bound = run_silently(sandbox, bind)

        if bound.error is not None:
            self.shutdown()
            raise CodeInterpreterError(f"the sandbox could not be prepared: {bound.error}")

        functions = HostFunctions(
            {name: self._invoker(name) for name in self.tools}, encode=to_jsonable_python
        )
        return sandbox.run_code(code, tools=functions.tools(), timeout=self._timeout)

    def _invoker(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.invoke_tool(name, list(args), kwargs)

    def _outcome(self, execution: Execution) -> Any:
        final = final_result(execution)

        if final is not None:
            try:
                return FinalOutput(final_value(final))
            except ValueError as error:
                raise CodeExecutionError(str(error)) from None

        failure = execution.error
        value = _plain_value(execution)

        if failure is None and value is not None:
            return value

        shown = "".join((str(execution.logs), *_lines(execution)))

        if failure is None:
            return shown.rstrip("\n") or None

        if execution.state_lost:
            self.shutdown()
            raise CodeInterpreterError(f"{failure.name}: {failure.value}")

        if failure.name in ("SyntaxError", "IndentationError", "TabError"):
            raise SyntaxError(f"{failure.value}\n{failure.traceback}")

        raise CodeExecutionError(f"{shown}{failure}")

    def _check_variables(self, variables: dict[str, Any]) -> None:
        try:
            _check_names("variable", variables, frozenset(self.tools))
            json.dumps(variables, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CodeInterpreterError(f"variables are JSON-compatible values by name: {error}") from error


def _check_names(what: str, names: Iterable[str], taken: frozenset[str] = frozenset()) -> None:
    refused = [
        name
        for name in names
        if not isinstance(name, str)
        or not name.isidentifier()
        or keyword.iskeyword(name)
        or name in _RESERVED
        or name in taken
    ]

    if refused:
        raise ValueError(f"{what} names are identifiers that nothing else has: invalid names {refused!r}")


def _plain_value(execution: Execution) -> Any:
    main = next((result.json for result in execution.results if result.is_main_result), None)
    return main.get(_VALUE_KEY) if isinstance(main, dict) else None


def _lines(execution: Execution) -> list[str]:
    return [f"{result.text}\n" for result in execution.results if result.text is not None]
