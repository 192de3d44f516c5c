"""Inspect evaluations whose samples live in sandboxes: Inspect's own checks, and its own model for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash, bash_session, python
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandbox,
)
from inspect_ai.util._sandbox import self_check

from fumehood import Sandbox
from fumehood.frameworks.inspect import FumehoodSandboxConfig, FumehoodSandboxEnvironment


def scripted(*turns: tuple[str, dict[str, str]] | str) -> Any:
    """Inspect's own model for tests: calls of tools as (name, arguments), answers as text."""
    outputs = [
        ModelOutput.from_content("mockllm/model", turn)
        if isinstance(turn, str)
        else ModelOutput.for_tool_call("mockllm/model", *turn)
        for turn in turns
    ]

    for output in outputs:
        # Otherwise it would count tokens, with tables from the network.
        output.usage = ModelUsage()

    return get_model("mockllm/model", custom_outputs=outputs)


def run(task: Task, folder: Path, **options: Any) -> EvalLog:
    return eval(task, display="none", log_dir=str(folder), **options)[0]


def said(log: EvalLog) -> list[tuple[str, str]]:
    """What each call of a tool gave: (kind of error, text)."""
    messages = log.samples[0].messages  # type: ignore[index]
    return [
        (message.error.type if message.error else "", message.text.strip())
        for message in messages
        if isinstance(message, ChatMessageTool)
    ]


async def made(config: Any = None) -> FumehoodSandboxEnvironment:
    environments = await FumehoodSandboxEnvironment.sample_init("a test", config, {})
    return environments["default"].as_type(FumehoodSandboxEnvironment)


def test_inspects_own_checks_pass() -> None:
    """All at once, each in a sandbox of its own. Nothing in a sandbox becomes root, which one check asks for."""

    async def check(name: str) -> None:
        environment = await made()

        try:
            await getattr(self_check, name)(environment)
        finally:
            await environment.sandbox.kill()

    async def check_all(names: Sequence[str]) -> dict[str, BaseException]:
        answers = await asyncio.gather(*map(check, names), return_exceptions=True)
        return {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}

    assert len(self_check.__all__) > 40
    refused = asyncio.run(check_all(self_check.__all__))
    assert {name: type(answer) for name, answer in refused.items()} == {
        "test_exec_as_user": SandboxUserUnsupportedError
    }


def test_an_evaluation_runs_repairs_and_scores(tmp_path: Path) -> None:
    """Files and setup of the sample, an error and its repair, a timeout, files kept between steps, the score."""
    model = scripted(
        ("python", {"code": "print(sum(open('data.txt')))"}),
        ("python", {"code": "print(sum(map(int, open('data.txt'))), file=open('sum', 'w'))"}),
        ("bash", {"command": "cat sum prepared; whoami"}),
        ("bash", {"command": "sleep 1000"}),
        ("bash_session", {"action": "type_submit", "input": "echo $((6 * 7))"}),
        "It is 42.",
    )
    task = Task(
        dataset=[
            Sample("The sum?", target="42", files={"data.txt": "40\n2\n"}, setup="echo ready > prepared")
        ],
        solver=[use_tools(python(), bash(timeout=3), bash_session()), generate()],
        scorer=includes(),
        sandbox="fumehood",
    )
    log = run(task, tmp_path, model=model)
    assert log.status == "success", log.error
    failed, silent, seen, endless, typed = said(log)
    assert "TypeError" in failed[1]
    assert silent == ("", "")
    assert seen == ("", "42\nready\nuser")
    assert endless[0] == "timeout"
    assert "42" in typed[1]
    assert log.samples[0].scores["includes"].value == "C"  # type: ignore[index]
    assert Sandbox.list() == []


def test_what_a_task_says_of_its_sandboxes_holds_and_is_in_the_log(tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    @solver
    def look() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            own = sandbox().as_type(FumehoodSandboxEnvironment).sandbox
            found["info"] = await own.get_info()
            found["env"] = (await sandbox().exec(["printenv", "SEED"])).stdout
            return state

        return solve

    config = FumehoodSandboxConfig(limits={"memory_bytes": 256 * 1024**2}, envs={"SEED": "7"})
    task = Task(
        dataset=[Sample("-", target="-")],
        solver=look(),
        sandbox=SandboxEnvironmentSpec("fumehood", config),
        name="labelled",
    )
    log = run(task, tmp_path, model=scripted())
    assert log.status == "success", log.error
    assert (found["env"], found["info"].limits.memory_bytes) == ("7\n", 256 * 1024**2)
    assert found["info"].metadata == {"inspect_task": "labelled"}
    assert read_eval_log(log.location).eval.sandbox == SandboxEnvironmentSpec("fumehood", config)


def test_a_sample_that_runs_out_of_time_leaves_no_sandbox(tmp_path: Path) -> None:
    """The limit of the sample cancels the command under way."""
    began: list[str] = []

    @solver
    def hang() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            began.append(sandbox().as_type(FumehoodSandboxEnvironment).sandbox.id)
            await sandbox().exec(["sleep", "1000"])
            return state

        return solve

    task = Task(dataset=[Sample("-", target="-")], solver=hang(), sandbox="fumehood")
    log = run(task, tmp_path, model=scripted(), time_limit=1)
    assert log.samples[0].limit.type == "time"  # type: ignore[index,union-attr]
    assert len(began) == 1
    assert Sandbox.list() == []


def test_too_much_output_a_missing_program_and_a_dead_sandbox_are_reported_as_inspect_wants() -> None:
    async def ask() -> None:
        environment = await made()
        missing = await environment.exec(["no-such-program"])
        assert (missing.success, missing.returncode) == (False, 127)
        assert "no-such-program" in missing.stderr

        for command in ("yes | head -c 20000000", "yes | head -c 20000000; exit 1"):
            with pytest.raises(OutputLimitExceededError, match="10 MiB"):
                await environment.exec(["bash", "-c", command])

        await environment.sandbox.kill()

        with pytest.raises(SandboxUnavailableError):
            await environment.exec(["true"])

    asyncio.run(ask())


def test_cleaning_up_by_hand_takes_only_what_evaluations_left() -> None:
    async def clean() -> None:
        left = await made()
        chosen = await made()
        await FumehoodSandboxEnvironment.cli_cleanup(chosen.sandbox.id)
        assert not await chosen.sandbox.is_running()
        assert await left.sandbox.is_running()
        await FumehoodSandboxEnvironment.cli_cleanup(None)
        assert not await left.sandbox.is_running()

    with Sandbox() as other:
        asyncio.run(clean())
        assert other.is_running()


def test_a_configuration_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match="memroy"):
        FumehoodSandboxEnvironment.config_deserialize({"memroy": 1})
