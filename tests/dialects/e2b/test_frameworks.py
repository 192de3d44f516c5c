"""Agent frameworks that run code by E2B: their own executors, unmodified, against a server of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from smolagents import AgentError, CodeAgent, FinalAnswerTool, Model, tool
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor


@pytest.fixture
def executor() -> Iterator[E2BExecutor]:
    executor = E2BExecutor(additional_imports=[], logger=AgentLogger(level=LogLevel.OFF))
    yield executor
    executor.sandbox.kill()


def test_smolagents_keeps_state_and_hears_of_errors(executor: E2BExecutor) -> None:
    executor.send_variables({"start": 40})
    assert executor("x = start + 2\nprint('seen', x)\nx").output == "42"
    assert executor("print(x)").logs == "42\n"

    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("x / 0")


def test_smolagents_gets_pictures(executor: E2BExecutor) -> None:
    picture = executor("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.gcf()").output
    assert picture.size[0] > 100


def test_smolagents_runs_its_tools_and_takes_the_final_answer(executor: E2BExecutor) -> None:
    """Tools are sent as source, and the answer comes back as the exception that smolagents makes of it."""

    @tool
    def double(number: int) -> int:
        """Doubles a number.

        Args:
            number: What to double.
        """
        return 2 * number

    executor.send_tools({"double": double, "final_answer": FinalAnswerTool()})
    result = executor("final_answer(double(21))")
    assert (result.output, result.is_final_answer) == (42, True)


class _Scripted(Model):  # type: ignore[misc]
    """A model that says what was written down for it; the agent around it is the real one."""

    def __init__(self, *turns: str) -> None:
        super().__init__(model_id="scripted")
        self._turns = iter(turns)

    def generate(self, messages: list[ChatMessage], **_: object) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content=next(self._turns))


def test_a_smolagents_agent_repairs_its_code() -> None:
    """The whole loop of the framework: a cell that fails, its error to the model, the corrected cell, the answer."""
    model = _Scripted(
        "Thought: add\n<code>\ntotal = sum(numbers)\n</code>",
        "Thought: they were not defined\n<code>\nnumbers = [1, 2, 3]\ntotal = sum(numbers)\n</code>",
        "Thought: done\n<code>\nfinal_answer(total * 7)\n</code>",
    )
    agent = CodeAgent(tools=[], model=model, executor_type="e2b", verbosity_level=0)

    try:
        assert agent.run("What is the sum of 1, 2 and 3, times 7?") == 42
    finally:
        agent.cleanup()
