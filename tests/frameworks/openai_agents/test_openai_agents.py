"""Agents of the OpenAI Agents SDK that run code in a sandbox; a model that says what is written down drives them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from fumehood import AsyncSandbox, Sandbox
from fumehood.frameworks.openai_agents import run_python_tool
from fumehood.llm import AsyncCodeInterpreter

set_tracing_disabled(True)


class Scripted(Model):
    """Says each turn in order: a dictionary is a call of the tool with these arguments, text is the answer."""

    def __init__(self, *turns: dict[str, str] | str) -> None:
        self._turns = iter(turns)
        self.heard: list[Any] = []

    async def get_response(
        self, system_instructions: Any, input: Any, *others: Any, **more: Any
    ) -> ModelResponse:
        self.heard = [input] if isinstance(input, str) else list(input)
        turn = next(self._turns)

        if isinstance(turn, str):
            text = ResponseOutputText(type="output_text", text=turn, annotations=[])
            said: Any = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
        else:
            number = f"call-{len(self.heard)}"
            said = ResponseFunctionToolCall(
                type="function_call", call_id=number, name="run_python", arguments=json.dumps(turn)
            )

        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    async def stream_response(self, *_: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    def outputs(self) -> list[Any]:
        """What the calls of the tool gave, as it would go to the model."""
        return [item["output"] for item in self.heard if item.get("type") == "function_call_output"]


def test_an_agent_repairs_its_code_and_sees_its_figure() -> None:
    """An error is an answer, variables stay, and a figure is a picture in the output of the tool."""
    model = Scripted(
        {"code": "numbers = [40, 2]\nprint(totl(numbers))"},
        {"code": "total = sum(numbers)\ntotal"},
        {
            "code": "import matplotlib.pyplot as plt\nplt.plot(numbers)\nplt.show()\nopen('n.csv', 'w').write('40,2')"
        },
        "It is 42.",
    )

    async def run() -> str:
        async with AsyncCodeInterpreter() as interpreter:
            agent = Agent(name="coder", model=model, tools=[run_python_tool(interpreter)])
            return str((await Runner.run(agent, "What is the sum?")).final_output)

    assert asyncio.run(run()) == "It is 42."
    failed, total, shown = model.outputs()
    assert "NameError" in failed
    assert "42" in total
    text, picture = shown
    assert (text["type"], picture["type"]) == ("input_text", "input_image")
    assert "n.csv" in text["text"]
    head, _, data = picture["image_url"].partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data).startswith(b"\x89PNG")
    assert Sandbox.list() == []


def test_a_timeout_of_the_tool_interrupts_the_code_and_keeps_its_state() -> None:
    """The framework's own timeout tells the model; the same namespace answers the next call."""
    model = Scripted({"code": "kept = 7\nwhile True: pass"}, {"code": "kept * 6"}, "42")

    async def run() -> None:
        async with AsyncSandbox() as sandbox:
            tool = run_python_tool(AsyncCodeInterpreter(sandbox), timeout=2.0)
            await Runner.run(Agent(name="coder", model=model, tools=[tool]), "-")
            assert await sandbox.is_running()

    asyncio.run(run())
    late, answer = model.outputs()
    assert "timed out" in late
    assert "42" in answer


def test_cancelling_a_run_interrupts_its_code() -> None:
    """Nothing of it runs on, and the sandbox of the caller lives."""

    async def run() -> None:
        async with AsyncSandbox() as sandbox:
            model = Scripted({"code": "open('begun', 'w').close()\nwhile True: pass"})
            agent = Agent(name="coder", model=model, tools=[run_python_tool(AsyncCodeInterpreter(sandbox))])

            async with await sandbox.files.watch(".") as changes:
                running = asyncio.ensure_future(Runner.run(agent, "-"))
                await anext(changes)

            running.cancel()

            with pytest.raises(asyncio.CancelledError):
                await running

            assert (await sandbox.run_code("'free again'")).text == "'free again'"

    asyncio.run(run())


def test_a_call_waits_for_the_users_approval() -> None:
    """Options of the SDK pass through."""
    model = Scripted({"code": "6 * 7"}, "done")

    async def run() -> Any:
        async with AsyncCodeInterpreter() as interpreter:
            tool = run_python_tool(interpreter, needs_approval=True)
            agent = Agent(name="coder", model=model, tools=[tool])
            first = await Runner.run(agent, "-", run_config=RunConfig(tracing_disabled=True))
            assert len(first.interruptions) == 1
            state = first.to_state()
            state.approve(first.interruptions[0])
            return (await Runner.run(agent, state)).final_output

    assert asyncio.run(run()) == "done"
    assert "42" in model.outputs()[0]
