"""A sandbox as a deployment of SWE-ReX: beside its own local runtime, with the same requests and the same answers.

Each verb is called on a loop of its own, as SWE-agent does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from swerex import exceptions
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.status import SetStatusDeploymentHook
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex.runtime.local import LocalRuntime

from fumehood import InvalidArgumentError, Sandbox
from fumehood.frameworks import terminal_shell
from fumehood.frameworks.swerex import FumehoodDeployment, FumehoodDeploymentConfig, FumehoodRuntime

# A session, line by line, with what SWE-ReX's own local runtime answers when nothing else runs on its machine (it waits
# for fixed times): state, here-documents, quotes, several lines, codes, and what cannot be run.
_SESSION = (
    ("echo hello; x=5", "hello\n", 0),
    ("echo $x\nfalse", "5\n", 1),
    ("echo $x 'a  b' \"$x\"", "5 a  b 5\n", 0),
    (
        "cat <<'EOF'\nfirst ! \\ $x\nsecond 'quoted' é\nEOF",
        "first ! \\ $x\nsecond 'quoted' é\n",
        0,
    ),
    ("cd /tmp && pwd", "/tmp\n", 0),
    ("pwd; (exit 7)", "/tmp\n", 7),
    ("f() { echo from a function; return 3; }\nf", "from a function\n", 3),
    ("f | tr a-z A-Z", "FROM A FUNCTION\n", 0),
    ("for i in 1 2; do\n  echo $i\ndone", "1\n2\n", 0),
    ("echo error >&2", "error\n", 0),
    ("# a comment", "", 0),
    ("printf 'no end of line'", "no end of line", 0),
    ("printf '\\033[31mred\\033[0m\\n'", "red\n", 0),
    ("echo one; not-a-program 2>/dev/null", "one\n", 127),
    ("export PS1='mine> '; echo $((6 * 7))", "42\n", 0),
)
_COMMANDS = (
    Command(command="echo out; echo err >&2; exit 3", shell=True),
    Command(command=["printf", "%s.", "a b", "$HOME"]),
    Command(command="pwd", cwd="/tmp"),
    Command(command=["sh", "-c", "echo $MINE"], env={"MINE": "yes", "PATH": "/usr/bin:/bin"}),
    Command(command="echo out; echo err >&2", shell=True, merge_output_streams=True),
)


def wait(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture(scope="module")
def deployment() -> Iterator[FumehoodDeployment]:
    deployment = FumehoodDeployment(limits={"memory_bytes": 512 * 1024**2}, envs={"SEED": "7"})
    wait(deployment.start())
    yield deployment
    wait(deployment.stop())


@pytest.fixture
def runtime(deployment: FumehoodDeployment) -> FumehoodRuntime:
    return deployment.runtime


@pytest.fixture
def run(runtime: FumehoodRuntime) -> Iterator[Callable[..., BashObservation]]:
    """Runs lines in a session that has just begun."""
    wait(runtime.create_session(CreateBashSessionRequest(startup_timeout=30)))
    yield lambda command, **options: wait(runtime.run_in_session(BashAction(command=command, **options)))

    if "default" in runtime._sessions:
        wait(runtime.close_session(CloseBashSessionRequest()))


def interrupted(runtime: FumehoodRuntime, **options: Any) -> BashObservation:
    return wait(runtime.run_in_session(BashInterruptAction(**options)))


def test_a_session_answers_as_that_of_swe_rex_itself(run):
    for line, output, code in _SESSION:
        answer = run(line, check="silent", timeout=30)
        assert (answer.output, answer.exit_code) == (output, code), line


def test_a_command_answers_as_that_of_swe_rex_itself(runtime):
    async def answers(where: AbstractRuntime) -> list[CommandResponse]:
        return [await where.execute(command) for command in _COMMANDS]

    assert wait(answers(runtime)) == wait(answers(LocalRuntime()))


def test_failures_are_those_of_swe_rex(runtime):
    """The classes that its local runtime raises for the same requests."""

    async def fail() -> list[Any]:
        await runtime.create_session(CreateBashSessionRequest(session="failing", startup_timeout=30))
        works = (
            runtime.run_in_session(BashAction(command="false", session="failing")),
            runtime.run_in_session(BashAction(command="if then", session="failing")),
            runtime.run_in_session(BashAction(command="true", session="none")),
            runtime.create_session(CreateBashSessionRequest(session="failing")),
            runtime.close_session(CloseBashSessionRequest(session="none")),
            runtime.execute(Command(command="exit 3", shell=True, check=True)),
            runtime.execute(Command(command="sleep 60", shell=True, timeout=0.2)),
            runtime.execute(Command(command=["not-a-program"])),
            runtime.read_file(ReadFileRequest(path="/tmp/not-a-file")),
            runtime.run_in_session(BashAction(command="sleep 60", session="failing", timeout=0.5)),
        )
        answers = [(await asyncio.gather(work, return_exceptions=True))[0] for work in works]
        await runtime.close_session(CloseBashSessionRequest(session="failing"))
        return answers

    expected = [
        exceptions.NonZeroExitCodeError,
        exceptions.BashIncorrectSyntaxError,
        exceptions.SessionDoesNotExistError,
        exceptions.SessionExistsError,
        exceptions.SessionDoesNotExistError,
        exceptions.NonZeroExitCodeError,
        exceptions.CommandTimeoutError,
        FileNotFoundError,
        FileNotFoundError,
        exceptions.CommandTimeoutError,
    ]
    assert [isinstance(*pair) for pair in zip(wait(fail()), expected, strict=True)] == [True] * len(expected)


def test_a_line_that_ran_out_of_time_is_interrupted_and_the_state_stays(run, runtime):
    """What it wrote until then comes with the interrupt, and nothing of it with the next line."""
    run("kept=7")

    with pytest.raises(exceptions.CommandTimeoutError):
        run("echo begun; sleep 60; echo never", timeout=0.5)

    assert interrupted(runtime, timeout=10).output == "begun"
    assert run("echo $kept $SEED").output == "7 7\n"


def test_a_program_that_ignores_interrupts_is_killed(run, runtime):
    with pytest.raises(exceptions.CommandTimeoutError):
        run("trap '' INT; cat", timeout=0.5)

    assert "Killed" in interrupted(runtime, timeout=0.1).output
    assert run("echo after").output == "after\n"


def test_an_interrupt_of_one_task_ends_the_line_of_another(run, runtime):
    async def both() -> tuple[BashObservation, BashObservation]:
        endless = asyncio.create_task(
            runtime.run_in_session(BashAction(command="echo > begun; sleep 60", check="silent"))
        )

        while (await runtime.execute(Command(command=["test", "-s", "begun"]))).exit_code != 0:
            await asyncio.sleep(0.01)

        return await runtime.run_in_session(BashInterruptAction(timeout=10)), await endless

    _, ended = wait(both())
    assert ended.exit_code == 130
    assert run("echo after").output == "after\n"


def test_programs_that_wait_for_input(run):
    """Typed into as in a terminal, until they end; the session goes on."""
    python = "python3 -q -i -c 'x = 6'"
    prompt = [r">>> "]
    run(python, is_interactive_command=True, expect=prompt, timeout=30)
    answer = run("print(x * 7)", is_interactive_command=True, expect=prompt, timeout=30)
    assert (answer.output, answer.expect_string) == ("42", ">>> ")
    run("exit()", is_interactive_quit=True, timeout=30)
    assert run("echo after", timeout=30).output == "after\n"


def test_a_line_that_waits_has_no_code(run, runtime):
    with pytest.raises(exceptions.NoExitCodeError):
        run("echo ready; cat", expect=["ready"], timeout=30)

    interrupted(runtime, timeout=10)
    assert run("echo after").output == "after\n"


def test_what_lines_do_to_their_shell(run, runtime):
    """A forged mark, another prompt, an unset variable, a shell within, and the end of the shell."""
    assert run("printf '\\036e0\\036'; echo still").output.endswith("still\n")
    assert run("PROMPT_COMMAND=; PS1='> '; echo one", timeout=30).output == "one\n"
    unset = run("set -u; echo $missing; echo never", check="silent", timeout=30)
    assert ("unbound" in unset.output, unset.exit_code) == (True, 1)
    run("set +u; bash", timeout=30)
    assert run("echo $((BASH_SUBSHELL + SHLVL > 1))", timeout=30).output == "1\n"
    run("exit", check="silent", timeout=30)
    assert run("echo outside", timeout=30).output == "outside\n"

    with pytest.raises(exceptions.SessionDoesNotExistError, match="has ended"):
        run("echo last; exit 4", timeout=30)

    with pytest.raises(exceptions.SessionDoesNotExistError):
        run("echo")

    assert wait(runtime.is_alive())


def test_long_lines_and_floods(run, monkeypatch):
    """A line of any length is run, tabs too; of its output the newest is kept, and the rest counted."""
    assert run("printf '%s' 'a\tb!'").output == "a\tb!"
    text = "é" * 50_000
    assert (
        run(f"printf %s '{text}' | wc -c; ls -A /tmp | grep -c line", check="silent").output == "100000\n0\n"
    )
    monkeypatch.setattr(terminal_shell, "_MOST_BYTES", 1 << 16)
    flood = run("seq 100000", timeout=60)
    first, _, rest = flood.output.partition("\n")
    assert first.endswith(" bytes left out]")
    assert rest.endswith("99999\n100000\n")
    assert len(flood.output) < 1 << 16


def test_files_come_and_go(runtime, tmp_path):
    """Text as it is, a program that stays one, a folder with links and empty folders."""
    text = "a\r\nb é\n"
    wait(runtime.write_file(WriteFileRequest(path="/tmp/new/folder/text", content=text)))
    assert wait(runtime.read_file(ReadFileRequest(path="/tmp/new/folder/text"))).content == text
    latin = wait(runtime.read_file(ReadFileRequest(path="/tmp/new/folder/text", encoding="latin-1")))
    assert latin.content == text.encode().decode("latin-1")

    source = tmp_path / "repository"
    (source / "empty").mkdir(parents=True)
    (source / "program").write_text("#!/bin/sh\necho it runs\n")
    (source / "program").chmod(0o755)
    (source / "link").symlink_to("program")

    for local, inside in ((source, "/home/user/it's there"), (source / "program", "/tmp/alone")):
        wait(runtime.upload(UploadRequest(source_path=str(local), target_path=inside)))

    listed = wait(runtime.execute(Command(command=["ls", "-F", "/home/user/it's there"]))).stdout
    assert listed.split() == ["empty/", "link@", "program*"]
    assert wait(runtime.execute(Command(command=["/home/user/it's there/link"]))).stdout == "it runs\n"
    assert wait(runtime.execute(Command(command=["/tmp/alone"]))).stdout == "it runs\n"
    assert wait(runtime.execute(Command(command="ls /tmp/*.tar", shell=True))).exit_code != 0

    with pytest.raises(FileNotFoundError):
        wait(runtime.upload(UploadRequest(source_path=str(tmp_path / "none"), target_path="/tmp/x")))


def test_what_a_session_starts_with(runtime):
    wait(
        runtime.write_file(WriteFileRequest(path="/tmp/start", content="echo sourced; PS1='% '; word=here\n"))
    )
    begun = wait(
        runtime.create_session(
            CreateBashSessionRequest(session="second", startup_source=["/tmp/start"], startup_timeout=30)
        )
    )
    assert begun.output == "sourced\n"
    action = BashAction(command="echo $word", session="second")
    assert wait(runtime.run_in_session(action)).output == "here\n"
    wait(runtime.close_session(CloseBashSessionRequest(session="second")))


def test_a_deployment_from_its_start_to_its_end(deployment):
    """Made of a configuration, seen by hooks, refused twice, and nothing is left of it."""
    before = len(Sandbox.list())
    config = FumehoodDeploymentConfig(envs={"A": "1"})
    other = FumehoodDeploymentConfig.model_validate(config.model_dump()).get_deployment()
    assert isinstance(other, AbstractDeployment)
    heard: list[tuple[str, str]] = []
    other.add_hook(SetStatusDeploymentHook("it", lambda name, step: heard.append((name, step))))

    with pytest.raises(exceptions.DeploymentNotStartedError):
        wait(other.is_alive())

    wait(other.start())
    assert heard == [("it", "Starting runtime")]
    assert wait(other.is_alive())
    assert len(Sandbox.list()) == before + 1

    with pytest.raises(exceptions.DeploymentStartupError):
        wait(other.start())

    wait(other.stop())
    wait(other.stop())
    assert len(Sandbox.list()) == before


def test_an_image_and_a_template_are_one_too_many():
    with pytest.raises(InvalidArgumentError, match="image"):
        FumehoodDeployment(template="mine", image="debian:12")
