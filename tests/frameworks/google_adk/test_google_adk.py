"""ADK's agents with our executor: runner, sessions and artifacts are ADK's own, the model says what is written down."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from fumehood import Sandbox
from fumehood.frameworks.google_adk import FumehoodCodeExecutor


class Scripted(BaseLlm):
    """Says each turn in order."""

    model: str = "scripted"
    turns: list[str]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        part = types.Part(text=self.turns.pop(0))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def block(code: str) -> str:
    return f"Let me see.\n```python\n{code}\n```"


class Scene:
    """One app with one agent."""

    def __init__(self, executor: FumehoodCodeExecutor, *turns: str) -> None:
        self.model = Scripted(turns=list(turns))
        agent = LlmAgent(name="coder", model=self.model, code_executor=executor)
        self.runner = InMemoryRunner(agent, app_name="app")

    async def say(self, session_id: str, *parts: types.Part) -> list[Event]:
        service = self.runner.session_service

        if await service.get_session(app_name="app", user_id="u", session_id=session_id) is None:
            await service.create_session(app_name="app", user_id="u", session_id=session_id)

        message = types.Content(role="user", parts=list(parts) or [types.Part(text="-")])
        run = self.runner.run_async(user_id="u", session_id=session_id, new_message=message)

        async with contextlib.aclosing(run) as events:
            return [event async for event in events]

    async def artifacts(self, session_id: str) -> dict[str, bytes]:
        service, place = (
            self.runner.artifact_service,
            {"app_name": "app", "user_id": "u", "session_id": session_id},
        )
        names = await service.list_artifact_keys(**place)
        parts = [await service.load_artifact(filename=name, **place) for name in names]
        return {name: part.inline_data.data for name, part in zip(names, parts, strict=True)}


def results(events: list[Event]) -> list[tuple[str, str]]:
    """Each result of an execution, as (outcome, output)."""
    parts = [part for event in events if event.content for part in event.content.parts or []]
    found = [part.code_execution_result for part in parts if part.code_execution_result]
    return [(result.outcome.name.removeprefix("OUTCOME_"), result.output) for result in found]


@pytest.fixture
def executor() -> Any:
    with FumehoodCodeExecutor(timeout_seconds=20) as made:
        yield made

    assert Sandbox.list() == []


def test_an_agent_repairs_its_code_and_its_files_become_artifacts(executor: FumehoodCodeExecutor) -> None:
    """An error goes back to the model, variables stay, figures and files are artifacts; a warning is no failure."""
    scene = Scene(
        executor,
        block("numbers = [40, 2]\nprint(totl(numbers))"),
        block("import sys\nprint('careful', file=sys.stderr)\nprint(sum(numbers))"),
        block(
            "import matplotlib.pyplot as plt\nplt.plot(numbers)\nplt.show()\nopen('n.csv', 'w').write('40,2')"
        ),
        "It is 42.",
    )

    async def run() -> tuple[list[Event], dict[str, bytes]]:
        return await scene.say("one"), await scene.artifacts("one")

    events, artifacts = asyncio.run(run())
    failed, counted, shown = results(events)
    assert failed[0] == "FAILED"
    assert "NameError" in failed[1]
    assert counted[0] == "OK"
    assert "42" in counted[1]
    assert "n.csv" in shown[1]
    assert events[-1].content.parts[0].text == "It is 42."
    assert artifacts["n.csv"] == b"40,2"
    assert artifacts["image-1.png"].startswith(b"\x89PNG")


def test_a_data_file_of_the_user_is_explored_and_stays(executor: FumehoodCodeExecutor) -> None:
    """ADK takes a CSV out of the message, explores it with code of its own, and sends it along from then on."""
    executor.optimize_data_file = True
    turns = [
        block("df = pd.read_csv('data_1_2.csv')\nprint(df.value.sum())"),
        "42",
        block("print(len(df))"),
        "2",
    ]
    scene = Scene(executor, *turns)
    csv = types.Part.from_bytes(data=b"value\n40\n2\n", mime_type="text/csv")

    async def run() -> tuple[list[Event], list[Event], dict[str, bytes]]:
        first = await scene.say("one", types.Part(text="The sum?"), csv)
        return first, await scene.say("one"), await scene.artifacts("one")

    first, second, artifacts = asyncio.run(run())
    explored, summed = results(first)
    assert "Total rows: 2" in explored[1]
    assert "42" in summed[1]
    assert "2" in results(second)[0][1]
    assert artifacts == {}


def test_sessions_share_neither_variables_nor_files(executor: FumehoodCodeExecutor) -> None:
    code = "import os\nprint('secret' in globals(), os.path.exists('note'))"
    secret = block("secret = 1\nopen('note', 'w').close()")
    scene = Scene(executor, secret, "done", block(code), "done", block(code), "done")

    async def run() -> list[tuple[str, str]]:
        await scene.say("one")
        return [results(await scene.say(name))[0] for name in ("two", "one")]

    other, same = asyncio.run(run())
    assert "False False" in other[1]
    assert "True True" in same[1]
    assert len(Sandbox.list()) == 2
    executor.close_session("two")
    assert len(Sandbox.list()) == 1


def test_the_session_that_was_not_used_for_longest_makes_room() -> None:
    with FumehoodCodeExecutor(max_sessions=2) as executor:
        for name in ("one", "two", "one", "three"):
            executor.execute_code(None, CodeExecutionInput(code=f"{name} = 1", execution_id=name))  # type: ignore[arg-type]

        assert len(Sandbox.list()) == 2
        kept = executor.execute_code(None, CodeExecutionInput(code="one", execution_id="one"))  # type: ignore[arg-type]
        assert kept.exit_code == 0


def test_endless_code_is_a_failure_that_tells_the_time_and_keeps_the_state() -> None:
    with FumehoodCodeExecutor(timeout_seconds=3) as executor:
        scene = Scene(executor, block("kept = 7\nwhile True: pass"), block("print(kept * 6)"), "42")
        late, after = results(asyncio.run(scene.say("one")))

    assert late[0] == "FAILED"
    assert "TimeLimitExceeded" in late[1] or "time" in late[1].lower()
    assert "42" in after[1]


def test_without_state_each_execution_has_a_sandbox_of_its_own() -> None:
    executor = FumehoodCodeExecutor(stateful=False)
    scene = Scene(executor, block("x = 1"), block("print(x)"), "done")
    assert [outcome for outcome, _ in results(asyncio.run(scene.say("one")))] == ["OK", "FAILED"]
    assert Sandbox.list() == []


def test_exit_codes_and_input_files_of_both_kinds(executor: FumehoodCodeExecutor) -> None:
    """Content may be the bytes themselves, or text in base64."""
    files = [File("raw.bin", b"\x00\x01"), File("coded.bin", base64.b64encode(b"\x02\x03").decode())]
    code = "open('raw.bin', 'rb').read() + open('coded.bin', 'rb').read()"
    given = CodeExecutionInput(code=code, input_files=files, execution_id="s")
    result = executor.execute_code(None, given)  # type: ignore[arg-type]
    assert (result.exit_code, result.stderr, result.output_files) == (0, "", [])
    assert r"b'\x00\x01\x02\x03'" in result.stdout
    failed = executor.execute_code(None, CodeExecutionInput(code="1 / 0", execution_id="s"))  # type: ignore[arg-type]
    assert (failed.exit_code, failed.stdout) == (1, "")


def test_a_sandbox_of_yours_lives_on() -> None:
    with Sandbox() as sandbox:
        with FumehoodCodeExecutor(options={"sandbox": sandbox}) as executor:
            given = CodeExecutionInput(code="x = 42", execution_id="s")
            assert executor.execute_code(None, given).exit_code == 0  # type: ignore[arg-type]

        assert sandbox.run_code("x").text == "42"
