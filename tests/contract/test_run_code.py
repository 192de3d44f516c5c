"""Running code: state, results, errors, what it used, what was cut off."""

from __future__ import annotations

import threading

import pytest
from tests.waiting import at_some_pace

from fumehood import (
    ContextNotFoundError,
    ExecutionError,
    ExecutionFinished,
    ExecutionStarted,
    InvalidArgumentError,
    Limits,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
)


def test_state_is_kept_from_cell_to_cell(sandbox):
    """A context is a live namespace."""
    sandbox.run_code("x = 1")
    execution = sandbox.run_code("x += 1; x")

    assert execution.text == "2"
    assert execution.error is None
    assert execution.state_lost is False


@pytest.mark.in_guest
def test_unused_cycles_are_collected(sandbox):
    """The process that a context is a copy of collects nothing while it imports."""
    assert sandbox.run_code("import gc\ngc.isenabled(), gc.get_threshold()[0] > 0").text == "(True, True)"


def test_the_execution_count_goes_up(sandbox):
    """Cells are numbered as in a notebook."""
    first = sandbox.run_code("1").execution_count
    assert sandbox.run_code("2").execution_count == first + 1


def test_a_cell_without_a_value_has_no_text(sandbox):
    """A statement gives no result."""
    execution = sandbox.run_code("x = 1")
    assert execution.text is None
    assert execution.results == ()


def test_stdout_and_stderr_are_kept_apart_and_in_order(sandbox):
    """Both streams are recorded with times, interleaved as they were written."""
    execution = sandbox.run_code(
        "import sys\nfor i in range(3):\n    print('out', i)\n    print('err', i, file=sys.stderr)"
    )

    assert "".join(execution.logs.stdout) == "out 0\nout 1\nout 2\n"
    assert "".join(execution.logs.stderr) == "err 0\nerr 1\nerr 2\n"
    assert str(execution.logs) == "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\n"
    times = [entry.at_seconds for entry in execution.logs.entries]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= execution.usage.wall_seconds + 0.1


def test_output_of_child_processes_and_of_c_code_is_heard(sandbox):
    """What is written to the descriptors themselves is part of the logs."""
    execution = sandbox.run_code(
        "import os, subprocess\nos.write(1, b'direct\\n')\nsubprocess.run(['echo', 'child'])\n"
        "os.write(2, b'bad\\n');"
    )

    assert sorted("".join(execution.logs.stdout).split()) == ["child", "direct"]
    assert "".join(execution.logs.stderr) == "bad\n"


def test_code_that_fails_is_a_result(sandbox):
    """An exception of the code is an `error` with the code's own traceback; no exception is raised here."""
    execution = sandbox.run_code("def f():\n    return 1 / 0\nf()")

    assert execution.error.kind == "exception"
    assert execution.error.name == "ZeroDivisionError"
    assert execution.error.value == "division by zero"
    assert "return 1 / 0" in execution.error.traceback
    assert "fumehood" not in execution.error.traceback
    assert "\x1b" not in execution.error.traceback


def test_the_state_survives_an_error(sandbox):
    """After a failed cell the corrected one goes on with everything that was there."""
    sandbox.run_code("rows = [1, 2, 3]")
    assert sandbox.run_code("rows.push(4)").error.name == "AttributeError"
    assert sandbox.run_code("rows.append(4); rows").text == "[1, 2, 3, 4]"


def test_a_syntax_error_is_a_result(sandbox):
    """Code that does not parse is told like any other error."""
    assert sandbox.run_code("for").error.name == "SyntaxError"


def test_usage_is_measured(sandbox):
    """Every execution tells time, processor time, memory and bytes."""
    code = "total = sum(i * i for i in range(2_000_000)); print('x' * 1000)"
    usage = sandbox.run_code(code).usage

    assert usage.wall_seconds > 0
    assert 0 < usage.user_cpu_seconds <= usage.wall_seconds * 2
    assert usage.system_cpu_seconds >= 0
    assert usage.peak_memory_bytes > 1_000_000
    assert usage.bytes_in == len(code)
    assert usage.bytes_out >= 1001


def test_envs_of_one_execution_are_gone_after_it(sandbox):
    """`envs` hold for one execution only, and what was there before comes back."""
    code = "import os; os.environ.get('ONCE', 'none')"

    assert sandbox.run_code(code, envs={"ONCE": "now"}).text == "'now'"
    assert sandbox.run_code(code).text == "'none'"


def test_bash_runs_too(sandbox):
    """`language="bash"` runs in a shell of the sandbox."""
    execution = sandbox.run_code("echo $((6 * 7)); echo oops >&2", language="bash")

    assert "".join(execution.logs.stdout) == "42\n"
    assert "".join(execution.logs.stderr) == "oops\n"
    assert execution.error is None


def test_bash_that_fails_is_a_result(sandbox):
    """A shell's exit code other than 0 is an error of the execution."""
    assert sandbox.run_code("exit 3", language="bash").error is not None


def test_callbacks_hear_everything_as_it_comes(sandbox):
    """Each callback gets its kind of event, in order, before the call returns."""
    heard: list[tuple[str, object]] = []
    sandbox.run_code(
        "import sys\nprint('a')\nprint('b', file=sys.stderr)\ndisplay(1)\n2\nraise ValueError('c')",
        on_stdout=lambda text: heard.append(("out", text)),
        on_stderr=lambda text: heard.append(("err", text)),
        on_result=lambda result: heard.append(("result", result.text)),
        on_error=lambda error: heard.append(("error", error.name)),
    )

    assert "".join(text for kind, text in heard if kind == "out") == "a\n"
    assert "".join(text for kind, text in heard if kind == "err") == "b\n"
    assert [text for kind, text in heard if kind == "result"] == ["1"]
    assert heard[-1] == ("error", "ValueError")


def test_output_reaches_the_callback_while_the_cell_runs(sandbox):
    """Streaming is no replay: a cell that waits for a file is heard before the file is there."""

    def scene(seconds):
        heard: list[str] = []
        execution = sandbox.run_code(
            f"import time\nprint('ready', flush=True)\ntime.sleep({seconds})\nprint('later')",
            on_stdout=heard.append,
        )

        assert "ready" in heard[0]
        entries = execution.logs.entries
        assert entries[-1].at_seconds - entries[0].at_seconds > 0.3

    at_some_pace(scene, 0.5, 5)


def test_coroutine_functions_can_be_callbacks(async_face):
    """`AsyncSandbox` awaits callbacks that are asynchronous."""
    heard: list[str] = []

    async def on_stdout(text: str) -> None:
        heard.append(text)

    async_face.open().run_code("print('hello')", on_stdout=on_stdout)
    assert "".join(heard) == "hello\n"


def test_callbacks_run_in_the_callers_thread_and_may_use_the_sandbox(sync_face):
    """A callback of `Sandbox` may call the sandbox that calls it."""
    sandbox = sync_face.open()
    threads: list[int] = []

    def on_stdout(text: str) -> None:
        threads.append(threading.get_ident())
        sandbox.files.write("heard.txt", text)

    sandbox.run_code("print('hello')", on_stdout=on_stdout)
    assert set(threads) == {threading.get_ident()}
    assert sandbox.files.read("heard.txt") == "hello\n"


def test_an_error_in_a_callback_interrupts_the_code_and_is_raised(sandbox):
    """The caller's own mistake reaches the caller, and the code does not run on."""

    def on_stdout(text: str) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        sandbox.run_code("x = 7\nprint('go')\nimport time\ntime.sleep(60)", on_stdout=on_stdout)

    assert sandbox.run_code("x").text == "7"


def test_a_stop_iteration_in_a_callback_does_not_hang(sync_face):
    """Even the exceptions that generators treat specially come back as an error."""

    def on_stdout(text: str) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError):
        sync_face.open().run_code("print('go')", on_stdout=on_stdout)


def test_input_is_answered_by_a_callback(sandbox):
    """`input()` asks the caller, with its prompt."""
    asked: list[tuple[str, bool]] = []

    def on_input(question):
        asked.append((question, question.is_password))
        return "Ada"

    execution = sandbox.run_code("name = input('Who? ')\nf'hello {name}'", on_input=on_input)
    assert execution.text == "'hello Ada'"
    assert asked == [("Who? ", False)]


def test_getpass_is_a_password_question(sandbox):
    """A question for a password is marked as one."""
    asked: list[bool] = []

    def on_input(question):
        asked.append(question.is_password)
        return "s3cret"

    assert sandbox.run_code("import getpass; getpass.getpass()", on_input=on_input).text == "'s3cret'"
    assert asked == [True]


def test_input_without_anybody_to_answer_fails_at_once(sandbox):
    """Without a callback `input()` raises EOFError that says why, instead of waiting for ever."""
    execution = sandbox.run_code("input('Who? ')")
    assert execution.error.name == "EOFError"
    assert execution.error.value


def test_no_answer_is_the_end_of_input(sandbox):
    """A callback that gives None ends the input."""
    assert sandbox.run_code("input()", on_input=lambda request: None).error.name == "EOFError"


def test_events_come_in_order_from_start_to_finish(sandbox):
    """`stream_code` gives what happens as it happens, and everything once more at the end."""
    events = list(sandbox.stream_code("import sys\nprint('a')\nprint('b', file=sys.stderr)\n1 + 1"))

    assert isinstance(events[0], ExecutionStarted)
    assert isinstance(events[-1], ExecutionFinished)
    kinds = [type(event) for event in events[1:-1]]
    assert kinds == [StdoutEvent, StderrEvent, ResultEvent]
    assert events[-1].execution.text == "2"
    assert events[-1].execution.id == events[0].execution_id
    assert events[-1].execution.context_id == events[0].context_id


def test_leaving_a_stream_interrupts_the_code(sandbox):
    """Whoever stops listening stops the code; the context is free and keeps its state."""
    for event in sandbox.stream_code("x = 5\nprint('go')\nimport time\ntime.sleep(60)"):
        if isinstance(event, StdoutEvent):
            break

    assert sandbox.run_code("x").text == "5"


def test_a_byte_order_mark_is_no_part_of_the_code(sandbox):
    """As `python` reads a file that begins with one; the lines keep their numbers."""
    assert sandbox.run_code("\ufeff6 * 7").text == "42"
    execution = sandbox.run_code("\ufeff1\n1 / 0")
    assert execution.error is not None
    assert "line 2" in execution.error.traceback
    (result,) = sandbox.judge("\ufeffprint(int(input()) + 1)", [("1", "2")])
    assert result.verdict == "accepted"


def test_an_execution_that_was_stopped_says_where(face):
    """The traceback of a time limit and of an interrupt names the line, and ends with the reason."""
    sandbox = face.open()
    heard: list[ExecutionError] = []
    code = "import time\nfor _ in range(9):\n    time.sleep(60)"
    error = sandbox.run_code(code, timeout=0.5, on_error=heard.append).error
    assert heard == [error]
    assert error is not None
    assert (error.kind, error.name) == ("time_limit", "TimeLimitExceeded")
    lines = error.traceback.split("\n")
    assert lines[1].startswith("TimeLimitExceeded ")
    assert "----> 3     time.sleep(60)" in lines
    assert lines[-1] == f"TimeLimitExceeded: {error.value}"
    assert "KeyboardInterrupt" not in str(error)

    caught = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: raise ValueError('late')"
    error = sandbox.run_code(caught, timeout=0.5).error
    assert error is not None
    assert "ValueError: late" in error.traceback
    assert error.traceback.endswith(f"\n\nTimeLimitExceeded: {error.value}")

    deaf = "import time\nwhile True:\n    try: time.sleep(60)\n    except KeyboardInterrupt: pass"
    error = sandbox.run_code(deaf, timeout=0.5).error
    assert error is not None
    assert (error.kind, error.traceback) == ("time_limit", "")


def test_output_beyond_the_limit_is_counted(face):
    """Of standard output and standard error head and tail are kept, and what lies between is counted to the byte."""
    sandbox = face.open(limits=Limits(stdout_bytes=100, stderr_bytes=50))
    execution = sandbox.run_code("import sys\nprint('x' * 999)\nprint('y' * 496 + 'end', file=sys.stderr)")

    assert "".join(execution.logs.stdout) == (
        "x" * 25 + "\n[... 900 bytes, 0 lines, of standard output left out here ...]\n" + "x" * 74 + "\n"
    )
    assert "".join(execution.logs.stderr) == (
        "y" * 12 + "\n[... 450 bytes, 0 lines, of standard error left out here ...]\n" + "y" * 34 + "end\n"
    )
    assert execution.truncated.stdout_bytes == 900
    assert execution.truncated.stderr_bytes == 450
    assert execution.error is None


def test_a_cut_never_splits_a_character(face):
    """What is kept is valid text, and kept plus dropped is all there was."""
    sandbox = face.open(limits=Limits(stdout_bytes=10))
    execution = sandbox.run_code("print('é' * 100, end='')")
    head, _, tail = execution.logs.stdout

    assert (head, tail) == ("é", "é" * 4)
    assert len((head + tail).encode()) + execution.truncated.stdout_bytes == 200


def test_the_next_cell_works_after_a_flood(face):
    """A flood is cut in its middle, marked, and forgotten; what was printed last is there."""
    sandbox = face.open(limits=Limits(stdout_bytes=1000))
    execution = sandbox.run_code("for _ in range(2000): print('x' * 10_000)\nprint('the result')")

    assert execution.truncated.stdout_bytes == 2000 * 10_001 + 11 - 1000
    assert "[... 20,001,011 bytes, 1,999 lines, of standard output left out" in str(execution.logs)
    assert "".join(execution.logs.stdout).endswith("xxx\nthe result\n")


def test_what_was_printed_last_is_kept_however_the_code_ends(face):
    """The tail of a flood is there when the code is killed, and whoever follows gets it at the end."""
    sandbox = face.open(limits=Limits(stdout_bytes=1000))
    heard: list[str] = []
    execution = sandbox.run_code(
        "import os\nfor n in range(5000): print(n)\nprint('last words', flush=True)\nos._exit(1)",
        on_stdout=heard.append,
    )

    assert execution.error is not None
    assert execution.state_lost
    assert "".join(execution.logs.stdout).endswith("4999\nlast words\n")
    assert "".join(heard).endswith("4999\nlast words\n")
    assert "of standard output left out here" in "".join(heard)
    assert sandbox.run_code("1 + 1").text == "2"


def test_results_beyond_the_limit_are_counted(face):
    """Results are cut in number, the first ones stay."""
    sandbox = face.open(limits=Limits(result_count=3))
    execution = sandbox.run_code("for i in range(10): display(i)")

    assert [result.text for result in execution.results] == ["0", "1", "2"]
    assert execution.truncated.results == 7


def test_a_result_that_is_too_large_is_marked(face):
    """Formats that do not fit are named with their true size."""
    sandbox = face.open(limits=Limits(result_bytes=1000))
    execution = sandbox.run_code("display({'text/plain': 'small', 'text/html': '<p>' * 1000}, raw=True)")
    result = execution.results[0]

    assert result.text == "small"
    assert result.html is None
    assert result.truncated == {"text/html": 3000}


@pytest.mark.parametrize(
    "arguments",
    [
        {"code": 5},
        {"code": None},
        {"code": "1", "language": "abap"},
        {"code": "1", "timeout": 0},
        {"code": "1", "timeout": -3},
        {"code": "1", "timeout": float("inf")},
        {"code": "1", "timeout": True},
        {"code": "1", "envs": {"": "x"}},
        {"code": "1", "envs": ["A"]},
        {"code": "1", "context": ""},
        {"code": "\ud800"},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(sandbox, arguments):
    """Each refusal names field and value, and the sandbox is as before."""
    with pytest.raises(InvalidArgumentError, match="is refused"):
        sandbox.run_code(**arguments)

    assert sandbox.run_code("1").text == "1"


def test_an_unknown_context_is_refused(sandbox):
    """The error names the context."""
    with pytest.raises(ContextNotFoundError, match="'nowhere'"):
        sandbox.run_code("1", context="nowhere")


def test_empty_code_is_fine(sandbox):
    """Nothing to do is done."""
    execution = sandbox.run_code("")
    assert execution.error is None
    assert execution.text is None


def test_text_of_any_script_passes_unchanged(sandbox):
    """Code and output are UTF-8 in both directions."""
    text = "häß \U0001f9ea 漢字 \u202e"
    execution = sandbox.run_code(f"s = {text!r}\nprint(s)\ns")
    assert "".join(execution.logs.stdout) == text + "\n"
