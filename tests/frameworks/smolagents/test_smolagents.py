"""A sandbox behind a real CodeAgent, whose scripted model errs, repairs, calls tools, draws and answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import PIL.Image
import pytest
from smolagents import CodeAgent, Model, Tool, tool
from smolagents.agent_types import AgentImage
from smolagents.agents import ToolCallingAgent
from smolagents.local_python_executor import InterpreterError
from smolagents.memory import ActionStep
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole

from fumehood import InvalidArgumentError, Limits, Sandbox
from fumehood.frameworks.smolagents import FumehoodExecutor

_KEY = "a key of the host's"


class Script(Model):
    """A model that writes these pieces of code, one a step."""

    def __init__(self, *codes: str) -> None:
        super().__init__(model_id="script")
        self._codes = iter(codes)

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        return ChatMessage(
            role=MessageRole.ASSISTANT, content=f"Thought: go on.\n<code>\n{next(self._codes)}\n</code>"
        )


class AnswerCall(Model):
    """A model of an agent that calls tools: it answers at once."""

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        function = ChatMessageToolCallFunction(name="final_answer", arguments={"answer": "from the helper"})
        return ChatMessage(
            role=MessageRole.ASSISTANT,
            content="",
            tool_calls=[ChatMessageToolCall(id="1", type="function", function=function)],
        )


@tool
def add(left: int, right: int) -> int:
    """Add two numbers, and show that this runs where the keys are.

    Args:
        left: One.
        right: The other.
    """
    assert _KEY
    return left + right


@tool
def fail(what: str) -> str:
    """Fail.

    Args:
        what: Why.
    """
    raise ValueError(f"it failed because of {what}")


@pytest.fixture
def executor() -> Iterator[FumehoodExecutor]:
    with FumehoodExecutor() as executor:
        yield executor


def _agent(
    executor: FumehoodExecutor, *codes: str, tools: list[Tool] | None = None, **more: Any
) -> CodeAgent:
    return CodeAgent(tools=tools or [], model=Script(*codes), executor=executor, verbosity_level=0, **more)


def _steps(agent: CodeAgent) -> list[ActionStep]:
    return [step for step in agent.memory.steps if isinstance(step, ActionStep)]


def test_state_repair_tools_and_the_answer():
    """State stays between steps, an error comes back with its line, tools run on the host, an answer ends the run."""
    executor = FumehoodExecutor()
    agent = _agent(
        executor,
        "import os\nx = add(19, right=20)\nprint('x is', x)",
        "y = x + missing",
        "try:\n    fail('rain')\nexcept Exception as error:\n    print(error)\nx + 3",
        "final_answer({'sum': x + 3, 'inside': os.getpid() < 1000})\nprint('never')",
        tools=[add, fail],
    )

    assert agent.run("compute") == {"sum": 42, "inside": True}
    first, second, third, fourth = _steps(agent)
    assert "x is 39" in (first.observations or "")
    assert "NameError: name 'missing' is not defined" in second.error.message
    assert "it failed because of rain" in (third.observations or "")
    assert "Last output from code snippet:\n42" in (third.observations or "")
    assert "never" not in (fourth.observations or "")
    sandbox = executor.sandbox
    agent.cleanup()
    assert not sandbox.is_running()


def test_a_run_that_goes_on_keeps_its_state(executor):
    """`reset=False` and the next question find what was there; additional arguments arrive as variables."""
    agent = _agent(executor, "kept = table['a'][0]\nfinal_answer(kept)")
    assert (
        agent.run("look", additional_args={"table": {"a": [41]}, "picture": PIL.Image.new("RGB", (2, 3))})
        == 41
    )

    again = _agent(executor, "final_answer(kept + 1 + picture.size[1])")
    assert again.run("use") == 45


def test_pictures_are_answers(executor):
    """A figure and an image are final answers, and a last value that is a figure is seen by the step."""
    figure = "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots()\naxes.plot([1, 2])\nfinal_answer(figure)"
    answer = _agent(executor, figure).run("draw")
    assert isinstance(answer, PIL.Image.Image | AgentImage)
    assert answer.to_raw().size[0] > 100 if isinstance(answer, AgentImage) else answer.size[0] > 100

    executor.send_tools({})
    shown = executor("import PIL.Image\nPIL.Image.new('RGB', (7, 5))")
    assert not shown.is_final_answer
    assert shown.output.size == (7, 5)
    assert executor.execution is not None
    assert executor.execution.results[0].png is not None


def test_large_answers_and_strange_ones(executor):
    """An answer has no other bound than a result has; what JSON does not know becomes plain or text."""
    assert executor("final_answer('x' * 3_000_000)").output == "x" * 3_000_000
    assert executor("import numpy\nfinal_answer(numpy.arange(3))").output == [0, 1, 2]
    assert executor("final_answer(answer=(1, {2}))").output == [1, [2]]
    assert executor("final_answer(float('nan'))").output == "nan"
    assert executor("final_answer(ValueError('text'))").output == "text"

    with pytest.raises(ValueError, match="result_bytes"):
        executor("final_answer('x' * 11_000_000)")

    # What only looks like an answer is none, and what is no picture is not opened.
    forged = "display({'application/vnd.fumehood.final': '1', 'image/png': b'GIF89a'}, raw=True)"
    with pytest.raises((InterpreterError, ValueError)):
        executor(f"from IPython.display import display\n{forged}\nraise FumehoodFinal()")


def test_managed_agents_run_on_the_host(executor):
    """Code inside asks another agent, which smolagents' remote executors refuse."""
    helper = ToolCallingAgent(
        tools=[], model=AnswerCall(), name="helper", description="Helps.", verbosity_level=0
    )
    agent = _agent(
        executor, "final_answer('helper' in globals() and helper('help me'))", managed_agents=[helper]
    )

    assert "from the helper" in agent.run("ask")


def test_a_step_out_of_time_is_an_error_of_the_step():
    """Time ends the code and not the state."""
    with FumehoodExecutor(limits=Limits(wall_seconds=0.5)) as executor:
        executor("x = 1")

        with pytest.raises(InterpreterError, match="TimeLimitExceeded"):
            executor("print('begun')\nwhile True: pass")

        assert executor("x").output == "1"


def test_what_was_lent_stays():
    """An executor kills the sandbox that it made, and no other."""
    with Sandbox() as sandbox:
        agent = _agent(FumehoodExecutor(sandbox), "final_answer(1)")
        agent.run("answer")
        agent.cleanup()
        assert sandbox.is_running()

        with pytest.raises(ValueError, match="options"):
            FumehoodExecutor(sandbox, template="other")


def test_an_image_is_built_at_the_first_use(executor):
    """What is wrong with its Dockerfile is said there; beside a template or a sandbox there is no image."""
    with pytest.raises(InvalidArgumentError, match="/not/there/Dockerfile"):
        FumehoodExecutor(dockerfile="/not/there/Dockerfile")("1")

    with pytest.raises(InvalidArgumentError, match="image"):
        FumehoodExecutor(template="mine", image="debian:12")

    with pytest.raises(InvalidArgumentError):
        FumehoodExecutor(executor.sandbox, image="debian:12")
