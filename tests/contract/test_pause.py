"""Pausing: nothing in a sandbox runs, nothing is lost, no clock of it goes on; and what still answers meanwhile."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import pytest
from tests.waiting import at_some_pace, until

from fumehood import (
    InvalidArgumentError,
    PathNotFoundError,
    SandboxClosedError,
    SandboxNotFoundError,
    SandboxPausedError,
)

# A thread that never rests, and notes the longest time that it was kept from running; and a child.
_BUSY = """
import os, subprocess, threading, time
longest = 0
stops = []
def count():
    global longest
    last = time.monotonic()
    is_over = False
    while not is_over:
        # Before the look at the clock: what comes between the two is in the last round.
        is_over = bool(stops)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
thread = threading.Thread(target=count)
thread.start()
child = subprocess.Popen(["sleep", "1000"])
pids = (os.getpid(), child.pid)
"""
_PIDS = "stops.append(1); thread.join(); (os.getpid(), child.pid) == pids, child.poll()"


@pytest.fixture
def other(sync_face):
    """A sandbox that takes its time while another one is paused."""
    return sync_face.open()


def let_pass(other, seconds):
    """Let real time pass, in which the machine has something to do."""
    other.run_code(f"import time; time.sleep({seconds})")


def wait_for_state(sandbox, state):
    """Wait until a sandbox that nobody calls has come into a state."""
    until(lambda: sandbox.get_info().state == state, f"it is {state}")


def test_nothing_runs_while_it_is_paused(sandbox, other):
    """Threads and children use no CPU time; afterwards they are the same, and go on where they were."""
    sandbox.run_code(_BUSY)

    assert sandbox.pause() is True
    began = time.monotonic()
    before = sandbox.get_metrics()
    let_pass(other, 0.3)
    after = sandbox.get_metrics()
    paused_seconds = time.monotonic() - began
    assert sandbox.resume() is True

    assert after.cpu_seconds == before.cpu_seconds
    assert after.processes == before.processes > 3
    assert sandbox.run_code(_PIDS).text == "(True, None)"
    assert float(sandbox.run_code("longest").text) >= paused_seconds


def test_pausing_twice_is_pausing_once(sandbox):
    """The second call says that there was nothing to do."""
    assert sandbox.pause() is True
    assert sandbox.pause() is False
    assert sandbox.resume() is True
    assert sandbox.resume() is False
    assert sandbox.run_code("6 * 7").text == "42"


def test_a_paused_sandbox_is_reported(face, sandbox):
    """What needs the sandbox itself raises; what does not is answered, and wakes nobody."""
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.pause()

    for call in (
        lambda: sandbox.run_code("1"),
        lambda: list(sandbox.stream_code("1")),
        lambda: sandbox.interrupt(),
        lambda: sandbox.create_code_context(),
        lambda: sandbox.list_code_contexts(),
        lambda: sandbox.files.read("x"),
        lambda: sandbox.files.write("x", b"1"),
        lambda: sandbox.files.watch("."),
        lambda: sandbox.commands.run("true"),
        lambda: sandbox.commands.list(),
        lambda: handle.send_stdin("line\n"),
        lambda: sandbox.pty.create(),
    ):
        with pytest.raises(SandboxPausedError, match=sandbox.id) as caught:
            call()

        assert "auto_resume" in caught.value.hint

    info = sandbox.get_info()
    assert (info.state, info.ends_at) == ("paused", None)
    assert [one.state for one in face.list() if one.id == sandbox.id] == ["paused"]
    assert sandbox.is_running()
    assert sandbox.get_metrics().processes > 1
    sandbox.set_timeout(100)
    assert sandbox.get_info().state == "paused"

    sandbox.resume()
    handle.send_stdin("line\n")
    handle.close_stdin()
    assert handle.wait().stdout == "line\n"


def test_a_call_resumes_it_if_it_may(face):
    """With `auto_resume` the next call finds it as it was, whatever the call is."""
    sandbox = face.open(auto_resume=True)
    sandbox.run_code("x = 41")
    assert sandbox.get_info().auto_resume

    sandbox.pause()
    assert sandbox.run_code("x + 1").text == "42"
    assert sandbox.get_info().state == "running"

    sandbox.pause()

    with pytest.raises(PathNotFoundError):
        sandbox.files.read("not there")

    sandbox.pause()
    assert sandbox.kill() is True


def test_calls_at_the_same_time_resume_it_once(sync_face):
    """Whoever comes first resumes it, and nobody is turned away."""
    sandbox = sync_face.open(auto_resume=True)
    sandbox.pause()
    texts = []
    threads = [
        threading.Thread(target=lambda: texts.append(sandbox.run_code("6 * 7").text)) for _ in range(5)
    ]

    for thread in threads:
        thread.start()

    for thread in threads:
        thread.join()

    assert texts == ["42"] * 5


def test_running_code_keeps_its_time(sync_face, other):
    """The wall time of an execution does not pass during a pause, is not counted, and ends it afterwards."""
    sandbox = sync_face.open()
    started = threading.Event()

    def scene(seconds):
        got = []

        def run(code):
            got.append(sandbox.run_code(code, timeout=seconds, on_stdout=lambda _: started.set()))

        for code in ("print('on'); import time; time.sleep(0.1); 'done'", "print('on')\nwhile True: pass"):
            started.clear()
            thread = threading.Thread(target=run, args=(code,))
            thread.start()
            assert started.wait(30)
            sandbox.pause()
            let_pass(other, seconds + 0.2)
            sandbox.resume()
            thread.join()

        done, stopped = got
        assert (done.text, done.error) == ("'done'", None)
        assert done.usage.wall_seconds < seconds
        assert stopped.error.kind == "time_limit"
        assert not stopped.state_lost

    at_some_pace(scene, 0.6, 6)


def test_a_cancelled_caller_does_not_wait_for_a_pause(sandbox):
    """Leaving a stream while the sandbox is paused returns at once; the code is interrupted when it goes on."""
    for event in sandbox.stream_code("x = 42\nprint('on')\nwhile True: pass"):
        if getattr(event, "text", "") == "on\n":
            sandbox.pause()
            break

    assert sandbox.get_info().state == "paused"
    sandbox.resume()
    assert sandbox.run_code("x").text == "42"


def test_a_command_keeps_its_time(sandbox, other):
    """The `timeout` of a command stands still as well."""

    def scene(seconds):
        handle = sandbox.commands.run(
            "read line; echo got $line", background=True, stdin=True, timeout=seconds
        )
        sandbox.pause()
        let_pass(other, seconds + 0.2)
        sandbox.resume()
        handle.send_stdin("it\n")

        assert handle.wait().stdout == "got it\n"

    at_some_pace(scene, 0.6, 6)


def test_no_time_of_the_sandbox_passes(face, other):
    """A paused sandbox is neither idle nor over; resumed, it has the time that it had left."""

    def scene(seconds):
        sandbox = face.open(timeout=seconds, idle_timeout=seconds)
        sandbox.pause()
        let_pass(other, seconds + 0.2)
        assert sandbox.get_info().ends_at is None

        sandbox.resume()
        assert sandbox.get_info().ends_at > datetime.now(UTC)
        assert sandbox.run_code("6 * 7").text == "42"

        with pytest.raises(SandboxClosedError) as caught:
            sandbox.run_code("import time; time.sleep(20)")

        assert caught.value.reason == "expired"

    at_some_pace(scene, 0.6, 6)


def test_a_new_time_counts_from_when_it_is_resumed(face, other):
    """`set_timeout` of a paused sandbox ends nothing while it is paused."""
    sandbox = face.open()
    sandbox.pause()
    sandbox.set_timeout(0.3)
    let_pass(other, 0.5)
    assert sandbox.get_info().state == "paused"
    sandbox.resume()

    with pytest.raises(SandboxClosedError) as caught:
        sandbox.run_code("import time; time.sleep(20)")

    assert caught.value.reason == "expired"


def test_its_time_is_over_and_it_is_paused(face):
    """With `on_timeout` it is not killed; resumed, it has all of its time once more."""

    def scene(seconds):
        sandbox = face.open(timeout=seconds, on_timeout="pause")
        sandbox.run_code("x = 42")
        wait_for_state(sandbox, "paused")
        assert sandbox.get_info().ends_at is None

        sandbox.resume()
        assert sandbox.get_info().ends_at > datetime.now(UTC)
        assert sandbox.run_code("x").text == "42"
        wait_for_state(sandbox, "paused")
        assert sandbox.kill() is True

    at_some_pace(scene, 0.5, 5)


def test_a_pause_of_files_only_begins_anew(face):
    """Files, environment, contexts and limits are kept; processes and variables are not, and no memory of them."""
    sandbox = face.open(envs={"WHO": "me"}, timeout=500)
    context = sandbox.create_code_context(language="bash")
    command = sandbox.commands.run("trap '' TERM; sleep 1000 & wait", background=True)
    sandbox.run_code("held = bytearray(b'x' * (32 << 20)); open('kept.txt', 'w').write('as it was')")
    sandbox.run_code(
        "import subprocess; subprocess.Popen(['setsid', 'sleep', '1000'], start_new_session=True)"
    )
    sandbox.run_code("variable=7", context=context)

    assert sandbox.pause(files_only=True) is True
    assert sandbox.pause(files_only=True) is False
    info = sandbox.get_info()
    assert (info.state, info.pause.files_only) == ("paused", True)
    assert sandbox.get_metrics().processes <= 2

    if info.pause.memory_before_bytes is not None:
        assert info.pause.memory_before_bytes < 32 << 20

    assert sandbox.resume() is True
    assert sandbox.get_info().pause is None
    assert sandbox.run_code("open('kept.txt').read(), 'held' in dir()").text == "('as it was', False)"
    assert sandbox.run_code("import os; os.environ['WHO']").text == "'me'"
    assert sandbox.run_code("echo [$variable]", context=context).logs.stdout == ["[]\n"]
    assert command.pid not in [process.pid for process in sandbox.commands.list()]


def test_code_that_runs_ends_with_a_pause_of_files_only(sync_face):
    """Its caller gets what it printed and why it ended; the next code waits for the resume, and runs afresh."""
    sandbox = sync_face.open()
    printed = threading.Event()
    ended = []
    running = threading.Thread(
        target=lambda: ended.append(
            sandbox.run_code(
                "x = 1\nprint('begun')\nimport time; time.sleep(600)", on_stdout=lambda _: printed.set()
            )
        )
    )
    running.start()
    assert printed.wait(30)
    sandbox.pause(files_only=True)
    sandbox.resume()
    running.join(30)

    (execution,) = ended
    assert (execution.error.kind, execution.state_lost) == ("context_died", True)
    assert execution.logs.stdout == ["begun\n"]
    assert sandbox.run_code("'x' in dir()").text == "False"


def test_checkpoints_end_with_a_pause_of_files_only(sandbox):
    """They are processes of the sandbox: none is listed that could not be gone back to."""
    sandbox.run_code("x = 1")
    sandbox.checkpoint()
    sandbox.pause(files_only=True)
    sandbox.resume()
    assert sandbox.list_checkpoints() == []
    sandbox.run_code("x = 2")
    kept = sandbox.checkpoint()
    sandbox.run_code("x = 3")
    sandbox.rollback(kept)
    assert sandbox.run_code("x").text == "2"


def test_a_transaction_that_a_pause_of_files_only_ends_has_changed_nothing(sync_face):
    """Its files are as before it began, though its checkpoint ended with it."""
    sandbox = sync_face.open()
    sandbox.files.write("kept.txt", "before")
    printed = threading.Event()
    ended = []
    code = "open('kept.txt', 'w').write('within')\nprint('begun')\nimport time; time.sleep(600)"
    running = threading.Thread(
        target=lambda: ended.append(
            sandbox.run_code(code, transactional=True, on_stdout=lambda _: printed.set())
        )
    )
    running.start()
    assert printed.wait(30)
    sandbox.pause(files_only=True)
    sandbox.resume()
    running.join(30)

    assert ended[0].transaction.outcome == "rolled_back"
    assert sandbox.files.read("kept.txt") == "before"


def test_what_a_pause_has_kept_can_be_dropped_at_its_end(sandbox):
    """A resume with `files_only` is the same as a pause with it."""
    sandbox.run_code("x = 1; open('kept.txt', 'w').write('as it was')")
    sandbox.pause()
    assert sandbox.resume(files_only=True) is True
    assert sandbox.resume(files_only=True) is False
    assert sandbox.run_code("'x' in dir(), open('kept.txt').read()").text == "(False, 'as it was')"


def test_forks_live_on_beside_a_parent_that_keeps_its_files_only(sandbox):
    """They lie nested in its namespaces, and are sandboxes of their own."""
    sandbox.run_code("x = 41")
    fork = sandbox.fork()
    sandbox.pause(files_only=True)
    assert fork.run_code("x + 1").text == "42"
    sandbox.resume()
    assert sandbox.run_code("'x' in dir()").text == "False"
    assert fork.run_code("x").text == "41"
    fork.kill()


def test_its_time_is_over_and_its_files_are_kept(face):
    """`on_timeout="pause_files"`."""
    sandbox = face.open(timeout=0.5, on_timeout="pause_files")
    wait_for_state(sandbox, "paused")
    assert sandbox.get_info().pause.files_only is True
    sandbox.kill()


def test_what_is_paused_can_be_killed(sandbox):
    """It ends at once, with everything in it."""
    sandbox.run_code(_BUSY)
    sandbox.pause()

    assert sandbox.kill() is True
    assert sandbox.is_running() is False

    for call in (sandbox.pause, sandbox.resume):
        with pytest.raises(SandboxClosedError):
            call()


def test_only_what_is_there_is_paused(face):
    """Bad arguments are named, unknown ids are unknown."""
    with pytest.raises(InvalidArgumentError, match="on_timeout"):
        face.open(on_timeout="sleep")

    with pytest.raises(SandboxNotFoundError):
        face.connect("never")


def test_memory_is_given_back_while_it_is_paused(sandbox):
    """Files that were read need no memory while nothing runs; how much came back is what the kernel counts."""
    sandbox.run_code("held = bytearray(b'x' * (8 << 20))")
    assert sandbox.get_info().pause is None
    sandbox.pause()
    told = sandbox.get_info().pause
    assert told.why

    if told.means:
        assert (
            told.memory_before_bytes - told.memory_after_bytes
            <= told.reclaimed_bytes
            <= told.memory_before_bytes
        )
        # What lies in no file stays.
        assert told.memory_after_bytes >= 8 << 20

    sandbox.resume()
    assert sandbox.get_info().pause is None
    assert sandbox.run_code("len(held), set(held) == {120}").text == "(8388608, True)"
