"""Judging: one program, many inputs, each in a process of its own."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import until

from fumehood import InvalidArgumentError
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
    ],
)
def test_each_way_to_end_has_its_verdict(sandbox, program, verdict, says):
    """A program that fails in one case fails in all that are like it, and harms nobody."""
    # Only what never ends shall meet its limit.
    seconds = 0.5 if verdict == "time_limit" else 60
    results = sandbox.judge(program, [("", "ok")] * 2, timeout=seconds, memory_bytes=100 << 20)
    assert [result.verdict for result in results] == [verdict] * 2
    assert says in results[0].run.error
    assert sandbox.run_code("1 + 1").text == "2"


def test_a_traceback_has_the_programs_frames_only(sandbox):
    """As the interpreter prints it."""
    (result,) = sandbox.judge("def f():\n    raise ValueError('no')\nf()", [("", "")])
    assert "program.py" in result.run.stderr
    assert "_judge" not in result.run.stderr
    assert result.run.stderr.endswith("ValueError: no\n")


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
    twin = sandbox._twin if hasattr(sandbox, "_twin") else sandbox.twin
    program = "open('kept', 'w').write('judged'); print(input())"

    async def give_up(events):
        task = asyncio.ensure_future(twin.judge(program, [("1", "1")] * 4))

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


def test_nothing_to_judge_is_nothing(sandbox):
    """And what makes no sense is refused."""
    assert sandbox.judge("print(1)", []) == []

    with pytest.raises(InvalidArgumentError):
        sandbox.judge("print(1)", [("", "")], timeout=-1)

    for no_pair in ("ab", (1, ""), ("", "", ""), None):
        with pytest.raises(InvalidArgumentError, match="pairs of texts"):
            sandbox.judge("print(1)", [no_pair])
