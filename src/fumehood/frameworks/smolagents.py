"""A sandbox as the executor of a smolagents `CodeAgent`: `CodeAgent(tools, model, executor=FumehoodExecutor())`.

Runs in the agent's process. Code runs in the sandbox; tools and managed agents run here, called back while the code
runs, so their keys and their network stay here. Outputs are text, JSON and pictures in PNG: no data from the
guest is unpickled, unlike in smolagents' own remote executors.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from fumehood import Execution, InvalidArgumentError, Result, Sandbox
from fumehood.api.silent_runs import run_silently
from fumehood.frameworks.host_functions import HostFunctions, binding, final_result, final_value
from fumehood.frameworks.images import Origin
from fumehood.frameworks.needed import needed

with needed("smolagents"):
    from smolagents.agent_types import AgentImage
    from smolagents.local_python_executor import CodeOutput, InterpreterError, PythonExecutor
    from smolagents.serialization import SafeSerializer

_FINAL = "final_answer"
_PNG = b"\x89PNG\r\n\x1a\n"
_VARIABLES = "/tmp/.fumehood-variables"  # noqa: S108 - a path inside the sandbox

# The tool by which a model ends its run. A picture, or a figure, is handed over as one.
_ANSWER = """
def final_answer(*args, **kwargs):
    import io

    only = [*args, *kwargs.values()][0] if len(args) + len(kwargs) == 1 else None
    picture = io.BytesIO()

    if hasattr(only, "savefig"):
        only.savefig(picture, format="png")
    elif type(only).__module__.startswith("PIL."):
        only.save(picture, format="png")

    if picture.getvalue():
        __fumehood_finish__(None, **{"image/png": picture.getvalue()})

    def shown(value):
        try:
            return __fumehood_plain__(value)
        except (TypeError, ValueError):
            return str(value)

    __fumehood_finish__({"args": [*map(shown, args)], "kwargs": {name: shown(value) for name, value in kwargs.items()}})
"""


class FumehoodExecutor(PythonExecutor):
    """Runs an agent's code in one sandbox, whose variables and files stay from step to step.

    Args:
        sandbox: A living sandbox, which stays yours. Without one a sandbox is made at the first use, and `cleanup()`,
            which the agent's own `cleanup()` calls, kills it.
        timeout: Seconds of one step, with the tools that it calls; `limits.wall_seconds` unless given.
        image: A container image in place of a *template*, as `build_template` takes it. The first use builds it,
            without Docker, where smolagents' own `DockerExecutor` needs one.
        dockerfile: The path of a Dockerfile that builds the image.
        options: Arguments of `fumehood.Sandbox`, such as *template*, *limits* and *url*, when one is made here.

    Attributes:
        execution: The last step, with its results in all formats.
    """

    def __init__(
        self,
        sandbox: Sandbox | None = None,
        *,
        timeout: float | None = None,
        image: str | None = None,
        dockerfile: str | None = None,
        **options: Any,
    ) -> None:
        chosen = {name: options[name] for name in ("template", "url") if options.get(name) is not None}
        self._origin = Origin(image=image, dockerfile=dockerfile, **chosen)

        if sandbox is not None and (options or image is not None or dockerfile is not None):
            raise InvalidArgumentError(
                field="options", value=options, allowed="nothing when a sandbox is given"
            )

        self.execution: Execution | None = None
        self._options = options
        self._sandbox = sandbox
        self._is_owner = sandbox is None
        self._timeout = timeout
        self._tools: dict[str, Callable[..., Any]] = {}

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, made now if there is none yet."""
        if self._sandbox is None:
            options = self._options

            if self._origin.is_image:
                options = {**options, "template": self._origin.build()}

            self._sandbox = Sandbox(**options)

        return self._sandbox

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Set the tools and managed agents that the code may call from now on."""
        self._tools = dict(tools)

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Put variables into the namespace: plain values, pictures, arrays and dates, in smolagents' own encoding."""
        if not variables:
            return

        self.sandbox.files.write(_VARIABLES, SafeSerializer.dumps(variables))
        read = f"globals().update(_deserialize(open({_VARIABLES!r}).read()))"
        execution = run_silently(self.sandbox, f"{SafeSerializer.get_deserializer_code(False)}\n{read}")

        if execution.error is not None:
            raise InterpreterError(f"the variables did not arrive: {execution.error}")

    def __call__(self, code_action: str) -> CodeOutput:
        """Run the code of one step."""
        functions = {name: tool for name, tool in self._tools.items() if name != _FINAL}
        bound = run_silently(self.sandbox, binding(functions, _ANSWER))

        if bound.error is not None:
            raise InterpreterError(f"the sandbox could not be prepared: {bound.error}")

        tools = HostFunctions(functions).tools()
        self.execution = execution = self.sandbox.run_code(code_action, tools=tools, timeout=self._timeout)
        logs, final = str(execution.logs), final_result(execution)

        if final is not None:
            return CodeOutput(output=self._answer(final), logs=logs, is_final_answer=True)

        if execution.error is not None:
            raise InterpreterError(f"{logs}\n{execution.error}" if logs else str(execution.error))

        return CodeOutput(output=_output(execution), logs=logs, is_final_answer=False)

    def cleanup(self) -> None:
        """Kill the sandbox, if it was made here; a later use makes another."""
        if self._is_owner and self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            sandbox.kill()

    def __enter__(self) -> FumehoodExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.cleanup()

    def _answer(self, final: Result) -> Any:
        """Return the final answer that the agent's own tool makes from the value in the code."""
        tool: Callable[..., Any] = self._tools.get(_FINAL, _as_it_is)
        picture = _picture(final)

        if picture is not None:
            return tool(picture)

        match final_value(final):
            case {"args": list(args), "kwargs": dict(kwargs)}:
                return tool(*args, **kwargs)
            case _:
                raise InterpreterError("the code ended itself without final_answer()")


def _as_it_is(answer: Any = None) -> Any:
    return answer


def _output(execution: Execution) -> Any:
    main = next((result for result in execution.results if result.is_main_result), None)
    return None if main is None else _picture(main) or main.text


def _picture(result: Result) -> Any:
    if result.png is None:
        return None

    # By its first bytes it is one decoder's and no other's.
    if not result.png.startswith(_PNG):
        return None

    try:
        # The framework parses the header, and the pixels when they are used.
        return AgentImage(result.png).to_raw()
    except (OSError, SyntaxError, ValueError):
        return None
