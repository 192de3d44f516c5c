"""A sandbox behind a real deep agent, whose scripted model works with commands and files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

from fumehood import InvalidArgumentError, Limits, Sandbox
from fumehood.frameworks.deepagents import FumehoodSandbox


class ScriptedModel(GenericFakeChatModel):
    """Says what the test wrote down, one message a turn."""

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedModel:
        return self


def _calls(*calls: tuple[str, dict[str, Any]]) -> Iterator[AIMessage]:
    for number, (name, arguments) in enumerate(calls):
        yield AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{number}"}])

    yield AIMessage("done")


@pytest.fixture
def backend() -> Iterator[FumehoodSandbox]:
    with FumehoodSandbox() as backend:
        yield backend


def _answers(messages: list[Any]) -> list[str]:
    return [str(message.content) for message in messages if isinstance(message, ToolMessage)]


SCRIPT = (
    ("write_file", {"file_path": "/home/user/work.py", "content": "print(1 / 0)\n"}),
    ("execute", {"command": "python3 /home/user/work.py"}),
    ("edit_file", {"file_path": "/home/user/work.py", "old_string": "1 / 0", "new_string": "6 * 7"}),
    ("execute", {"command": "python3 /home/user/work.py; uname -n"}),
    ("read_file", {"file_path": "/home/user/work.py"}),
    ("grep", {"pattern": "6 *", "path": "/home/user", "output_mode": "content"}),
    ("glob", {"pattern": "**/*.py", "path": "/home/user"}),
    ("ls", {"path": "/home/user"}),
)


def _check(answers: list[str]) -> None:
    assert "ZeroDivisionError" in answers[1]
    assert "exit code 1" in answers[1]
    assert answers[3].startswith("42\n")
    assert "print(6 * 7)" in answers[4]
    assert "print(6 * 7)" in answers[5]
    assert "/home/user/work.py" in answers[6]
    assert "/home/user/work.py" in answers[7]


def test_an_agent_writes_runs_and_repairs_a_program(backend):
    """Every tool of the agent works on the sandbox, and on nothing else."""
    agent = create_deep_agent(model=ScriptedModel(messages=_calls(*SCRIPT)), backend=backend)
    done = agent.invoke({"messages": [("user", "write a program")]})

    assert done["messages"][-1].content == "done"
    _check(_answers(done["messages"]))
    assert backend.sandbox.files.read("work.py") == "print(6 * 7)\n"


async def _run_async(backend: FumehoodSandbox) -> list[str]:
    agent = create_deep_agent(model=ScriptedModel(messages=_calls(*SCRIPT)), backend=backend)
    done = await agent.ainvoke({"messages": [("user", "write a program")]})
    return _answers(done["messages"])


def test_an_asynchronous_agent_does_the_same(backend):
    """The asynchronous verbs are those of deepagents over the synchronous ones."""
    _check(asyncio.run(_run_async(backend)))


def test_long_output_goes_to_a_file_of_the_sandbox(backend):
    """With a root for artifacts that can be written, the model gets a preview and reads the rest where it lies."""
    composed = CompositeBackend(backend, {}, artifacts_root="/home/user/artifacts")
    script = _calls(
        ("execute", {"command": "for i in $(seq 40000); do echo line $i; done"}),
        (
            "read_file",
            {"file_path": "/home/user/artifacts/large_tool_results/call-0", "offset": 20_000, "limit": 2},
        ),
    )
    done = create_deep_agent(model=ScriptedModel(messages=script), backend=composed).invoke(
        {"messages": [("user", "write a lot")]}
    )
    preview, part = _answers(done["messages"])

    assert len(preview) < 10_000
    assert "/home/user/artifacts/large_tool_results/call-0" in preview
    assert "line 20001" in part


def test_a_command_tells_its_streams_in_order_and_its_code(backend):
    """Both streams are one text in the order of their writing, as in a terminal."""
    done = backend.execute("for i in 1 2 3; do echo out $i; echo err $i >&2; done; exit 3")

    assert done.output == "".join(f"out {i}\nerr {i}\n" for i in (1, 2, 3))
    assert (done.exit_code, done.truncated) == (3, False)


def test_a_command_out_of_time_and_too_much_output():
    """The time limit is told by code 124, the limit of output by the flag; what came before is kept."""
    with FumehoodSandbox(limits=Limits(stdout_bytes=1000)) as backend:
        late = backend.execute("echo begun; sleep 60", timeout=3)
        assert (late.output, late.exit_code) == ("begun\n\n[killed: 3 s are over]", 124)

        for ending in ("true", "false"):
            long = backend.execute(f"head -c 2000 /dev/zero | tr '\\0' x; {ending}")
            head, notice, tail = long.output.split("\n")
            assert (head + tail, long.truncated) == ("x" * 1000, True)
            assert notice == "[... 1,000 bytes of standard output left out here ...]"


def test_files_are_reported_one_by_one(backend):
    """No file that fails keeps the others from being written or read."""
    uploaded = backend.upload_files(
        [("/home/user/new/a.bin", b"\x00\xff"), ("/etc/passwd", b""), ("/home/user/new", b""), ("a\0b", b"")]
    )
    assert [answer.error for answer in uploaded] == [
        None,
        "permission_denied",
        "is_directory",
        "invalid_path",
    ]

    downloaded = backend.download_files(
        ["/home/user/new/a.bin", "/missing", "/home/user", "/home/user/new/a.bin/b"]
    )
    assert [answer.error for answer in downloaded] == [None, "file_not_found", "is_directory", "invalid_path"]
    assert downloaded[0].content == b"\x00\xff"


def test_a_sandbox_that_was_lent_stays():
    """Only a sandbox that was made here is killed here; options belong to those."""
    with Sandbox() as sandbox:
        with FumehoodSandbox(sandbox) as backend:
            assert backend.id == sandbox.id
            assert backend.execute("echo hello").output == "hello\n"

        assert sandbox.is_running()

        with pytest.raises(InvalidArgumentError, match="options"):
            FumehoodSandbox(sandbox, template="other")

    with FumehoodSandbox() as backend:
        pass

    assert not backend.sandbox.is_running()
