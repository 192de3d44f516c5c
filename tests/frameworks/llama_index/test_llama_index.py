"""The interpreter in real agents of LlamaIndex, whose scripted models err, repair and draw."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.agent.workflow import CodeActAgent, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import (
    ChatMessage,
    CompletionResponse,
    ImageBlock,
    LLMMetadata,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from pydantic import Field

from fumehood import AsyncSandbox, InvalidArgumentError
from fumehood.frameworks.llama_index import FumehoodToolSpec
from fumehood.llm import AsyncCodeInterpreter

DRAW = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nopen('/mnt/data/made.txt', 'w').write('x')"


class ScriptedLLM(CustomLLM):
    """Says what the test wrote down, one answer a turn."""

    answers: list[str]
    prompts: list[str] = Field(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        self.prompts.append(prompt)
        return CompletionResponse(text=self.answers.pop(0))

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        raise NotImplementedError


def _calls(*codes: str) -> MockFunctionCallingLLM:
    """A model that calls the tool with these pieces of code, one a turn."""
    left = list(codes)

    def answer(_: Sequence[ChatMessage], **__: Any) -> ChatMessage:
        if not left:
            return ChatMessage(role="assistant", content="done")

        call = ToolCallBlock(
            tool_name="run_code", tool_call_id=f"call-{len(left)}", tool_kwargs={"code": left.pop(0)}
        )
        return ChatMessage(role="assistant", blocks=[call])

    return MockFunctionCallingLLM(response_generator=answer)


def test_a_function_agent_repairs_and_draws():
    """A variable, an error with its line, the repair that still has the variable, a figure and a file."""

    async def run() -> list[ToolCallResult]:
        async with FumehoodToolSpec() as spec:
            agent = FunctionAgent(tools=spec.to_tool_list(), llm=_calls("x = 20", "x + y", "x + 22", DRAW))
            running = agent.run("compute")
            results = [event async for event in running.stream_events() if isinstance(event, ToolCallResult)]
            assert str(await running) == "done"
            made = spec.interpreter.sandbox

        assert not await made.is_running()
        return results

    results = asyncio.run(run())
    assert "NameError" in results[1].tool_output.content
    assert "42" in results[2].tool_output.content

    text, picture = results[3].tool_output.blocks
    assert isinstance(text, TextBlock)
    assert "made.txt" in text.text
    assert isinstance(picture, ImageBlock)
    assert picture.image_mimetype == "image/png"
    assert base64.b64decode(picture.image or b"").startswith(b"\x89PNG")


def test_a_code_act_agent_calls_functions_of_the_host():
    """The function executes what stands between the tags of its model, which calls what it was told of."""
    calls: list[tuple[int, int]] = []

    def add(left: int, right: int) -> int:
        """Add two numbers."""
        calls.append((left, right))
        return left + right

    async def look_up(word: str) -> str:
        """Look a word up."""
        await asyncio.sleep(0)
        return f"{word} is a word"

    codes = ["x = add(1, right=19)", "print(x + y)", "print(add(x, 22), look_up('hood'))", "add('a', [1])"]
    model = ScriptedLLM(answers=[*(f"<execute>\n{code}\n</execute>" for code in codes), "It is 42."])

    async def run() -> str:
        async with FumehoodToolSpec(functions=[add, look_up]) as spec:
            agent = CodeActAgent(
                code_execute_fn=spec.run_code, tools=[add, look_up], llm=model, streaming=False
            )
            return str(await agent.run("compute"))

    assert asyncio.run(run()) == "It is 42."
    assert "def add(left" in model.prompts[0]
    assert "NameError" in model.prompts[2]
    assert "42 hood is a word" in model.prompts[3]
    assert "add() failed with TypeError: can only concatenate" in model.prompts[4]
    assert calls == [(1, 19), (20, 22), ("a", [1])]


def test_the_model_is_reported_what_the_tool_is():
    """Name, argument and description are read from the function."""
    (tool,) = FumehoodToolSpec().to_tool_list()

    assert tool.metadata.name == "run_code"
    assert list(tool.metadata.get_parameters_dict()["properties"]) == ["code"]
    assert "kept between calls" in tool.metadata.description


def test_what_was_lent_stays():
    """A tool spec ends the interpreter that it made, and no other."""

    async def run() -> None:
        async with AsyncSandbox() as sandbox:
            async with FumehoodToolSpec(sandbox=sandbox) as spec:
                await spec.run_code("x = 1")

            async with AsyncCodeInterpreter(sandbox) as interpreter, FumehoodToolSpec(interpreter) as spec:
                assert "1" in (await spec.run_code("x"))[0].text

                with pytest.raises(InvalidArgumentError, match="functions"):
                    FumehoodToolSpec(interpreter, functions=[print])

            assert await sandbox.is_running()

    asyncio.run(run())
