"""Judging: one program, many inputs, each in a process of its own."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import until

from fumehood import InvalidArgumentError, Limits
from fumehood.portal import call

SUM = "import numpy as np\nn = int(input())\nprint(int(np.arange(n + 1).sum()))"


def test_cases_are_judged_in_their_order(sandbox):
    """Lines are compared without the space at their ends."""
    cases = [(f"{n}\n", f"{n * (n + 1) // 2}  \n\n") for n in range(20)]
    cases[7] = ("7\n", "29")
    results = sandbox.judge(SUM, cases)
    assert [result.verdict for result in results] == [
        "wrong_answer" if n == 7 else "accepted" for n in range(20)
    ]
    assert results[7].run.stdout == "28\n"
    assert results[3].run.usage.wall_seconds > 0


@pytest.mark.parametrize(
    ("program", "verdict", "says"),
    [
        ("1 / 0", "runtime_error", "ZeroDivisionError: division by zero"),
        ("def f(:", "runtime_error", "SyntaxError"),
        ("import nothing_of_this_name", "runtime_error", "ModuleNotFoundError"),
        ("import sys; sys.exit(3)", "runtime_error", "3"),
        ("import os; os._exit(1)", "runtime_error", "ContextDied"),
        ("while True: pass", "time_limit", "ran longer than 0.5 s"),
        ("b = bytearray(1 << 30)", "memory_limit", "MemoryError"),
        ("import sys; print('ok'); sys.exit(0)", "accepted", ""),
        (
            "print('ok')\nimport threading; threading.Thread(target=input, daemon=True).start()",
            "accepted",
            "",
        ),
        ("raise SystemExit", "wrong_answer", ""),
        ("print('ok'); exit()", "accepted", ""),
        ("print('ok'); quit(2)", "runtime_error", "2"),
        ("import os; print('ok', flush=True); os._exit(0)", "accepted", ""),
        ("await nothing", "runtime_error", "SyntaxError"),
        ("return", "runtime_error", "SyntaxError"),
        ("print('ok\\u2028')", "accepted", ""),
        ("import atexit\natexit.register(print, 'k')\nprint('o', end='')", "accepted", ""),
        (
            "import threading\ngate = threading.Event()\n"
            "threading.Thread(target=lambda: gate.wait() and print('ok')).start()\n"
            "threading.Timer(0.05, gate.set).start()",
            "accepted",
            "",
        ),
        (
            "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor().submit(print, 'ok')",
            "accepted",
            "",
        ),
    ],
)
@pytest.mark.in_guest
def test_each_way_to_end_has_its_verdict(sandbox, program, verdict, says):
    """A program that fails in one case fails in all that are like it, and harms nobody."""
    # Only what never ends shall meet its limit.
    seconds = 0.5 if verdict == "time_limit" else 60
    results = sandbox.judge(program, [("", "ok")] * 2, timeout=seconds, memory_bytes=100 << 20)
    assert [result.verdict for result in results] == [verdict] * 2
    assert says in results[0].run.error
    assert sandbox.run_code("1 + 1").text == "2"


def test_a_program_is_the_main_module(sandbox):
    """What looks for names in it finds them: pickles, annotations that are texts, processes."""
    program = (
        "from __future__ import annotations\nimport __main__, multiprocessing, pickle, typing\n"
        "class Node:\n    left: Node\n\ndef double(n): return 2 * n\n\n"
        "if __name__ == '__main__':\n"
        "    print(typing.get_type_hints(Node) == {'left': Node}, type(pickle.loads(pickle.dumps(Node()))) is Node)\n"
        "    with multiprocessing.Pool(1) as pool: print(pool.map(double, [1, 2]), __main__.double is double, __doc__)"
    )
    (result,) = sandbox.judge(program, [("", "True True\n[2, 4] True None")])
    assert (result.verdict, result.run.error) == ("accepted", "")


@pytest.mark.parametrize(
    "program",
    [
        # As templates for quick output do it: all of it is written when the stream is flushed in the end.
        "class Quick:\n    def __init__(self): self.texts = []\n    def write(self, text): self.texts.append(text)\n"
        "    def flush(self): os.write(1, ''.join(self.texts).encode()); self.texts = []\n"
        "sys.stdout = Quick(); print('ok')",
        "sys.stdout = io.TextIOWrapper(sys.stdout.buffer); write = sys.stdout.write; write('ok')",
        "sys.stdout = io.TextIOWrapper(sys.stdout.detach()); print('ok')",
        "out = open(1, 'w'); out.write('ok')",
        "class Last:\n    def __del__(self): say('ok')\nlast = Last()",
    ],
    ids=["flush", "wrapper", "detached", "file", "object"],
)
@pytest.mark.in_guest
def test_what_is_written_in_the_end_counts(sandbox, program):
    """As with `python program.py`: standard output is flushed, and what the program holds is let go of."""
    # A function holds on to all names of its module.
    program = f"import io, os, sys\ndef say(text): print(text)\n{program}"
    (result,) = sandbox.judge(program, [("", "ok")])
    assert (result.verdict, result.run.stdout.strip(), result.run.stderr) == ("accepted", "ok", "")


def test_a_text_to_exit_with_is_an_error_and_is_reported(sandbox):
    """As the interpreter does it: before anything else that comes in the end."""
    program = "import atexit, sys\natexit.register(print, 'then', file=sys.stderr)\nsys.exit('no input')"
    (result,) = sandbox.judge(program, [("", "")])
    assert (result.verdict, result.run.stderr) == ("runtime_error", "no input\nthen\n")


def test_what_was_cut_off_is_not_accepted(face):
    """Neither when what is left of it is right, nor when all of it may be."""
    sandbox = face.open(limits=Limits(stdout_bytes=1000))
    for count, verdict in ((1000, "accepted"), (1001, "wrong_answer")):
        (result,) = sandbox.judge(f"print('x' * {count}, end='')", [("", "x" * 1000)])
        assert (result.verdict, result.run.truncated.stdout_bytes) == (verdict, count - 1000)

    (result,) = sandbox.judge("print('x' * 2000)", [("", "x" * 2000)])
    assert result.verdict == "wrong_answer"


@pytest.mark.parametrize("other", ["a\u2028b", "a\x0bb", "a\x85b"])
@pytest.mark.in_guest
def test_lines_end_where_a_program_ends_them(sandbox, other):
    """Other characters are part of a line."""
    assert sandbox.judge(f"print({other!r})", [("", "a\nb")])[0].verdict == "wrong_answer"
    assert sandbox.judge("print('a \\r\\nb', end='\\n\\n')", [("", "a\nb")])[0].verdict == "accepted"


def test_a_traceback_has_the_programs_frames_only(sandbox):
    """As the interpreter prints it."""
    (result,) = sandbox.judge("def f():\n    raise ValueError('no')\nf()", [("", "")])
    lines = [line for line in result.run.stderr.splitlines() if not set(line) <= set(" ^~")]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "program.py", line 3, in <module>',
        "    f()",
        '  File "program.py", line 2, in f',
        "    raise ValueError('no')",
        "ValueError: no",
    ]


def test_a_program_shows_its_errors_itself(sandbox):
    """With a hook, as the interpreter calls it; it fails all the same."""
    program = "import sys\nsys.excepthook = lambda kind, error, _: print(kind.__name__, error)\nraise ValueError('no')"
    (result,) = sandbox.judge(program, [("", "ValueError no")])
    assert (result.verdict, result.run.stdout, result.run.stderr) == ("runtime_error", "ValueError no\n", "")


def test_cases_know_nothing_of_each_other_or_of_the_sandbox(sandbox):
    """Neither variables nor modules nor, afterwards, files."""
    sandbox.run_code("secret = 1; _ = open('kept', 'w').write('kept')")
    program = (
        "import json, os\nprint(hasattr(json, 'mark'), 'secret' in globals())\n"
        "json.mark = 1; open('new', 'w').write('x'); open('kept', 'w').write('changed')"
    )
    results = sandbox.judge(program, [("", "False False")] * 3, concurrency=1)
    assert {result.verdict for result in results} == {"accepted"}
    assert (
        sandbox.run_code("import os; (open('kept').read(), os.path.exists('new'))").text == "('kept', False)"
    )
    assert sandbox.run_code("secret").text == "1"


def test_what_a_case_starts_ends_with_it(sandbox):
    """Its children do not outlive it."""
    program = "import subprocess; subprocess.Popen(['sleep', '1000']); print('ok')"
    assert {result.verdict for result in sandbox.judge(program, [("", "ok")] * 3)} == {"accepted"}
    # They have been killed; the kernel takes them away when it comes to it.
    until(lambda: not sandbox.commands.run("grep -l sleep /proc/[0-9]*/comm || true").stdout)


def test_a_caller_who_gives_up_leaves_nothing(sandbox):
    """At any moment, and many at once: no process, no snapshot, and files as they were."""
    sandbox.run_code("_ = open('kept', 'w').write('kept')")
    processes = sandbox.get_metrics().processes
    async_impl = sandbox._async if hasattr(sandbox, "_async") else sandbox.async_impl
    program = "open('kept', 'w').write('judged'); print(input())"

    async def give_up(events):
        task = asyncio.ensure_future(async_impl.judge(program, [("1", "1")] * 4))

        for _ in range(events):
            await asyncio.sleep(0)

        task.cancel()
        await asyncio.wait([task])

    async def many():
        await asyncio.gather(*(give_up(events) for events in range(0, 1500, 150)))

    call(many)
    assert [result.verdict for result in sandbox.judge(program, [("1", "1")])] == ["accepted"]
    # Whoever gives up does not wait for the end of what is being tidied up.
    until(lambda: sandbox.get_metrics().processes <= processes)
    leases = "[line for line in open('/proc/locks') if 'READ 1 ' in line]"
    until(lambda: sandbox.run_code(leases).text == "[]")
    assert sandbox.run_code("open('kept').read()").text == "'kept'"


@pytest.mark.parametrize("concurrency", [1, 2])
def test_who_kills_what_the_cases_are_forked_from_has_their_verdicts(sandbox, concurrency):
    """The cases that cannot be run any more say why; those before are as they were."""
    program = "import os\nif input() == 'kill':\n    os.kill(os.getppid(), 9)\nprint('ok')"
    cases = [(line, "ok") for line in ("1", "kill", "3", "4", "5")]
    results = sandbox.judge(program, cases, concurrency=concurrency)
    assert results[0].verdict == "accepted"
    assert results[4].verdict == "runtime_error"
    assert "killed or stopped the one that its cases are forked from" in results[4].run.error
    assert [result.verdict for result in sandbox.judge("print('ok')", cases)] == ["accepted"] * 5


def test_no_more_cases_run_at_once_than_there_is_room_for(face):
    """A right program is accepted, whatever its caller asks for: the others wait until there is room."""
    sandbox = face.open(limits=Limits(processes=8))
    program = "import time; time.sleep(0.1); print('ok')"
    results = sandbox.judge(program, [("", "ok")] * 16, concurrency=16)
    assert [result.verdict for result in results] == ["accepted"] * 16


def test_who_stops_what_the_cases_are_forked_from_stops_nothing_else(sandbox):
    """It is woken to say that the case has ended: else nobody would know, and the sandbox would be given up."""
    program = (
        "import os, signal\nif input() == 'stop':\n    os.kill(os.getppid(), signal.SIGSTOP)\nprint('ok')"
    )
    cases = [(line, "ok") for line in ("1", "stop", "3")]
    results = sandbox.judge(program, cases, concurrency=1)
    assert [result.verdict for result in results] == ["accepted"] * 3


def test_nothing_to_judge_is_nothing(sandbox):
    """And what makes no sense is refused."""
    assert sandbox.judge("print(1)", []) == []

    with pytest.raises(InvalidArgumentError):
        sandbox.judge("print(1)", [("", "")], timeout=-1)

    for no_pair in ("ab", (1, ""), ("", "", ""), None):
        with pytest.raises(InvalidArgumentError, match="pairs of texts"):
            sandbox.judge("print(1)", [no_pair])

    with pytest.raises(InvalidArgumentError, match="pairs of texts"):
        sandbox.judge("print(1)", None)
