"""The faces over a scripted backend: what they ask of the port, and what they make of its answers."""

from __future__ import annotations

import asyncio
import gc
import io
import warnings

import pytest

from fumehood import (
    AsyncSandbox,
    Backend,
    CommandExitError,
    CommandTimeoutError,
    ErrorEvent,
    ExecutionError,
    ExecutionStarted,
    FileTooLargeError,
    InputRequestEvent,
    Limits,
    PathNotTextError,
    Result,
    ResultEvent,
    Sandbox,
    SandboxClosedError,
    StderrEvent,
    run_code,
)
from fumehood.values.requests import (
    CloseStdin,
    InputAnswer,
    ProcessExited,
    ProcessOutput,
    SendStdin,
    SignalProcess,
)


def test_what_is_asked_for_reaches_the_port(backend):
    """The arguments of `Sandbox` become one request."""
    Sandbox(
        "mine",
        limits=Limits(processes=9),
        envs={"A": "1"},
        metadata={"b": "2"},
        timeout=3,
        idle_timeout=4,
        strict=True,
        backend=backend,
    ).kill()
    spec = backend.asked[0]

    assert (spec.template, spec.limits.processes, spec.envs, spec.metadata) == (
        "mine",
        9,
        {"A": "1"},
        {"b": "2"},
    )
    assert (spec.timeout_seconds, spec.idle_timeout_seconds, spec.strict) == (3, 4, True)


def test_code_reaches_the_port(backend):
    """The arguments of `run_code` become one request; input is allowed when somebody answers it."""
    with Sandbox(backend=backend) as sandbox:
        context = sandbox.create_code_context()
        sandbox.run_code(
            "1", context=context, envs={"A": "1"}, timeout=2, language="bash", on_input=lambda _: ""
        )
        sandbox.run_code("2")

    first, second = backend.asked[-2:]
    assert (first.code, first.context_id, first.envs, first.wall_seconds) == ("1", "c1", {"A": "1"}, 2)
    assert (first.language, first.allow_input) == ("bash", True)
    assert (second.context_id, second.wall_seconds, second.allow_input) == (None, None, False)


def test_each_event_goes_to_its_callback(backend):
    """Texts, results and errors are told apart."""
    backend.events[2:2] = [
        StderrEvent(text="bad", at_seconds=0),
        ResultEvent(result=Result(parts={"text/plain": b"2"}), at_seconds=0),
        ErrorEvent(error=ExecutionError(kind="exception", name="E", value="v"), at_seconds=0),
    ]
    heard: list[object] = []

    with Sandbox(backend=backend) as sandbox:
        execution = sandbox.run_code(
            "1",
            on_stdout=heard.append,
            on_stderr=heard.append,
            on_result=lambda result: heard.append(result.text),
            on_error=lambda error: heard.append(error.name),
        )

    assert heard == ["hello\n", "bad", "2", "E"]
    assert execution.id == "e1"


def test_a_question_is_answered(backend):
    """What the callback gives goes back under the question's name."""
    question = InputRequestEvent(execution_id="e1", request_id="r1", prompt="? ", at_seconds=0)
    backend.events.insert(1, question)

    with Sandbox(backend=backend) as sandbox:
        sandbox.run_code("1", on_input=lambda request: f"answer to {request}")
        sandbox.run_code("1", on_input=lambda request: None)

    assert [item for item in backend.asked if isinstance(item, InputAnswer)] == [
        InputAnswer(execution_id="e1", request_id="r1", text="answer to ? "),
        InputAnswer(execution_id="e1", request_id="r1", text=None),
    ]


def test_a_stream_without_an_end_is_a_dead_sandbox(backend):
    """A backend that breaks its promise is not believed."""
    backend.events.pop()

    with Sandbox(backend=backend) as sandbox, pytest.raises(SandboxClosedError) as caught:
        sandbox.run_code("1")

    assert caught.value.outcome_unknown is True


def test_cancelling_a_run_closes_the_iterator_of_the_port(backend):
    """Cancellation reaches the backend, which then interrupts the code."""
    backend.gate = asyncio.Event().wait

    async def main() -> None:
        async with AsyncSandbox(backend=backend) as sandbox:
            heard = asyncio.Event()
            task = asyncio.create_task(sandbox.run_code("1", on_stdout=lambda text: heard.set()))
            await heard.wait()
            task.cancel()

            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert backend.closed_early == ["execute"]


def test_a_stream_that_is_left_closes_the_iterator_of_the_port(backend):
    """So does leaving a loop."""
    with Sandbox(backend=backend) as sandbox:
        for event in sandbox.stream_code("1"):
            assert isinstance(event, ExecutionStarted)
            break

    assert backend.closed_early == ["execute"]


def test_a_sandbox_of_a_block_is_killed_whatever_happens(backend):
    """An error in the block does not leave a sandbox."""
    with pytest.raises(LookupError), Sandbox(backend=backend):
        raise LookupError

    assert backend.alive == {}


def test_a_single_call_leaves_nothing_even_when_it_fails(backend):
    """The sandbox of a stateless call always ends."""

    def on_stdout(text: str) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        run_code("1", on_stdout=on_stdout, backend=backend)

    assert backend.alive == {}


def test_a_sandbox_that_is_forgotten_warns(backend):
    """Nothing is ended behind the user's back, but it is said."""
    with pytest.warns(ResourceWarning, match="was never killed"):
        _open_and_forget(backend)

    assert len(backend.alive) == 1


def _open_and_forget(backend: Backend) -> None:
    Sandbox(backend=backend)
    gc.collect()


def test_a_sandbox_that_was_killed_or_only_connected_to_does_not_warn(backend):
    """Whoever did not open it need not close it."""
    sandbox = Sandbox(backend=backend)
    other = Sandbox.connect(sandbox.id, backend=backend)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del other
        sandbox.kill()
        del sandbox
        gc.collect()


def test_representation(backend):
    """A sandbox shows its name."""
    with Sandbox(backend=backend) as sandbox:
        assert repr(sandbox) == "<Sandbox 's0'>"

    assert repr(AsyncSandbox(backend=backend)) == "<AsyncSandbox ->"


@pytest.mark.parametrize(
    ("data", "content"),
    [
        ("häß", "häß".encode()),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[1:3], b"bc"),
        (io.BytesIO(b"file"), b"file"),
        (io.StringIO("häß"), "häß".encode()),
        ("", b""),
    ],
    ids=["text", "bytes", "bytearray", "memoryview", "file", "text file", "empty"],
)
def test_content_of_every_kind_is_written(backend, data, content):
    """Text, bytes and open files are all content."""
    with Sandbox(backend=backend) as sandbox:
        sandbox.files.write("f", data)

    assert backend.files["f"] == content


def test_content_is_sent_in_pieces(backend):
    """A piece is at most a mebibyte."""
    with Sandbox(backend=backend) as sandbox:
        sandbox.files.write("f", bytes(2_500_000))
        assert backend.asked[-1] == [1_048_576, 1_048_576, 402_848]
        sandbox.files.write("f", io.BytesIO(bytes(2_500_000)))
        assert backend.asked[-1] == [1_048_576, 1_048_576, 402_848]


def test_a_file_is_read_in_each_format(backend):
    """Text, bytes and pieces are the same content."""
    backend.files["f"] = "häß ".encode() * 5

    with Sandbox(backend=backend) as sandbox:
        assert sandbox.files.read("f") == "häß " * 5
        assert sandbox.files.read("f", format="bytes") == backend.files["f"]
        assert b"".join(sandbox.files.read("f", format="stream")) == backend.files["f"]


def test_reading_is_bounded_and_never_guesses(backend):
    """Too large and no text are told as what they are."""
    backend.files["f"] = b"\xff" * 100

    with Sandbox(backend=backend) as sandbox:
        with pytest.raises(FileTooLargeError):
            sandbox.files.read("f", format="bytes", max_bytes=99)

        assert len(sandbox.files.read("f", format="bytes", max_bytes=100)) == 100

        with pytest.raises(PathNotTextError):
            sandbox.files.read("f")


def test_a_command_is_put_together(backend):
    """A line goes to bash, a list goes as it is, and the limit on time is that of the sandbox."""
    with Sandbox(backend=backend, limits=Limits(wall_seconds=7)) as sandbox:
        sandbox.commands.run("echo $A", cwd="/tmp", envs={"A": "1"})
        sandbox.commands.run(["echo", "a b"], timeout=3)
        sandbox.commands.run(["sleep", "9"], background=True)

    line, words, background = backend.asked[-3:]
    assert line.argv == ("/bin/bash", "-l", "-c", "echo $A")
    assert (line.cwd, line.envs, line.stdin, line.timeout_seconds) == ("/tmp", {"A": "1"}, False, 7)
    assert (words.argv, words.timeout_seconds) == (("echo", "a b"), 3)
    assert background.timeout_seconds is None


def test_output_is_decoded_across_pieces(backend):
    """A character split between pieces is whole, a broken one is marked."""
    backend.output = [
        ProcessOutput(stream="stdout", data=b"h\xc3"),
        ProcessOutput(stream="stderr", data=b"\xff"),
        ProcessOutput(stream="stdout", data=b"\xa4\xc3"),
        ProcessExited(exit_code=0),
    ]
    heard: list[str] = []

    with Sandbox(backend=backend) as sandbox:
        result = sandbox.commands.run("x", on_stdout=heard.append)

    assert (result.stdout, result.stderr) == ("hä\ufffd", "\ufffd")
    assert heard == ["h", "ä", "\ufffd"]


def test_the_end_of_a_command_is_reported(backend):
    """A code other than 0 and a time that was over are exceptions with everything that was written."""
    out = ProcessOutput(stream="stdout", data=b"some")

    with Sandbox(backend=backend) as sandbox:
        backend.output = [out, ProcessExited(exit_code=2)]

        with pytest.raises(CommandExitError) as failed:
            sandbox.commands.run("x")

        backend.output = [out, ProcessExited(exit_code=137, timed_out=True)]

        with pytest.raises(CommandTimeoutError) as late:
            sandbox.commands.run("x", timeout=5)

    assert (failed.value.stdout, failed.value.exit_code) == ("some", 2)
    assert (late.value.stdout, late.value.timeout_seconds) == ("some", 5)


def test_input_is_fed_and_closed(backend):
    """All of `stdin` goes in, in pieces, and then it ends."""
    with Sandbox(backend=backend) as sandbox:
        handle = sandbox.commands.run("cat", stdin="x" * 300_000, background=True)

    sent = [item for item in backend.asked if isinstance(item, (SendStdin, CloseStdin))]
    assert [len(item.data) for item in sent[:-1]] == [262_144, 37_856]
    assert sent[-1] == CloseStdin(pid=handle.pid)


def test_an_error_in_a_callback_of_a_command_kills_it(backend):
    """Whoever gives up leaves nothing running."""
    backend.output.insert(0, ProcessOutput(stream="stdout", data=b"x"))

    def on_stdout(text: str) -> None:
        raise LookupError

    with Sandbox(backend=backend) as sandbox, pytest.raises(LookupError):
        sandbox.commands.run("x", on_stdout=on_stdout)

    assert SignalProcess(pid=5, signal=9) in backend.asked
