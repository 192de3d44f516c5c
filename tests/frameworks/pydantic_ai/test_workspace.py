"""A sandbox as a workspace: the conformance suite of Pydantic AI itself, and what it leaves open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from fumehood import AsyncSandbox, Limits
from fumehood.frameworks.pydantic_ai import FumehoodWorkspace


@pytest.fixture
def anyio_backend() -> str:
    """What fumehood's asynchronous API runs on."""
    return "asyncio"


class TestConformance(WorkspaceBackendSuite):
    """Every rule of the suite, with nothing switched off."""

    @pytest.fixture
    async def backend(self) -> AsyncIterator[WorkspaceBackend]:
        workspace = FumehoodWorkspace()
        yield workspace
        await workspace.kill()

    @pytest.fixture
    async def fresh_backend(self) -> AsyncIterator[Callable[[], WorkspaceBackend]]:
        made: list[FumehoodWorkspace] = []

        def make() -> FumehoodWorkspace:
            made.append(FumehoodWorkspace())
            return made[-1]

        yield make

        for workspace in made:
            await workspace.kill()

    @pytest.fixture
    def attach_backend(self) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: FumehoodWorkspace(ref=ref)

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        return lambda backend: backend.kill()


@pytest.mark.anyio
async def test_an_agent_works_in_the_sandbox():
    """A tool of a real agent has the workspace as `ctx.workspace`, and the end of the run leaves it alone."""

    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("compute", {"code": "print(6 * 7)"})])

        answer = messages[-1].parts[0]
        assert isinstance(answer, ToolReturnPart)
        return ModelResponse(parts=[TextPart(f"It is {answer.content}")])

    agent = Agent(FunctionModel(model))

    @agent.tool
    async def compute(ctx: RunContext[None], code: str) -> str:
        await ctx.workspace.write_text("work.py", code)
        return (await ctx.workspace.run(["python3", "work.py"])).stdout

    workspace = FumehoodWorkspace()
    done = await agent.run("What is it?", workspace=workspace)

    assert done.output == "It is 42\n"
    assert await workspace.read_bytes("/home/user/work.py") == b"print(6 * 7)"
    await workspace.kill()


@pytest.mark.anyio
async def test_output_that_was_cut_is_no_success():
    """More output than is kept raises, with its beginning and its end, whatever the exit code."""
    async with AsyncSandbox(limits=Limits(stdout_bytes=1000)) as sandbox:
        workspace = FumehoodWorkspace(sandbox)

        for ending in ("true", "false"):
            with pytest.raises(WorkspaceOutputLimitError) as caught:
                await workspace.run(f"head -c 2000 /dev/zero | tr '\\0' x; {ending}", shell=True)

            head, notice, tail = caught.value.stdout.split("\n")
            assert (caught.value.limit, head + tail) == (1000, "x" * 1000)
            assert notice == "[... 1,000 bytes of standard output left out here ...]"


@pytest.mark.anyio
async def test_what_was_written_before_the_end_of_time_is_reported():
    """A timeout carries what the command had written, and ends the processes that it started."""
    async with AsyncSandbox() as sandbox:
        workspace = FumehoodWorkspace(sandbox)

        with pytest.raises(WorkspaceTimeoutError) as caught:
            await workspace.run("echo begun; sleep 61 & sleep 62", shell=True, timeout=3)

        assert caught.value.stdout == "begun\n"

        # Each has been killed; the kernel takes it away when it comes to it.
        while (await workspace.run(["pgrep", "-f", "sleep 6[12]"])).exit_code == 0:
            pass


@pytest.mark.anyio
async def test_who_ends_a_sandbox():
    """A workspace kills what it made or what its ref names, never what was lent; the first use makes one."""
    async with AsyncSandbox() as sandbox:
        lent = FumehoodWorkspace(sandbox)
        assert lent.ref == WorkspaceRef(provider="fumehood", id=sandbox.id)
        await lent.kill()
        assert await sandbox.is_running()

        with pytest.raises(ValueError, match="options"):
            FumehoodWorkspace(sandbox, template="other")

        await FumehoodWorkspace(ref=lent.ref).kill()
        assert not await sandbox.is_running()
        await FumehoodWorkspace(ref=lent.ref).kill()

    made = FumehoodWorkspace(limits=Limits(wall_seconds=5))
    await made.kill()
    assert made.ref is None
    await made.working_dir()
    assert made.ref is not None
    again = await AsyncSandbox.connect(made.ref.id)
    assert (await again.get_info()).limits.wall_seconds == 5
    await made.kill()
    assert not await again.is_running()


@pytest.mark.anyio
async def test_a_first_use_that_is_given_up_loses_no_sandbox():
    """A caller who is cancelled while the sandbox is made finds it afterwards."""
    workspace = FumehoodWorkspace()
    first = asyncio.ensure_future(workspace.working_dir())
    await asyncio.sleep(0)
    first.cancel()

    with pytest.raises(asyncio.CancelledError):
        await first

    assert await workspace.working_dir() == "/home/user"
    assert (
        len([info for info in await AsyncSandbox.list() if workspace.ref and info.id == workspace.ref.id])
        == 1
    )
    await workspace.kill()


@pytest.mark.anyio
async def test_a_ref_of_another_provider_is_refused():
    """A ref leads only to where it came from."""
    with pytest.raises(ValueError, match="local"):
        FumehoodWorkspace(ref=WorkspaceRef(provider="local", id="/tmp"))
