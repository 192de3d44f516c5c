"""Stopping code: time limits, interrupts, contexts that die; what is kept and what is lost is always said."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest
from tests.waiting import at_some_pace, within

from fumehood import CommandExitError, Limits


def test_the_time_limit_interrupts_and_keeps_the_state(face):
    """At the limit the code gets a KeyboardInterrupt; its variables stay, and nothing claims otherwise."""

    def scene(seconds):
        sandbox = face.open(limits=Limits(wall_seconds=seconds))
        execution = sandbox.run_code("x = 3\nwhile True: pass")

        assert execution.error.kind == "time_limit"
        assert execution.error.name == "TimeLimitExceeded"
        assert execution.state_lost is False
        assert seconds - 0.1 < execution.usage.wall_seconds < seconds + 10
        assert sandbox.run_code("x").text == "3"

    at_some_pace(scene, 0.5, 5)


def test_the_timeout_of_one_call_replaces_the_limit(sandbox):
    """`timeout` is the time limit of one execution."""
    execution = sandbox.run_code("import time; time.sleep(60)", timeout=0.3)
    assert execution.error.kind == "time_limit"
    assert execution.usage.wall_seconds < 30


def test_code_that_does_not_stop_is_killed_and_is_reported(face):
    """After the grace the context is killed and replaced; `state_lost` says so, and the next cell works."""
    sandbox = face.open(limits=Limits(wall_seconds=0.5, grace_seconds=0.3))
    execution = sandbox.run_code(
        "import time\nx = 1\nwhile True:\n    try:\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        pass"
    )

    assert execution.error.kind == "time_limit"
    assert execution.state_lost is True
    assert sandbox.run_code("'x' in globals()", timeout=30).text == "False"


def test_code_that_swallows_the_interrupt_and_ends_is_still_reported(face):
    """An execution that outlived its time did so, whatever it made of the interrupt."""
    sandbox = face.open(limits=Limits(wall_seconds=0.5, grace_seconds=5))
    execution = sandbox.run_code(
        "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    y = 2"
    )

    assert execution.error.kind == "time_limit"
    assert execution.state_lost is False
    assert sandbox.run_code("y", timeout=30).text == "2"


def test_output_before_the_limit_is_kept(face):
    """What was printed before the end is not lost with it."""

    def scene(seconds):
        sandbox = face.open(limits=Limits(wall_seconds=seconds))
        execution = sandbox.run_code("print('before')\nwhile True: pass")
        assert "".join(execution.logs.stdout) == "before\n"

    at_some_pace(scene, 0.5, 5)


def test_processor_time_is_limited(face):
    """`cpu_seconds` stops code that works too much, before the wall clock does."""
    sandbox = face.open(limits=Limits(wall_seconds=60, cpu_seconds=0.5))
    execution = sandbox.run_code("while True: pass")

    assert execution.error.kind == "cpu_limit"
    assert execution.usage.wall_seconds < 50


def test_sleeping_costs_no_processor_time(face):
    """`cpu_seconds` counts work, not waiting."""
    sandbox = face.open(limits=Limits(cpu_seconds=0.5))
    assert sandbox.run_code("import time; time.sleep(1.0); 'rested'").text == "'rested'"


def test_interrupt_stops_what_runs_and_keeps_the_state(face):
    """`interrupt()` from a callback or another thread ends the cell, not the context."""
    sandbox = face.open()
    other = face.connect(sandbox.id)

    if face.is_sync:
        interrupted: list[bool] = []
        execution = sandbox.run_code(
            "x = 9\nprint('go')\nimport time\ntime.sleep(60)",
            on_stdout=lambda text: interrupted.append(other.interrupt()),
        )
        assert interrupted == [True]
    else:
        execution = sandbox.run_code(
            "x = 9\nprint('go')\nimport time\ntime.sleep(60)",
            on_stdout=lambda text: sandbox.async_impl.interrupt(),
        )

    assert execution.error.kind == "interrupted"
    assert execution.state_lost is False
    assert sandbox.run_code("x").text == "9"


def test_interrupt_of_an_idle_context_does_nothing(sandbox):
    """There is nothing to stop, the answer says so, and the next cell is not hit."""
    assert sandbox.interrupt() is False
    assert sandbox.run_code("1").text == "1"


def test_ctrl_c_interrupts_the_cell_and_is_raised(sync_face):
    """KeyboardInterrupt in the waiting thread stops the code in the sandbox, and its state is kept."""
    sandbox = sync_face.open()

    with pytest.raises(KeyboardInterrupt):
        sandbox.run_code(
            "x = 4\nprint('go')\nimport time\ntime.sleep(60)",
            on_stdout=lambda text: signal.raise_signal(signal.SIGINT),
        )

    assert sandbox.run_code("x").text == "4"


def test_cancelling_a_run_that_is_followed_is_a_cancellation(async_face):
    """From a loop that is not the engine's: what is raised is CancelledError, and the context is idle."""
    sandbox = async_face.open().async_impl

    async def main():
        heard = asyncio.Event()
        code = "print('began', flush=True)\nwhile True: pass"
        task = asyncio.create_task(sandbox.run_code(code, on_stdout=lambda _: heard.set()))
        await heard.wait()
        # Until the run waits for what comes next.
        await sandbox.get_info()
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task

        assert (await sandbox.run_code("6 * 7")).text == "42"

    async_face.runner.run(main())


def test_ctrl_c_while_waiting_without_callbacks(sync_face):
    """The same when the main thread only waits."""
    sandbox = sync_face.open()
    other = sync_face.connect(sandbox.id)

    def press_when_running() -> None:
        while not other.files.exists("/tmp/running"):
            pass

        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press_when_running)
    presser.start()

    with pytest.raises(KeyboardInterrupt):
        sandbox.run_code("x = 8\nopen('/tmp/running', 'w').close()\nimport time\ntime.sleep(60)")

    presser.join()
    assert sandbox.run_code("x").text == "8"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("import os; os._exit(7)", "context_died"),
        ("import ctypes; ctypes.string_at(0)", "context_died"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "context_died"),
    ],
    ids=["exit", "segfault", "kill"],
)
def test_a_context_that_dies_gives_a_typed_result_and_a_fresh_context(sandbox, code, kind):
    """A death is told within 2 s, the loss of state is said, and the next cell runs in a fresh context."""
    sandbox.run_code("x = 1")
    sandbox.files.write("kept.txt", "yes")
    execution = within(2, lambda: sandbox.run_code(code))

    assert execution.error.kind == kind
    assert execution.state_lost is True
    assert sandbox.run_code("'x' in globals()").text == "False"
    assert sandbox.files.read("kept.txt") == "yes"


def test_output_before_a_death_is_kept(sandbox):
    """What was printed before the context died is in the logs."""
    execution = sandbox.run_code("print('last words', flush=True)\nimport os\nos._exit(1)")
    assert "".join(execution.logs.stdout) == "last words\n"


def test_a_context_that_ends_by_itself_was_not_killed_for_memory(face):
    """A command in the same sandbox was, before."""
    sandbox = face.open(limits=Limits(memory_bytes=256 * 1024 * 1024))
    sandbox.run_code("1")
    grow = "held = []\nwhile True:\n    held.append(bytes(b'x' * (16 << 20)))"

    with pytest.raises(CommandExitError):
        sandbox.commands.run(["python3", "-c", grow])

    execution = sandbox.run_code("import os; os._exit(3)")
    assert (execution.error.kind, execution.state_lost) == ("context_died", True)


def test_running_out_of_memory_is_reported(face):
    """More memory than allowed ends the context or raises MemoryError; the sandbox lives on either way."""
    sandbox = face.open(limits=Limits(memory_bytes=256 * 1024 * 1024))
    execution = sandbox.run_code("block = bytearray(1 << 30)\nblock[::4096] = b'x' * len(block[::4096])")

    assert execution.error.kind == "out_of_memory" or execution.error.name == "MemoryError"
    assert sandbox.run_code("1 + 1").text == "2"


def test_a_user_exit_ends_the_cell_only(sandbox):
    """`sys.exit()` is an error of the cell, and the context lives on."""
    sandbox.run_code("x = 2")
    assert sandbox.run_code("import sys; sys.exit(3)").error.name == "SystemExit"
    assert sandbox.run_code("x").text == "2"


def test_a_fork_bomb_is_contained(face):
    """`processes` bounds what a cell can start; the sandbox answers afterwards."""
    sandbox = face.open(limits=Limits(processes=32, wall_seconds=5))
    execution = sandbox.run_code(
        "import os\nchildren = 0\ntry:\n    while True:\n        if os.fork() == 0:\n"
        "            import time\n            time.sleep(60)\n        children += 1\n"
        "except OSError as error:\n    print(children)"
    )

    assert execution.error is None
    assert int("".join(execution.logs.stdout)) < 32
    assert sandbox.is_running()
