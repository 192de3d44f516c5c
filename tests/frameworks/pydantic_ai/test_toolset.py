"""The interpreter as a toolset of a real agent, whose scripted model errs, repairs, and draws."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from fumehood import AsyncSandbox
from fumehood.frameworks.pydantic_ai_toolset import FumehoodToolset
from fumehood.llm import AsyncCodeInterpreter

DRAW = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nopen('/mnt/data/made.txt', 'w').write('x')"


@pytest.fixture
def anyio_backend() -> str:
    """What fumehood's asynchronous API runs on."""
    return "asyncio"


class Script:
    """A model that writes these pieces of code, one a turn, and remembers what it was told."""

    def __init__(self, *codes: str) -> None:
        self._codes = list(codes)
        self.told: list[ToolReturnPart] = []
        self.seen: list[AgentInfo] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append(info)
        self.told += [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]

        if not self._codes:
            return ModelResponse(parts=[TextPart("done")])

        return ModelResponse(parts=[ToolCallPart("run_code", {"code": self._codes.pop(0)})])


@pytest.mark.anyio
async def test_state_repair_pictures_and_files():
    """One run: a variable, an error with its line, the repair that still has the variable, a figure and a file."""
    script = Script("x = 20", "x + y", "x + 22", DRAW)
    before = {info.id for info in await AsyncSandbox.list()}
    done = await Agent(FunctionModel(script), toolsets=[FumehoodToolset()]).run("compute")

    assert done.output == "done"
    assert "NameError" in str(script.told[1].content)
    assert script.told[1].metadata["is_error"]
    assert "42" in str(script.told[2].content)

    text, picture = script.told[3].content
    assert "made.txt" in text
    assert isinstance(picture, BinaryContent)
    assert picture.media_type == "image/png"
    assert picture.data.startswith(b"\x89PNG")
    assert [file["path"] for file in script.told[3].metadata["files"]] == ["/mnt/data/made.txt"]

    # The whole conversation can be kept as JSON, and the sandbox is gone.
    assert b"made.txt" in done.all_messages_json()
    assert {info.id for info in await AsyncSandbox.list()} == before


@pytest.mark.anyio
async def test_the_model_is_reported_what_the_tool_is():
    """Name, argument, description and instructions reach the model."""
    script = Script()
    await Agent(FunctionModel(script), toolsets=[FumehoodToolset()]).run("hello")
    tool = script.seen[0].function_tools[0]

    assert tool.name == "run_code"
    assert list(tool.parameters_json_schema["properties"]) == ["code"]
    assert "kept between calls" in (tool.description or "")
    assert "Python" in (script.seen[0].instructions or "")


@pytest.mark.anyio
async def test_runs_have_sandboxes_of_their_own():
    """What one run defines is not there in the next."""
    agent = Agent(FunctionModel(first := Script("secret = 1")), toolsets=[FumehoodToolset()])
    await agent.run("define")
    second = Script("'secret' in globals()")
    await agent.run("look", model=FunctionModel(second))

    assert len(first.told) == 1
    assert "False" in str(second.told[0].content)


@pytest.mark.anyio
async def test_an_interpreter_that_was_lent_goes_on():
    """A lent interpreter keeps its state over runs, and lives on."""
    async with AsyncCodeInterpreter() as interpreter:
        toolset = FumehoodToolset(interpreter)
        await Agent(FunctionModel(Script("x = 41")), toolsets=[toolset]).run("define")
        script = Script("x + 1")
        await Agent(FunctionModel(script), toolsets=[toolset]).run("use")

        assert "42" in str(script.told[0].content)
        assert await interpreter.sandbox.is_running()


def test_a_synchronous_run_works_too():
    """`run_sync` has a loop of its own for each call."""
    toolset = FumehoodToolset()

    for _ in range(2):
        script = Script("6 * 7")
        Agent(FunctionModel(script), toolsets=[toolset]).run_sync("compute")
        assert "42" in str(script.told[0].content)
