"""Agents of the OpenAI Agents SDK that run code in a sandbox; the SDK's own scripted model drives them."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from fumehood import AsyncSandbox, Sandbox
from fumehood.frameworks.openai_agents import run_code_tool
from fumehood.llm import AsyncCodeInterpreter

set_tracing_disabled(True)


def scripted(*turns: dict[str, str] | str) -> ScriptedModel:
    """The SDK's own model for tests: a dictionary is a call of the tool with these arguments, text is the answer."""
    steps = [
        [
            assistant_message(turn)
            if isinstance(turn, str)
            else function_call("run_code", turn, call_id=f"c{number}")
        ]
        for number, turn in enumerate(turns)
    ]
    return ScriptedModel(steps)


def outputs(model: ScriptedModel) -> list[Any]:
    """What the calls of the tool gave, as it would go to the model."""
    assert model.last_call is not None
    return [item["output"] for item in model.last_call.input if item.get("type") == "function_call_output"]


def test_an_agent_repairs_its_code_and_sees_its_figure() -> None:
    """An error is an answer, variables stay, and a figure is a picture in the output of the tool."""
    model = scripted(
        {"code": "numbers = [40, 2]\nprint(totl(numbers))"},
        {"code": "total = sum(numbers)\ntotal"},
        {
            "code": "import matplotlib.pyplot as plt\nplt.plot(numbers)\nplt.show()\nopen('n.csv', 'w').write('40,2')"
        },
        "It is 42.",
    )

    async def run() -> str:
        async with AsyncCodeInterpreter() as interpreter:
            agent = Agent(name="coder", model=model, tools=[run_code_tool(interpreter)])
            return str((await Runner.run(agent, "What is the sum?")).final_output)

    assert asyncio.run(run()) == "It is 42."
    failed, total, shown = outputs(model)
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
    model = scripted({"code": "kept = 7\nwhile True: pass"}, {"code": "kept * 6"}, "42")

    async def run() -> None:
        async with AsyncSandbox() as sandbox:
            tool = run_code_tool(AsyncCodeInterpreter(sandbox), timeout=2.0)
            await Runner.run(Agent(name="coder", model=model, tools=[tool]), "-")
            assert await sandbox.is_running()

    asyncio.run(run())
    late, answer = outputs(model)
    assert "timed out" in late
    assert "42" in answer


def test_cancelling_a_run_interrupts_its_code() -> None:
    """Nothing of it runs on, and the sandbox of the caller lives."""

    async def run() -> None:
        async with AsyncSandbox() as sandbox:
            model = scripted({"code": "open('begun', 'w').close()\nwhile True: pass"})
            agent = Agent(name="coder", model=model, tools=[run_code_tool(AsyncCodeInterpreter(sandbox))])

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
    model = scripted({"code": "6 * 7"}, "done")

    async def run() -> Any:
        async with AsyncCodeInterpreter() as interpreter:
            tool = run_code_tool(interpreter, needs_approval=True)
            agent = Agent(name="coder", model=model, tools=[tool])
            first = await Runner.run(agent, "-", run_config=RunConfig(tracing_disabled=True))
            assert len(first.interruptions) == 1
            state = first.to_state()
            state.approve(first.interruptions[0])
            return (await Runner.run(agent, state)).final_output

    assert asyncio.run(run()) == "done"
    assert "42" in outputs(model)[0]
