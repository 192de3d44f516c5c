"""AutoGen's agents with our executor: the agent and the replayed model are AutoGen's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from autogen_agentchat.agents import ApprovalResponse, CodeExecutorAgent
from autogen_agentchat.messages import CodeExecutionEvent, TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.code_execution import PythonCodeExecutionTool

from fumehood import AsyncSandbox, InvalidArgumentError, Sandbox
from fumehood.frameworks.autogen import FumehoodCodeExecutor, FumehoodCodeResult


def with_executor(use: Callable[[FumehoodCodeExecutor], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with FumehoodCodeExecutor(**options) as executor:
            return await use(executor)

    return asyncio.run(run())


async def execute(executor: CodeExecutor, code: str, language: str = "python") -> Any:
    return await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())


def test_an_agent_writes_runs_and_repairs_code() -> None:
    """The whole turn of AutoGen's agent: code, its error, a retry with the state kept, and the summary."""
    model = ReplayChatCompletionClient(
        [
            "```python\nnumbers = [40, 2]\nprint(totl(numbers))\n```",
            '{"reason": "a name is misspelt", "retry": true}',
            "```python\nprint(sum(numbers))\n```",
            "The sum is 42.",
        ],
        model_info={
            "vision": False,
            "function_calling": False,
            "json_output": True,
            "family": "unknown",
            "structured_output": True,
        },
    )

    async def use(executor: FumehoodCodeExecutor) -> list[Any]:
        agent = CodeExecutorAgent(
            "coder",
            executor,
            model_client=model,
            max_retries_on_error=1,
            approval_func=lambda request: ApprovalResponse(approved=True, reason="a test"),
        )
        task = [TextMessage(content="What is the sum?", source="user")]
        return [event async for event in agent.on_messages_stream(task, CancellationToken())]

    events = with_executor(use)
    ran = [event.result for event in events if isinstance(event, CodeExecutionEvent)]
    assert [result.exit_code for result in ran] == [1, 0]
    assert "NameError" in ran[0].output
    assert ran[1].output == "42"
    assert events[-1].chat_message.content == "The sum is 42."
    assert Sandbox.list() == []


def test_a_tool_of_autogen_runs_in_the_sandbox() -> None:
    async def use(executor: FumehoodCodeExecutor) -> Any:
        tool = PythonCodeExecutionTool(executor)
        return await tool.run_json({"code": "6 * 7"}, CancellationToken())

    assert with_executor(use).output == "42"


def test_blocks_share_files_and_stop_at_the_first_that_fails() -> None:
    async def use(executor: FumehoodCodeExecutor) -> Any:
        blocks = [
            CodeBlock("echo 42 > answer", "sh"),
            CodeBlock("print(open('answer').read(), end='')", "Python"),
            CodeBlock("stop run.", "abap"),
            CodeBlock("print('never')", "python"),
        ]
        return await executor.execute_code_blocks(blocks, CancellationToken())

    result = with_executor(use)
    assert result.exit_code == 1
    assert result.output.split() == ["42", "Unsupported", "language", *result.output.split()[3:]]
    assert "never" not in result.output


def test_figures_come_with_the_result() -> None:
    async def use(executor: FumehoodCodeExecutor) -> Any:
        return await execute(executor, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")

    result = with_executor(use)
    assert isinstance(result, FumehoodCodeResult)
    assert [bool(shown.png) for shown in result.results] == [True]


def test_a_timeout_is_the_exit_code_of_autogens_own_and_keeps_the_state() -> None:
    async def use(executor: FumehoodCodeExecutor) -> Any:
        late = await execute(executor, "kept = 7\nprint('begun')\nwhile True: pass")
        return late, await execute(executor, "kept * 6")

    late, after = with_executor(use, timeout=3)
    assert late.exit_code == 124
    assert late.output.startswith("begun\n")
    assert after.output == "42"


def test_a_cancelled_token_interrupts_the_code() -> None:
    async def use(executor: FumehoodCodeExecutor) -> Any:
        sandbox = await executor._begin()
        token = CancellationToken()
        endless = [CodeBlock("open('begun', 'w').close()\nwhile True: pass", "python")]

        async with await sandbox.files.watch(".") as changes:
            running = asyncio.ensure_future(executor.execute_code_blocks(endless, token))
            await anext(changes)

        token.cancel()

        with pytest.raises(asyncio.CancelledError):
            await running

        return await execute(executor, "'free again'")

    assert with_executor(use).output == "'free again'"


def test_a_restart_forgets_variables_and_keeps_files() -> None:
    async def use(executor: FumehoodCodeExecutor) -> Any:
        await execute(executor, "x = 1\nopen('kept', 'w').close()")
        await executor.restart()
        return await execute(executor, "import os\n'x' in globals(), os.listdir()")

    output = with_executor(use).output
    assert output.startswith("(False,")
    assert "kept" in output


def test_it_is_a_component_that_can_be_saved_and_loaded() -> None:
    saved = FumehoodCodeExecutor(timeout=5, limits={"memory_bytes": 256 * 1024**2}).dump_component()
    assert saved.provider == "fumehood.frameworks.autogen.FumehoodCodeExecutor"
    loaded = CodeExecutor.load_component(saved)
    assert isinstance(loaded, FumehoodCodeExecutor)
    assert loaded.dump_component() == saved


def test_an_image_is_part_of_the_configuration() -> None:
    """A Dockerfile is built when the executor starts, and what is wrong with it is said there."""
    saved = FumehoodCodeExecutor(dockerfile="/not/there/Dockerfile").dump_component()
    loaded = CodeExecutor.load_component(saved)
    assert loaded.dump_component() == saved

    with pytest.raises(InvalidArgumentError, match="/not/there/Dockerfile"):
        asyncio.run(loaded.start())

    with pytest.raises(InvalidArgumentError, match="image"):
        FumehoodCodeExecutor(template="mine", image="debian:12")


def test_a_borrowed_sandbox_lives_on_and_is_in_no_configuration() -> None:
    async def run() -> None:
        async with AsyncSandbox() as sandbox:
            async with FumehoodCodeExecutor(sandbox) as executor:
                assert (await execute(executor, "6 * 7")).output == "42"

                with pytest.raises(InvalidArgumentError):
                    executor.dump_component()

            assert await sandbox.is_running()

    asyncio.run(run())
