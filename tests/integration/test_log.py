"""What the engine logs in a program of its own, and that it logs nothing unless the program wants it to."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fumehood import IsolationUnavailableError, Sandbox, SandboxError, Template, TemplateError, failpoints
from fumehood.bounds import TIB
from fumehood.engine.admission import AdmissionRules
from fumehood.engine.host_faults import naming_faults
from fumehood.engine.provisioner import EngineConfig
from fumehood.engine.sandbox import LiveSandbox
from fumehood.engine.supervisor import Supervisor
from fumehood.errors import CapacityError, OverloadedError
from fumehood.log import events
from fumehood.log.events import LogEvent
from fumehood.log.request_ids import logged_request
from fumehood.runtimes.base import Spawner
from fumehood.runtimes.namespaces.runtime import LinuxRuntime
from fumehood.templates.store import TemplateStore
from fumehood.values.requests import SandboxSpec

PLAIN = Template(name="plain", preload=())
# A sandbox is made, times out, breaks the protocol, and is followed by one that is used in vain.
SCENE = """
import fumehood

with fumehood.Sandbox(template=fumehood.Template(name="odd", preload=("not_there",))) as box:
    box.run_code("while True: pass", timeout=0.3)
    box.run_code("import os; os._exit(3)")
    try:
        box.run_code(
            "import os, stat\\n"
            "for name in os.listdir('/proc/self/fd'):\\n"
            "    try:\\n"
            "        if stat.S_ISSOCK(os.fstat(int(name)).st_mode): os.write(int(name), b'x' * 64)\\n"
            "    except OSError: pass\\n"
        )
    except fumehood.SandboxError:
        print("broken")
"""


def run(*argv: str, **envs: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    command = [sys.executable, *argv]
    envs = {"FUMEHOOD_DAEMON": "0", **envs}
    return subprocess.run(command, env={**clean, **envs}, capture_output=True, text=True, timeout=120)


class Said:
    """The events that were logged while a test runs."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def fields(self, event: LogEvent) -> list[dict[str, Any]]:
        """The fields of each line of an event."""
        records = [record for record in self._caplog.records if getattr(record, "event", "") == event.name]
        assert {record.name for record in records} <= {f"fumehood.{event.package}"}
        return [getattr(record, "fields", {}) for record in records]

    def one(self, event: LogEvent) -> dict[str, Any]:
        """The fields of the only line of an event."""
        (found,) = self.fields(event)
        return found


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    caplog.set_level(logging.DEBUG, "fumehood")
    return Said(caplog)


def with_engine(
    folder: Path, scene: Callable[[Supervisor], Coroutine[Any, Any, None]], *, reserve: int = 0, **given: Any
) -> None:
    """Plays a scene with an engine, which is ended at its end."""

    async def play() -> None:
        config = EngineConfig(
            **{"runtime": LinuxRuntime(), "pool_size": 0, **given}, store=TemplateStore(str(folder))
        )
        rules = AdmissionRules(max_sandboxes=1, memory_reserve_bytes=reserve, max_cpu_pressure=101)
        engine = Supervisor(config, rules, "abcdef")
        try:
            await scene(engine)
        finally:
            await engine.aclose()

    asyncio.run(play())


# -- who sees it


def test_a_library_is_silent() -> None:
    """Whatever happens, a program that has not configured logging finds nothing on standard error."""
    done = run("-c", SCENE)
    assert (done.stdout, done.stderr, done.returncode) == ("broken\n", "", 0)


def test_a_program_that_configures_logging_sees_it() -> None:
    done = run("-c", f"import logging; logging.basicConfig(level='INFO')\n{SCENE}")
    assert done.returncode == 0
    assert "WARNING:fumehood.runtimes:a template does not preload a module: template=odd" in done.stderr
    assert "INFO:fumehood.engine:code was stopped: sandbox_id=" in done.stderr
    assert "WARNING:fumehood.engine:a sandbox has failed: sandbox_id=" in done.stderr
    assert "reason=protocol_violation" in done.stderr


def test_a_command_logs_where_the_environment_asks_for_it(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("print('marker-of-output')")
    quiet = run("-m", "fumehood", "run", str(code))
    # The command itself may say that it waits.
    assert quiet.stdout == "marker-of-output\n"
    assert "fumehood.engine" not in quiet.stderr
    loud = run("-m", "fumehood", "run", str(code), FUMEHOOD_LOG_LEVEL="info", FUMEHOOD_LOG_FORMAT="json")
    found = [json.loads(line)["event"] for line in loud.stderr.splitlines() if line.startswith("{")]
    assert [event for event in found if event.startswith("sandbox.")] == ["sandbox.created", "sandbox.ended"]
    assert "marker" not in loud.stderr
    wrong = run("-m", "fumehood", "run", str(code), FUMEHOOD_LOG_LEVEL="loud")
    assert wrong.returncode == 64
    assert "FUMEHOOD_LOG_LEVEL='loud' is refused" in wrong.stderr


# -- what the engine says


def test_a_life_of_an_engine(tmp_path: Path, said: Said) -> None:
    async def scene(engine: Supervisor) -> None:
        info = await engine.create(SandboxSpec(template=PLAIN))

        with pytest.raises(CapacityError):
            await engine.create(SandboxSpec(template=PLAIN, owner="key-1"))

        await engine.kill(info.id, wait=True)

    with_engine(tmp_path, scene)
    assert said.one(events.ENGINE_STARTED)["isolation_levels"] == ["namespaces"]
    assert said.one(events.TEMPLATE_STARTED)["template"] == "plain"
    assert said.one(events.RUNTIME_CHOSEN)["isolation_level"] == "namespaces"
    assert said.one(events.ADMISSION_REFUSED) == {
        "owner": "key-1",
        "resource": "sandboxes",
        "used": 1,
        "maximum": 1,
    }
    assert said.one(events.SANDBOX_ENDED)["sandbox_id"] == said.one(events.SANDBOX_CREATED)["sandbox_id"]
    assert said.one(events.TEMPLATE_ENDED)["template"] == "plain"
    assert said.one(events.ENGINE_ENDED) == {"host_id": "abcdef"}
    assert not said.fields(events.SANDBOX_FAILED)
    assert not said.fields(events.TEMPLATE_DIED)


def test_a_template_whose_processes_die(tmp_path: Path, said: Said) -> None:
    """Its line and those of its sandboxes belong to no request, whichever has started them."""

    async def scene(engine: Supervisor) -> None:
        # Of this process are also servers and engines that other tests share.
        others = set(_children(os.getpid()))

        with logged_request("first"):
            info = await engine.create(SandboxSpec(template=PLAIN))

        for pid in set(_children(os.getpid())) - others:
            os.kill(pid, signal.SIGKILL)

        await asyncio.wait_for(engine.find(info.id).guest.ended, 30)
        await asyncio.sleep(0.5)

    with_engine(tmp_path, scene)
    assert said.one(events.TEMPLATE_DIED) == {"template": "plain", "isolation_level": "namespaces"}
    assert said.one(events.SANDBOX_FAILED)["reason"] == "died"


def test_a_template_that_does_not_start(tmp_path: Path, said: Said) -> None:
    async def scene(engine: Supervisor) -> None:
        with pytest.raises(TemplateError):
            await engine.create(SandboxSpec(template=Template(name="no python", python="/bin/false")))

    with_engine(tmp_path, scene)
    line = said.one(events.TEMPLATE_FAILED)
    assert line["template"] == "no python"
    assert line["reason"]
    assert said.one(events.SANDBOX_NOT_CREATED)["code"] == "template"


def test_a_pool_that_cannot_be_filled(tmp_path: Path, said: Said) -> None:
    async def scene(engine: Supervisor) -> None:
        with pytest.raises(CapacityError):
            await engine.wait_warm("default")

    with_engine(tmp_path, scene, pool_size=2, reserve=TIB)
    line = said.fields(events.POOL_NOT_FILLED)[0]
    assert (line["template"], line["ready"], line["size"]) == ("default", 0, 2)
    assert "memory" in line["reason"]


class NoNamespaces(LinuxRuntime):
    """A machine on which no namespace can be made."""

    async def start(self, template: Template) -> Spawner:
        raise IsolationUnavailableError(
            layer="user namespaces", reason="forbidden here", how_to_get_it="allow them"
        )


@pytest.mark.parametrize("point", ["create.prepare", "create.ready", "pool.rehearse"])
def test_an_engine_that_ends_while_its_pool_is_filled(tmp_path: Path, said: Said, point: str) -> None:
    """The sandbox that was being made is ended on purpose: it has not failed."""

    async def scene(engine: Supervisor) -> None:
        reached = asyncio.Event()

        async def stay(sandbox: LiveSandbox) -> None:
            reached.set()
            try:
                await asyncio.sleep(60)
            finally:
                # It notices its cancellation late.
                await asyncio.wait([sandbox.guest.ended], timeout=10)

        with failpoints.arm(point, stay):
            filling = asyncio.ensure_future(engine.wait_warm("default"))
            await asyncio.wait_for(reached.wait(), 30)
            await engine.aclose()
            await filling

    with_engine(tmp_path, scene, pool_size=1)
    assert not said.fields(events.SANDBOX_WASTED)
    assert not said.fields(events.POOL_NOT_FILLED)


def test_a_runtime_that_is_given_up(tmp_path: Path, said: Said) -> None:
    """Once, and the next one is chosen."""

    async def scene(engine: Supervisor) -> None:
        for _ in range(2):
            info = await engine.create(SandboxSpec(template=PLAIN))
            await engine.kill(info.id, wait=True)

    with_engine(tmp_path, scene, runtime=NoNamespaces(), weaker=(LinuxRuntime(),))
    assert said.one(events.RUNTIME_GIVEN_UP) == {
        "isolation_level": "namespaces",
        "layer": "user namespaces",
        "reason": "forbidden here",
    }
    assert said.one(events.RUNTIME_CHOSEN)["isolation_level"] == "namespaces"


def test_a_machine_that_isolates_too_weakly(tmp_path: Path, said: Said) -> None:
    async def scene(engine: Supervisor) -> None:
        with pytest.raises(IsolationUnavailableError):
            await engine.create(SandboxSpec(template=PLAIN))

    with_engine(tmp_path, scene, runtime=NoNamespaces())
    assert said.one(events.ISOLATION_REFUSED)["layer"] == "user namespaces"


# -- errors that point to the log


def test_a_fault_of_the_host_has_the_line_that_its_error_points_to(said: Said) -> None:
    with pytest.raises(SandboxError, match="see the host's log"), naming_faults(outcome_unknown=True):
        raise OSError(errno.EIO, "Input/output error", "/dev/disk")

    assert said.one(events.HOST_FAULT) == {"reason": "Input/output error", "errno": "EIO"}


def test_a_host_that_has_run_out_of_something_has_a_line(said: Said) -> None:
    with pytest.raises(OverloadedError), naming_faults(outcome_unknown=True):
        raise OSError(errno.EMFILE, "Too many open files")

    assert said.one(events.HOST_EXHAUSTED)["errno"] == "EMFILE"


def test_a_fork_that_takes_the_place_of_its_parent_has_a_line(said: Said) -> None:
    with Sandbox(template=PLAIN) as parent:
        child = parent.fork()
        parent_id, child_id = parent.id, child.id
        parent.adopt(child)

    assert said.one(events.SANDBOX_ADOPTED) == {"sandbox_id": parent_id, "child_id": child_id}


def test_a_checkpoint_that_makes_room_has_a_line(said: Said) -> None:
    with Sandbox(template=PLAIN) as sandbox:
        first = sandbox.checkpoint()

        while first in sandbox.list_checkpoints():
            assert not said.fields(events.CHECKPOINT_EVICTED)
            sandbox.checkpoint()

        assert said.one(events.CHECKPOINT_EVICTED) == {"sandbox_id": sandbox.id, "checkpoint_id": first.id}


def test_tools_that_fail_have_lines_without_what_was_given(
    said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(text: str) -> None:
        raise ValueError("a fault of the tool")

    def give() -> object:
        return object()

    tools = {"fail": fail, "give": give}

    with Sandbox(template=PLAIN) as sandbox:
        for call in ("fail(text='marker-of-an-argument')", "give()"):
            assert sandbox.run_code(call, tools=tools).error is not None

    assert said.one(events.TOOL_FAILED) == {"tool": "fail"}
    assert said.one(events.TOOL_GAVE_NO_JSON)["tool"] == "give"
    assert "marker-of-an-argument" not in caplog.text


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
