"""AG2's agents with our sandboxes under its own tools; its own scripted model drives them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath
from typing import Any

import pytest
from ag2 import Agent
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig, TrackingConfig
from ag2.tools import SandboxCodeTool, SandboxShellTool
from ag2.tools.sandbox import CodeAdapter, LanguageRunner, SandboxFactory
from ag2.tools.sandbox import Sandbox as SandboxProtocol
from ag2.tools.sandbox.factory import WorkdirAware

from fumehood import AsyncSandbox, Sandbox
from fumehood.frameworks.ag2 import FumehoodCodeEnvironment, FumehoodSandbox


def with_sandbox(use: Callable[[FumehoodSandbox], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with FumehoodSandbox() as sandbox:
            return await use(sandbox)

    answer = asyncio.run(run())
    assert Sandbox.list() == []
    return answer


def call(name: str, **arguments: str) -> ToolCallEvent:
    return ToolCallEvent(name=name, arguments=json.dumps(arguments))


def heard(config: TrackingConfig) -> list[str]:
    """What the model was told after each of its calls."""
    told = [arguments[0][0].results for arguments in config.mock.call_args_list[1:]]
    return ["".join(part.content for result in results for part in result.result.parts) for results in told]


def test_it_is_what_ag2_takes_for_a_sandbox() -> None:
    sandbox = FumehoodSandbox()
    assert isinstance(sandbox, SandboxProtocol)
    assert isinstance(sandbox, SandboxFactory)
    assert isinstance(sandbox, WorkdirAware)


def test_an_agent_repairs_its_code_and_keeps_its_variables() -> None:
    config = TrackingConfig(
        TestConfig(
            call("run_code", code="numbers = [40, 2]\nprint(totl(numbers))", language="python"),
            call("run_code", code="print(sum(numbers))\nopen('answer', 'w').write('42')", language="python"),
            call("shell", command="cat answer"),
            "It is 42.",
        )
    )

    async def use(sandbox: FumehoodSandbox) -> Any:
        tools = [SandboxCodeTool(FumehoodCodeEnvironment(sandbox)), SandboxShellTool(sandbox, name="shell")]
        agent = Agent("coder", config=config, tools=tools)
        return (await agent.ask("What is the sum?")).body

    assert with_sandbox(use) == "It is 42."
    failed, answer, seen = heard(config)
    assert "NameError" in failed
    assert "exit code: 1" in failed
    assert "42" in answer
    assert "42" in seen


def test_commands_follow_the_conventions_of_ag2() -> None:
    """Output in order, exit codes as a shell gives them, a process that ran out of time is gone."""

    async def use(sandbox: FumehoodSandbox) -> None:
        mixed = await sandbox.exec(["bash", "-c", "echo out; echo $WORD >&2; exit 3"], env={"WORD": "err"})
        assert (mixed.exit_code, sorted(mixed.output.split())) == (3, ["err", "out"])
        assert (await sandbox.exec(["no-such-program"])).exit_code == 127
        assert (await sandbox.exec(["/etc/passwd"])).exit_code == 126
        late = await sandbox.exec(["bash", "-c", "echo begun; sleep 1000"], timeout=3)
        assert late.exit_code == 124
        assert late.output.startswith("begun")
        assert (await sandbox.exec(["pgrep", "sleep"])).exit_code == 1

    with_sandbox(use)


def test_files_of_other_languages_are_written_run_and_removed() -> None:
    """A language without `-c` is a file, which the adapter puts, runs and removes."""

    async def use(sandbox: FumehoodSandbox) -> None:
        runner = LanguageRunner(file_extension="awk", file_runner_argv=("awk", "-f"))
        adapter = CodeAdapter(sandbox, languages=("javascript",), runners={"javascript": runner})
        assert (await adapter.run('BEGIN { print "a file" }', "javascript")).output == "a file"
        assert (await sandbox.exec(["bash", "-c", "ls *.awk"])).exit_code == 2
        await sandbox.remove_file(PurePosixPath("never-there"))

        for path in ("/etc/passwd", "../elsewhere"):
            with pytest.raises(ValueError, match="refused"):
                await sandbox.put_file(PurePosixPath(path), b"")

    with_sandbox(use)


def test_endless_code_is_interrupted_and_its_state_kept() -> None:
    async def use(sandbox: FumehoodSandbox) -> None:
        environment = FumehoodCodeEnvironment(sandbox, timeout=3)
        assert (await environment.run("kept = 7\nwhile True: pass", "python")).exit_code == 124
        assert (await environment.run("kept * 6", "python")).output == "42"
        assert (await environment.run("1", "typescript")).exit_code == 2  # type: ignore[arg-type]

    with_sandbox(use)


def test_a_borrowed_sandbox_lives_on() -> None:
    async def run() -> None:
        async with AsyncSandbox() as own:
            async with FumehoodSandbox(own) as sandbox:
                assert (await sandbox.exec(["echo", "hello"])).output == "hello"

            assert await own.is_running()

    asyncio.run(run())


def test_one_that_was_never_used_was_never_made() -> None:
    async def run() -> None:
        async with FumehoodSandbox():
            assert await AsyncSandbox.list() == []

    asyncio.run(run())
