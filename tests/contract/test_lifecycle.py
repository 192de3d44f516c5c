"""A sandbox's life: start, describe, find again, end."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from importlib import metadata

import pytest
from tests.waiting import at_some_pace, until

import fumehood
from fumehood import (
    AsyncSandbox,
    CapacityError,
    InvalidArgumentError,
    Limits,
    Sandbox,
    SandboxClosedError,
    SandboxNotFoundError,
    SandboxNotStartedError,
    TemplateError,
    WrongProcessError,
)
from fumehood.assemble import backend_on_loop, local_backend
from fumehood.engine.settings import EngineSettings
from fumehood.values.requests import SandboxSpec


def test_a_sandbox_runs_from_its_creation_to_the_end_of_its_block():
    """`with Sandbox() as sandbox` gives a live sandbox and leaves none behind."""
    with Sandbox() as sandbox:
        assert sandbox.is_running()
        assert sandbox.id in [info.id for info in Sandbox.list()]

    assert not sandbox.is_running()
    assert sandbox.id not in [info.id for info in Sandbox.list()]


async def _use_async_block() -> AsyncSandbox:
    async with AsyncSandbox() as sandbox:
        assert await sandbox.is_running()
        assert (await sandbox.run_code("6 * 7")).text == "42"

    return sandbox


def test_an_async_sandbox_runs_inside_its_block(face):
    """`async with AsyncSandbox()` starts at the block's beginning and ends at its end."""
    sandbox = face.runner.run(_use_async_block())
    assert face.runner.run(sandbox.is_running()) is False


def test_an_async_sandbox_that_was_not_entered_is_reported(face):
    """A sandbox that has not been started cannot be used by mistake."""
    sandbox = AsyncSandbox()

    with pytest.raises(SandboxNotStartedError, match="has not been started"):
        face.runner.run(sandbox.run_code("1"))


def test_info_tells_what_was_asked_for(face):
    """`get_info` gives back template, labels, limits and times."""
    limits = Limits(wall_seconds=5, processes=64)
    before = datetime.now(UTC)
    sandbox = face.open(metadata={"user": "ada"}, limits=limits, timeout=100, idle_timeout=50)
    info = sandbox.get_info()

    assert info.id == sandbox.id
    assert info.template == "default"
    assert info.state == "running"
    assert info.metadata == {"user": "ada"}
    assert info.limits == limits
    assert info.idle_timeout_seconds == 50
    assert before - timedelta(seconds=1) <= info.started_at <= datetime.now(UTC)
    assert timedelta(seconds=99) < info.ends_at - info.started_at < timedelta(seconds=101)


def test_info_without_a_timeout_has_no_end(sandbox):
    """A sandbox lives until it is killed unless it was given a time."""
    assert sandbox.get_info().ends_at is None


def test_the_isolation_level_is_part_of_info_and_of_every_execution(sandbox):
    """What stands between guest and host is told layer by layer, and in one word with each reply."""
    isolation = sandbox.get_info().isolation

    assert isolation.level
    assert len({layer.name for layer in isolation.layers}) == len(isolation.layers) > 5
    assert all(layer.why for layer in isolation.missing)
    assert sandbox.run_code("1").isolation == isolation.level


def test_metrics_tell_what_is_used(sandbox):
    """Memory, processor time, disk and processes are measured."""
    sandbox.files.write("/mnt/data/block", b"x" * 1_000_000)
    sandbox.run_code("sum(range(3_000_000))")
    metrics = sandbox.get_metrics()

    assert metrics.cpu_seconds > 0
    assert metrics.memory_bytes > 1_000_000
    assert metrics.peak_memory_bytes >= metrics.memory_bytes
    assert 1_000_000 <= metrics.disk_used_bytes < metrics.disk_total_bytes
    assert metrics.inodes_used >= 1
    assert metrics.processes >= 2
    assert metrics.uptime_seconds > 0


def test_labels_of_a_machine_need_a_cluster(face):
    """What was meant to describe the sandbox is named, where there is no cluster."""
    error = CapacityError if face.name == "async-cluster" else InvalidArgumentError

    with pytest.raises(error, match="zone") as caught:
        face.open(labels={"zone": "b"})

    assert ("`metadata`" in caught.value.hint) == (error is InvalidArgumentError)


def test_kill_is_reported_once(sandbox):
    """`kill` says whether it was this call that ended the sandbox."""
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert sandbox.is_running() is False


@pytest.mark.parametrize(
    "verb",
    [
        lambda box: box.run_code("1"),
        lambda box: box.get_info(),
        lambda box: box.get_metrics(),
        lambda box: box.files.list(),
        lambda box: box.files.write("a", "b"),
        lambda box: box.commands.run("true"),
        lambda box: box.list_code_contexts(),
        lambda box: box.set_timeout(10),
        lambda box: box.interrupt(),
    ],
    ids=["run_code", "info", "metrics", "list", "write", "command", "contexts", "timeout", "interrupt"],
)
def test_every_verb_of_a_killed_sandbox_says_that_it_was_killed(sandbox, verb):
    """A dead sandbox never answers, and never blocks."""
    sandbox.kill()

    with pytest.raises(SandboxClosedError, match="it was killed") as caught:
        verb(sandbox)

    assert caught.value.reason == "killed"
    assert caught.value.sandbox_id == sandbox.id


def test_connect_reaches_the_same_sandbox(face, sandbox):
    """`connect` gives a second handle on the same state."""
    sandbox.run_code("x = 41")
    other = face.connect(sandbox.id)

    assert other.id == sandbox.id
    assert other.run_code("x + 1").text == "42"


def test_connect_to_an_unknown_id_is_refused(face):
    """An id that never lived here is told apart from one that has ended."""
    with pytest.raises(SandboxNotFoundError, match="no sandbox has the id 'nobody'"):
        face.connect("nobody")


def test_connect_to_an_ended_sandbox_says_why_it_ended(face, sandbox):
    """The reason of an end is remembered."""
    sandbox.kill()

    with pytest.raises(SandboxClosedError, match="killed"):
        face.connect(sandbox.id)


def test_an_id_of_a_host_that_was_started_anew_is_lost(face, sandbox):
    """What lived here before is told apart from what never lived here."""
    earlier = f"{sandbox.id[:6]}zzzzzz{sandbox.id[12:]}"
    elsewhere = f"zzzzzz{sandbox.id[6:]}"

    with pytest.raises(SandboxClosedError) as caught:
        face.connect(earlier)

    assert caught.value.reason == "lost"

    for unknown in (elsewhere, f"{sandbox.id[:12]}{20 * 'z'}", "../etc/passwd"):
        with pytest.raises(SandboxNotFoundError):
            face.connect(unknown)


@pytest.mark.in_process
def test_a_host_tells_what_it_has(face, sandbox):
    """`capacity` counts sandboxes, and names the host as their ids do."""
    capacity = face.runner.run(local_backend().capacity())

    assert 1 <= capacity.sandboxes <= capacity.max_sandboxes
    assert 0 < capacity.memory_available_bytes <= capacity.memory_total_bytes
    assert sandbox.id.startswith(capacity.host_id + capacity.incarnation)
    assert capacity.isolation_level == sandbox.get_info().isolation.level
    assert capacity.version == metadata.version("fumehood")


def test_r11_a_full_host_is_reported_at_once(face):
    """Neither the number nor the memory is exceeded, and what there is goes on."""

    async def fill(settings):
        backend = backend_on_loop(settings, asyncio.get_running_loop())
        try:
            results = await asyncio.gather(
                *(backend.create(SandboxSpec()) for _ in range(4)), return_exceptions=True
            )
            return [result.resource if isinstance(result, CapacityError) else "made" for result in results]
        finally:
            await backend.aclose()

    few = EngineSettings(pool_size=0, max_sandboxes=2)
    assert sorted(face.runner.run(fill(few))) == ["made", "made", "sandboxes", "sandboxes"]

    greedy = EngineSettings(pool_size=0, memory_reserve_bytes=1 << 40)
    assert face.runner.run(fill(greedy)) == ["bytes of memory"] * 4

    with pytest.raises(InvalidArgumentError, match="host_id"):
        EngineSettings(host_id="no")


def test_list_names_the_living_oldest_first(face):
    """`list` describes each living sandbox with its labels."""
    first = face.open(metadata={"n": "1"})
    second = face.open(metadata={"n": "2"})
    mine = [info for info in face.list() if info.id in (first.id, second.id)]

    assert [info.metadata["n"] for info in mine] == ["1", "2"]


def test_a_sandbox_ends_when_its_time_is_over(face):
    """`timeout` kills it, whatever runs in it, and the error says so."""
    sandbox = face.open(timeout=1.0)

    with pytest.raises(SandboxClosedError) as caught:
        sandbox.run_code("import time; time.sleep(20)")

    assert caught.value.reason == "expired"
    assert sandbox.is_running() is False


def test_set_timeout_counts_from_now(face):
    """A new time replaces the old one, None takes it away."""
    sandbox = face.open(timeout=60)
    sandbox.set_timeout(1000)
    assert sandbox.get_info().ends_at > datetime.now(UTC) + timedelta(seconds=900)

    sandbox.set_timeout(None)
    assert sandbox.get_info().ends_at is None


def test_an_idle_sandbox_ends(face):
    """`idle_timeout` ends a sandbox that nobody calls."""
    idle = face.open(idle_timeout=0.3)
    # Listing speaks to the backend, not to the sandbox.
    until(lambda: idle.id not in [info.id for info in face.list()], "it has ended")

    with pytest.raises(SandboxClosedError) as caught:
        idle.run_code("1")

    assert caught.value.reason == "idle"


@pytest.mark.parametrize("what", ["cell", "command", "judge", "follower"])
def test_what_is_under_way_is_not_idle(face, what):
    """Work is no idleness, however long it is silent."""

    def scene(seconds):
        sandbox = face.open(idle_timeout=seconds)
        work = f"import time; time.sleep({seconds + 0.7}); print('awake')"

        if what == "cell":
            assert sandbox.run_code(work).logs.stdout == ["awake\n"]
        elif what == "judge":
            (result,) = sandbox.judge(work, [("", "awake")])
            assert result.verdict == "accepted"
        else:
            command = sandbox.commands.run(["python3", "-c", work], background=True)
            handle = command if what == "command" else sandbox.commands.connect(command.pid)
            assert handle.wait().stdout == "awake\n"

        # And its time begins when that is over.
        assert sandbox.is_running()

    at_some_pace(scene, 0.5, 5)


def test_a_command_without_a_follower_is_idle(face):
    """It would keep its sandbox for ever."""
    sandbox = face.open(idle_timeout=0.3)
    sandbox.commands.run("sleep 600", background=True)
    until(lambda: sandbox.id not in [info.id for info in face.list()], "it has ended")


def test_envs_reach_cells_and_commands(face):
    """`envs` are the environment of everything inside."""
    sandbox = face.open(envs={"GREETING": "hello world", "EMPTY": ""})

    assert sandbox.run_code("import os; os.environ['GREETING'], os.environ['EMPTY']").text == (
        "('hello world', '')"
    )
    assert sandbox.commands.run("echo $GREETING").stdout == "hello world\n"


def test_sandboxes_share_nothing(face):
    """Files, variables and processes of one are not seen by another."""
    first, second = face.open(), face.open()
    first.run_code("secret = 1; open('/tmp/mark', 'w').write('x')")

    assert second.run_code("'secret' in globals()").text == "False"
    assert not second.files.exists("/tmp/mark")
    assert not first.files.exists("/mnt/data/mark")


def test_an_unknown_template_is_refused(face):
    """The error names the template and the one that is always there."""
    with pytest.raises(TemplateError, match="'no-such-template'") as caught:
        face.open("no-such-template")

    assert "default" in caught.value.hint


@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": True},
        {"idle_timeout": "5"},
        {"envs": {"A=B": "1"}},
        {"envs": {"A": 1}},
        {"envs": {"A": "\0"}},
        {"metadata": {1: "x"}},
        {"limits": {"memory_bytes": 1}},
        {"strict": 1},
        {"template": ""},
        {"template": None},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_before_anything_starts(face, arguments):
    """Each refusal names the field, the value and what is allowed."""
    alive = len(face.list())

    with pytest.raises(InvalidArgumentError, match="is refused") as caught:
        face.open(**arguments)

    assert caught.value.field
    assert caught.value.hint
    assert len(face.list()) == alive


def test_a_single_call_runs_in_a_sandbox_of_its_own():
    """`fumehood.run_code` shares nothing between calls and leaves nothing."""
    alive = {info.id for info in Sandbox.list()}

    assert fumehood.run_code("x = 5; x + 1").text == "6"
    assert fumehood.run_code("x").error.name == "NameError"
    assert {info.id for info in Sandbox.list()} == alive


def test_a_single_call_has_an_async_version(face):
    """`fumehood.arun_code` is the same for asyncio."""
    assert face.runner.run(fumehood.arun_code("6 * 7")).text == "42"


def test_a_single_call_streams_and_takes_limits():
    """The stateless call has the callbacks and limits of a sandbox."""
    heard: list[str] = []
    execution = fumehood.run_code(
        "print('a'); print('b' * 100)", limits=Limits(stdout_bytes=10), on_stdout=heard.append
    )

    notice = "\n[... 85 bytes of standard output left out here ...]\n"
    assert "".join(heard) == f"a\nbbbbbbbb{notice}bbbbbbb\n"
    assert execution.logs.stdout[-1] == "bbbbbbb\n"
    assert execution.truncated.stdout_bytes == 93


def test_a_forked_child_cannot_use_the_parents_sandbox_but_has_its_own():
    """The parent's sandbox is refused in a forked child, a new one works, leaving the block kills nothing."""
    with Sandbox() as sandbox:
        sandbox.run_code("x = 1")
        pid = os.fork()

        if pid == 0:
            os._exit(_child_of_a_fork(sandbox))

        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert sandbox.run_code("x").text == "1"


def _child_of_a_fork(sandbox: Sandbox) -> int:
    try:
        sandbox.run_code("x")
    except WrongProcessError:
        sandbox.__exit__(None, None, None)
        return 0 if fumehood.run_code("1 + 1").text == "2" else 2

    return 1
