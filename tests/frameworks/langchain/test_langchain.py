"""The interpreter as a tool of a real LangChain agent, whose scripted model errs, repairs, and draws."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from fumehood import Sandbox
from fumehood.frameworks.langchain import FumehoodTool
from fumehood.llm import CodeInterpreter

DRAW = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nopen('/mnt/data/made.txt', 'w').write('x')"


class ScriptedModel(GenericFakeChatModel):
    """Says what the test wrote down, one message a turn."""

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedModel:
        return self


def _writes(*codes: str) -> ScriptedModel:
    calls = [
        AIMessage("", tool_calls=[{"name": "run_code", "args": {"code": code}, "id": f"call-{number}"}])
        for number, code in enumerate(codes)
    ]
    return ScriptedModel(messages=iter([*calls, AIMessage("done")]))


@pytest.fixture
def tool() -> Iterator[FumehoodTool]:
    with FumehoodTool() as tool:
        yield tool


def _told(done: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in done["messages"] if isinstance(message, ToolMessage)]


def _check(told: list[ToolMessage]) -> None:
    assert "NameError" in told[1].text
    assert told[1].artifact["error"]["name"] == "NameError"
    assert told[1].artifact["is_error"]
    assert "42" in told[2].text
    assert told[2].artifact["value"] == "42"

    text, picture = told[3].content_blocks
    assert text["type"] == "text"
    assert "made.txt" in text["text"]
    assert (picture["type"], picture["mime_type"]) == ("image", "image/png")
    assert base64.b64decode(picture["base64"]).startswith(b"\x89PNG")
    assert [file["path"] for file in told[3].artifact["files"]] == ["/mnt/data/made.txt"]


def test_state_repair_pictures_and_files(tool):
    """A variable, an error with its line, the repair that still has the variable, a figure and a file."""
    agent = create_agent(_writes("x = 20", "x + y", "x + 22", DRAW), [tool], checkpointer=InMemorySaver())
    configuration = {"configurable": {"thread_id": "1"}}
    done = agent.invoke({"messages": [("user", "compute")]}, configuration)

    assert done["messages"][-1].content == "done"
    _check(_told(done))
    # What a checkpointer has kept is the same, artifacts included.
    _check(_told(agent.get_state(configuration).values))


def test_the_same_on_a_loop(tool):
    """`ainvoke` runs the same tool."""
    agent = create_agent(_writes("x = 20", "x + y", "x + 22", DRAW), [tool])
    _check(_told(asyncio.run(agent.ainvoke({"messages": [("user", "compute")]}))))


def test_the_model_is_reported_what_the_tool_is(tool):
    """Name, argument and description are those of the interpreter."""
    assert tool.name == "run_code"
    assert list(tool.tool_call_schema.model_json_schema()["properties"]) == ["code"]
    assert "kept between calls" in tool.description
    assert "6 * 7" not in tool.invoke({"code": "6 * 7"})
    assert FumehoodTool(tool.interpreter, name="compute").name == "compute"


def test_a_call_that_is_given_up_stops_its_code(tool):
    """Cancelling an asynchronous call interrupts what runs; the state stays."""
    tool.invoke({"code": "n = 1"})

    async def give_up() -> None:
        call = asyncio.ensure_future(tool.ainvoke({"code": "open('begun', 'w').close()\nwhile True: n += 1"}))

        while not await asyncio.to_thread(tool.interpreter.sandbox.files.exists, "begun"):
            await asyncio.sleep(0.02)

        call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(give_up())
    assert "True" in tool.invoke({"code": "n > 1"})


def test_what_was_lent_stays():
    """A tool kills the sandbox that it made, and no other."""
    with Sandbox() as sandbox:
        with FumehoodTool(sandbox=sandbox) as tool:
            tool.invoke({"code": "x = 1"})

        with CodeInterpreter(sandbox) as interpreter, FumehoodTool(interpreter) as tool:
            assert tool.invoke({"code": "x"}).strip().endswith("1")

        assert sandbox.is_running()

    with FumehoodTool() as tool:
        tool.invoke({"code": "x = 1"})
        made = tool.interpreter.sandbox

    assert not made.is_running()
