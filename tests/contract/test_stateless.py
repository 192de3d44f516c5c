"""One request, one sandbox: files in, input, code, files out; several at a time; and nothing left afterwards."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import at_some_pace

import fumehood
from fumehood import ExecutionFinished, InvalidArgumentError, Limits, Run, Sandbox, StdoutEvent, TemplateError
from fumehood.assemble import chosen_backend
from fumehood.values.requests import ExecuteRequest, SandboxSpec
from fumehood.values.stateless import StatelessReply, StatelessRequest

READ_ALL = """
import sys
name = input("name? ")
print("second:", sys.stdin.readline(), end="")
print("rest:", list(sys.stdin))
try:
    input()
except EOFError as error:
    print(error)
"""


def request(code, *, language="python", spec=None, **fields):
    return StatelessRequest(
        spec=spec or SandboxSpec(), code=ExecuteRequest(code=code, language=language), **fields
    )


@pytest.fixture
def once(face):
    """Runs one request on the loop of a face."""
    return lambda *args, **fields: face.runner.run(chosen_backend().run_once(request(*args, **fields)))


def test_files_go_in_and_come_out(once):
    """Content is there before the code runs; files, and all files below a directory, are read afterwards."""
    code = """
import os
os.makedirs("out/deep/er")
text = open("in/data.txt").read()
open("out/a.txt", "w").write(text.upper())
open("out/deep/er/b.bin", "wb").write(bytes(range(4)))
open("/tmp/c", "w").write("c")
os.mkfifo("out/pipe")
"""
    reply = once(code, files={"in/data.txt": b"hello"}, outputs=("out", "/tmp/c", "not/there", "out/a.txt"))

    assert reply.execution.error is None
    assert dict(reply.files) == {
        "out/a.txt": b"HELLO",
        "out/deep/er/b.bin": b"\0\1\2\3",
        "/tmp/c": b"c",
    }
    assert reply.skipped == ()
    assert reply.isolation.level == reply.execution.isolation


def test_what_does_not_fit_is_named(once):
    """The bound counts all files together; what is over it is left out, what comes later may still fit."""
    code = "for n, size in enumerate((600, 600, 300)): open(f'{n}', 'wb').write(b'x' * size)"
    reply = once(code, outputs=("0", "1", "2"), max_output_bytes=1000)

    assert {path: len(content) for path, content in reply.files.items()} == {"0": 600, "2": 300}
    assert reply.skipped == ("1",)


def test_code_that_fails_is_no_error_of_the_request(once):
    """Its files are read all the same."""
    reply = once("open('x', 'w').write('x')\n1 / 0", outputs=("x",))

    assert reply.execution.error.name == "ZeroDivisionError"
    assert dict(reply.files) == {"x": b"x"}


def test_python_reads_its_input(once):
    """input(), readline and iteration share one stream, which has an end."""
    reply = once(READ_ALL, stdin="ada\ntwo\nthree\nfour")
    assert "".join(reply.execution.logs.stdout) == (
        "name? second: two\nrest: ['three\\n', 'four']\nEOF when reading a line\n"
    )


def test_a_child_process_reads_the_input_too(once):
    """Descriptor 0 is the stream itself."""
    code = "import subprocess\nprint(subprocess.run(['cat'], capture_output=True).stdout)"
    assert "".join(once(code, stdin="for cat\n").execution.logs.stdout) == "b'for cat\\n'\n"


def test_bash_reads_its_input(once):
    """Each command of a cell goes on where the last one stopped."""
    reply = once("read first; echo $first; cat", language="bash", stdin="one\ntwo\n")
    assert "".join(reply.execution.logs.stdout) == "one\ntwo\n"


def test_the_input_of_one_cell_is_not_that_of_the_next(sandbox):
    """What was left is gone, and without `stdin` there is nothing to read."""
    assert sandbox.run_code("input()", stdin="one\ntwo\n").text == "'one'"
    assert sandbox.run_code("import sys; sys.stdin.read()").text == "''"
    assert sandbox.run_code("input()").error.name == "EOFError"
    assert sandbox.run_code("input()", stdin="").error.value == "EOF when reading a line"
    assert sandbox.run_code("input()", stdin="three\n").text == "'three'"

    with pytest.raises(InvalidArgumentError, match="stdin"):
        sandbox.run_code("input()", stdin="x", on_input=lambda _: "y")


def test_a_large_input_arrives_whole(sandbox):
    """Up to 4 MiB, and no byte more."""
    assert sandbox.run_code("import sys; len(sys.stdin.read())", stdin="é" * (2 << 20)).text == str(2 << 20)

    with pytest.raises(InvalidArgumentError, match="stdin"):
        sandbox.run_code("1", stdin="é" * (2 << 20) + "x")


def test_events_come_before_the_reply(face):
    """`stream_once` gives what happens, and at last what `run_once` returns."""

    async def follow():
        stream = chosen_backend().stream_once(
            request("print('on')\nopen('x', 'w').write('x')", outputs=("x",))
        )
        return [item async for item in stream]

    items = face.runner.run(follow())

    assert "on\n" in [item.text for item in items if isinstance(item, StdoutEvent)]
    assert isinstance(items[-2], ExecutionFinished)
    assert isinstance(items[-1], StatelessReply)
    assert items[-1].execution == items[-2].execution
    assert dict(items[-1].files) == {"x": b"x"}


@pytest.mark.in_process
def test_a_stream_that_is_left_ends_its_sandbox(face):
    """Nothing runs on for a caller who has gone."""

    async def leave():
        spec = SandboxSpec(owner="leaver")
        stream = chosen_backend().stream_once(request("print('on')\nwhile True: pass", spec=spec))

        async for item in stream:
            if isinstance(item, StdoutEvent):
                break

        assert len(await chosen_backend().list("leaver")) == 1
        await stream.aclose()
        return await chosen_backend().list("leaver")

    assert face.runner.run(leave()) == ()


@pytest.mark.in_process
def test_a_caller_who_gives_up_leaves_nothing(face):
    """Cancelling `run_once` kills the sandbox."""

    async def give_up():
        backend = chosen_backend()
        spec = SandboxSpec(owner="quitter")
        task = asyncio.create_task(backend.run_once(request("while True: pass", spec=spec)))

        while not await backend.list("quitter"):
            await asyncio.sleep(0)

        task.cancel()
        await asyncio.wait([task])

        while await backend.list("quitter"):
            await asyncio.sleep(0)

        return task.cancelled()

    assert face.runner.run(asyncio.wait_for(give_up(), 20))


def test_many_requests_are_answered_as_they_are_done(face):
    """Each answer has its request's number; an error of one is its answer, and the others go on."""

    async def run(seconds):
        requests = [
            request("'zero'"),
            request("1", spec=SandboxSpec(template="no such template")),
            request(f"import time; time.sleep({seconds}); 'two'"),
            request("'three'"),
        ]
        return [item async for item in chosen_backend().run_many(requests, concurrency=2)]

    def scene(seconds):
        answers = face.runner.run(run(seconds))
        by_number = dict(answers)

        assert sorted(by_number) == [0, 1, 2, 3]
        assert isinstance(by_number[1], TemplateError)
        assert [by_number[n].execution.text for n in (0, 2, 3)] == ["'zero'", "'two'", "'three'"]
        assert answers[-1][0] == 2

    at_some_pace(scene, 0.5, 5)


def test_no_more_run_at_once_than_allowed(face):
    """Requests are taken one by one, as there is room, and none when the iterator has been closed."""
    taken = []

    def requests():
        for number in range(100):
            taken.append(number)
            yield request(str(number), spec=SandboxSpec(owner="many"))

    async def run():
        answers = chosen_backend().run_many(requests(), concurrency=2)
        first = await anext(answers)
        await answers.aclose()

        while await chosen_backend().list("many"):
            await asyncio.sleep(0)

        return first

    number, reply = face.runner.run(asyncio.wait_for(run(), 20))

    assert reply.execution.text == str(number)
    assert len(taken) <= 3


def test_bad_requests_are_refused_before_anything_is_done():
    """Sizes and paths are checked where the request is made."""
    with pytest.raises(InvalidArgumentError, match="files"):
        request("1", files={f"{n}": b"" for n in range(1001)})

    with pytest.raises(InvalidArgumentError, match="files"):
        request("1", files={"a\0b": b""})

    with pytest.raises(InvalidArgumentError, match="max_output_bytes"):
        request("1", max_output_bytes=-1)

    with pytest.raises(InvalidArgumentError, match="allow_input"):
        StatelessRequest(spec=SandboxSpec(), code=ExecuteRequest(code="1", allow_input=True))


def test_run_code_takes_files_and_input():
    """The public function has both."""
    execution = fumehood.run_code(
        "open('a/b').read() + open('c', 'rb').read().decode() + input()",
        files={"a/b": "text ", "c": b"bytes "},
        stdin="line\n",
    )
    assert execution.text == "'text bytes line'"


@pytest.mark.in_process
def test_owners_see_their_own(face):
    """`list` of the port can ask for those of one owner."""

    async def names():
        backend = chosen_backend()
        mine = await backend.create(SandboxSpec(owner="ada", limits=Limits(processes=64)))
        others = await backend.create(SandboxSpec(owner="bob"))
        try:
            return (
                [info.id for info in await backend.list("ada")] == [mine.id],
                {mine.id, others.id} <= {info.id for info in await backend.list()},
                await backend.list("nobody"),
            )
        finally:
            await backend.kill(mine.id)
            await backend.kill(others.id)

    assert face.runner.run(names()) == (True, True, ())
    assert isinstance(Sandbox.list(), list)


def test_run_many_gives_each_outcome_as_it_is_there(face):
    """Code and `Run`s, with input, files and limits; code that fails has an execution, what did not start a failure."""
    runs = [
        "6 * 7",
        Run(
            code="open('out.txt', 'w').write(input() + open('in.txt').read())",
            stdin="a\n",
            files={"in.txt": "b"},
            outputs=["out.txt"],
        ),
        "1 / 0",
        Run(code="while True: pass", limits={"wall_seconds": 0.2}),
        Run(code="1", template="no such template"),
    ]

    async def collect():
        return [outcome async for outcome in fumehood.arun_many(runs)]

    outcomes = sorted(face.runner.run(collect()), key=lambda outcome: outcome.index)

    assert outcomes[0].execution.text == "42"
    assert outcomes[1].files == {"out.txt": b"ab"}
    assert outcomes[2].execution.error.name == "ZeroDivisionError"
    assert outcomes[3].execution.error.kind == "time_limit"
    assert isinstance(outcomes[4].failure, TemplateError)

    with pytest.raises(TemplateError):
        _ = outcomes[4].execution


@pytest.mark.in_process
def test_run_many_takes_runs_one_by_one_and_ends_with_its_loop(face):
    """From a thread without a loop: leaving the `for` begins no other run, and ends those under way."""
    taken = []

    def runs():
        for number in range(100):
            taken.append(number)
            yield str(number)

    for outcome in fumehood.run_many(runs(), concurrency=2):
        assert outcome.execution.text == str(outcome.index)
        break

    assert len(taken) <= 4


def test_run_many_refuses_what_is_no_run_before_it_begins_any():
    for wrong in ("1 + 1", {"code": "1"}, 3, ["1", 2], [Run(code="1", files={"": "x"})]):
        with pytest.raises(InvalidArgumentError):
            next(fumehood.run_many(wrong))
