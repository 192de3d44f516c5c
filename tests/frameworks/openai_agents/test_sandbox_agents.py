"""The SDK's sandbox agents in sandboxes of ours, with its own tools, manifests, snapshots and scripted model."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from agents import RunConfig, Runner, set_tracing_disabled
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    InvalidManifestPathError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.testing import ScriptedModel, assistant_message, function_call

from fumehood import AsyncSandbox, Sandbox
from fumehood.frameworks.openai_agents_sandbox import (
    FumehoodSandboxClient,
    FumehoodSandboxOptions,
    FumehoodSandboxSession,
)

set_tracing_disabled(True)

MANIFEST = Manifest(entries={"data.txt": File(content=b"40\n2\n")})


def sandbox_of(session: Any) -> AsyncSandbox:
    assert isinstance(session._inner, FumehoodSandboxSession)
    return session._inner.sandbox


def test_a_sandbox_agent_works_in_the_workspace_of_its_manifest() -> None:
    """Files of the manifest are there, an error is repaired, files stay, and the end of the run ends the sandbox."""
    model = ScriptedModel(
        [
            [
                function_call(
                    "exec_command", {"cmd": "python3 -c 'print(sum(open(\"data.txt\")))'"}, call_id="1"
                )
            ],
            [
                function_call(
                    "exec_command",
                    {"cmd": "python3 -c 'print(sum(map(int, open(\"data.txt\"))))' > sum"},
                    call_id="2",
                )
            ],
            [function_call("exec_command", {"cmd": "pwd; cat sum"}, call_id="3")],
            [assistant_message("It is 42.")],
        ]
    )
    agent = SandboxAgent(name="analyst", model=model, default_manifest=MANIFEST)
    config = RunConfig(sandbox=SandboxRunConfig(client=FumehoodSandboxClient()))
    result = asyncio.run(Runner.run(agent, "What is the sum?", run_config=config))
    assert result.final_output == "It is 42."
    assert model.last_call is not None
    told = [item["output"] for item in model.last_call.input if item.get("type") == "function_call_output"]
    assert "TypeError" in told[0]
    assert "/home/user/workspace" in told[2]
    assert "42" in told[2]
    assert Sandbox.list() == []


def test_files_commands_and_their_errors_are_those_of_the_sdk() -> None:
    async def run() -> None:
        client = FumehoodSandboxClient()
        session = await client.create(
            manifest=MANIFEST, options=FumehoodSandboxOptions(envs={"WORD": "said"})
        )

        async with session:
            assert await session.running()
            assert (await session.read(Path("data.txt"))).read() == b"40\n2\n"
            await session.write(Path("made/new.bin"), io.BytesIO(b"\x00\xff"))
            assert (await session.read(Path("made/new.bin"))).read() == b"\x00\xff"
            done = await session.exec("echo $WORD; echo no >&2; exit 3")
            assert (done.stdout, done.stderr, done.exit_code) == (b"said\n", b"no\n", 3)
            assert (await session.exec("no-such-program", shell=False)).exit_code == 127
            names = [Path(entry.path).name for entry in await session.ls(Path("."))]
            assert sorted(names) == ["data.txt", "made"]
            await session.rm(Path("made"), recursive=True)

            with pytest.raises(ExecTimeoutError):
                await session.exec("sleep 1000", timeout=0.5)

            with pytest.raises(WorkspaceReadNotFoundError):
                await session.read(Path("missing"))

            with pytest.raises(InvalidManifestPathError):
                await session.read(Path("/etc/passwd"))

            await session.exec("ln -s /etc/passwd outside")

            with pytest.raises(InvalidManifestPathError):
                await session.read(Path("outside"))

            await sandbox_of(session).kill()
            assert not await session.running()

            with pytest.raises(ExecTransportError, match="killed"):
                await session.exec("true")

    asyncio.run(run())


def test_a_workspace_survives_its_sandbox_as_a_snapshot(tmp_path: Path) -> None:
    """The SDK keeps a tar at the end of a session, and a resumed one has it in a sandbox of its own."""

    async def run() -> None:
        client = FumehoodSandboxClient()
        session = await client.create(manifest=MANIFEST, snapshot=LocalSnapshotSpec(base_path=tmp_path))
        first = sandbox_of(session).id

        async with session:
            await session.exec("echo kept > made")

        state = client.deserialize_session_state(client.serialize_session_state(session.state))
        assert await AsyncSandbox.list() == []
        resumed = await client.resume(state)

        async with resumed:
            assert sandbox_of(resumed).id != first
            assert (await resumed.read(Path("made"))).read() == b"kept\n"
            assert (await resumed.read(Path("data.txt"))).read() == b"40\n2\n"

        await client.delete(resumed)

    asyncio.run(run())


def test_a_session_is_resumed_in_its_living_sandbox() -> None:
    async def run() -> None:
        client = FumehoodSandboxClient()
        session = await client.create(manifest=MANIFEST)
        await session.start()
        await session.exec("echo here > made; sleep 1000 & echo $! > pid")
        resumed = await client.resume(
            client.deserialize_session_state(client.serialize_session_state(session.state))
        )
        await resumed.start()
        assert sandbox_of(resumed).id == sandbox_of(session).id
        assert (await resumed.exec("cat made; kill -0 $(cat pid)")).stdout == b"here\n"
        await client.delete(resumed)
        assert await AsyncSandbox.list() == []

    asyncio.run(run())


def test_an_archive_that_leads_out_is_refused() -> None:
    archive = io.BytesIO()

    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))

    async def run() -> None:
        client = FumehoodSandboxClient()

        async with await client.create() as session:
            with pytest.raises(WorkspaceArchiveWriteError):
                await session.hydrate_workspace(io.BytesIO(archive.getvalue()))

    asyncio.run(run())


def test_a_port_that_was_exposed_is_reached_from_outside() -> None:
    async def run() -> None:
        client = FumehoodSandboxClient()
        options = FumehoodSandboxOptions(exposed_ports=(8000,))

        async with await client.create(manifest=MANIFEST, options=options) as session:
            endpoint = await session.resolve_exposed_port(8000)
            assert endpoint.host == "127.0.0.1"
            assert endpoint.url_for("http").startswith("http://127.0.0.1:")

    asyncio.run(run())
