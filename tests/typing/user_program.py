"""A program as a user writes it. It is not run: the strict checker must accept it, and know each type."""

from __future__ import annotations

import asyncio
from typing import assert_type

from fumehood import (
    AsyncSandbox,
    BarChart,
    Chart,
    CommandExitError,
    CommandHandle,
    CommandResult,
    ContextInfo,
    Event,
    Execution,
    ExecutionError,
    ExecutionFinished,
    FileChange,
    FileInfo,
    HostTool,
    Limits,
    Metrics,
    Question,
    Result,
    Sandbox,
    SandboxInfo,
    StdoutEvent,
    ToolCall,
    ToolOutcome,
    WriteEntry,
    arun_code,
    run_code,
)
from fumehood.llm import Agent, AgentEvent, Answer, Price, ask


def answer(question: Question) -> str | None:
    return None if question.is_password else input(question)


def search(query: str, limit: int = 3) -> list[str]:
    return [query] * limit


async def fetch(key: int) -> int:
    return key


def approve(call: ToolCall) -> bool | str:
    return call.name == "search" or "not now"


def use_tools(sandbox: Sandbox) -> None:
    execution = sandbox.run_code(
        "search(query='x')",
        tools={"search": search, "fetch": HostTool(fetch, timeout=5, max_calls=3)},
        on_tool_call=approve,
    )
    assert_type(execution.tool_calls, tuple[ToolOutcome, ...])
    assert_type(execution.tool_calls[0].ok, bool)


def use_code(sandbox: Sandbox) -> None:
    execution = sandbox.run_code(
        "6 * 7",
        language="python",
        envs={"A": "1"},
        timeout=5,
        on_stdout=lambda text: print(text, end=""),
        on_stderr=print,
        on_result=lambda result: print(result.text),
        on_error=lambda error: print(error.name),
        on_input=answer,
    )
    assert_type(execution, Execution)
    assert_type(execution.text, str | None)
    assert_type(execution.results, tuple[Result, ...])
    assert_type(execution.logs.stdout, list[str])
    assert_type(execution.error, ExecutionError | None)
    assert_type(execution.usage.wall_seconds, float)

    for result in execution.results:
        assert_type(result.png, bytes | None)
        assert_type(result.chart, Chart | None)

        if isinstance(result.chart, BarChart):
            print([bar.value for bar in result.chart.elements])

    for event in sandbox.stream_code("print(1)"):
        assert_type(event, Event)

        match event:
            case StdoutEvent(text=text):
                assert_type(text, str)
            case ExecutionFinished(execution=done):
                assert_type(done, Execution)

    context = sandbox.create_code_context(cwd="/tmp")
    assert_type(context, ContextInfo)
    sandbox.run_code("1", context=context)
    assert_type(sandbox.interrupt(context), bool)


def use_files(sandbox: Sandbox) -> None:
    with open(__file__, "rb") as file:
        assert_type(sandbox.files.write("program.py", file), FileInfo)

    assert_type(sandbox.files.read("program.py"), str)
    assert_type(sandbox.files.read("program.py", format="bytes"), bytes)

    for piece in sandbox.files.read("program.py", format="stream"):
        assert_type(piece, bytes)

    assert_type(sandbox.files.write_files([WriteEntry("a", b"1")]), list[FileInfo])
    assert_type(sandbox.files.list(".", depth=2), list[FileInfo])

    with sandbox.files.watch(".", recursive=True) as changes:
        for change in changes:
            assert_type(change, FileChange)


def use_commands(sandbox: Sandbox) -> None:
    try:
        assert_type(sandbox.commands.run("ls"), CommandResult)
    except CommandExitError as error:
        print(error.exit_code, error.stderr)

    handle = sandbox.commands.run(["cat"], background=True, stdin=True)
    assert_type(handle, CommandHandle)
    handle.send_stdin("x")
    terminal = sandbox.pty.create(cols=100)

    for piece in terminal:
        assert_type(piece, bytes)


def use_agent(sandbox: Sandbox) -> None:
    with Agent("openai:a-model", sandbox=sandbox, prices={"a-model": Price(input=1, output=2)}) as agent:
        answer = agent.ask("How much?", files=["data.csv"])
        assert_type(answer, Answer)
        assert_type(answer.usage.cost, float | None)
        assert_type(answer.cells[0].result.execution, Execution | None)

        for event in agent.stream("And now?"):
            assert_type(event, AgentEvent)

        assert_type(agent.to_notebook(), str)

    assert_type(ask("How much?", model="anthropic:a-model"), Answer)


def main() -> None:
    with Sandbox(limits=Limits(wall_seconds=5), metadata={"who": "me"}) as sandbox:
        use_code(sandbox)
        use_files(sandbox)
        use_commands(sandbox)
        use_agent(sandbox)
        assert_type(sandbox.get_metrics(), Metrics)
        assert_type(Sandbox.list(), list[SandboxInfo])
        assert_type(Sandbox.connect(sandbox.id), Sandbox)

    assert_type(run_code("1"), Execution)


async def amain() -> None:
    async def on_stdout(text: str) -> None:
        print(text)

    async with AsyncSandbox() as sandbox:
        assert_type(await sandbox.run_code("1", on_stdout=on_stdout), Execution)
        assert_type(await sandbox.files.read("a"), str)
        assert_type(await sandbox.files.read("a", format="bytes"), bytes)

        async for piece in await sandbox.files.read("a", format="stream"):
            assert_type(piece, bytes)

        async for event in sandbox.stream_code("1"):
            assert_type(event, Event)

        assert_type(await sandbox.commands.run("ls"), CommandResult)

    assert_type(await arun_code("1"), Execution)


if __name__ == "__main__":
    main()
    asyncio.run(amain())
