"""The engine's thread and the way into it."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
import traceback
from queue import SimpleQueue

import pytest

from fumehood import InvalidArgumentError, portal
from fumehood.portal import Turn, call, shared_portal


async def _thread_id() -> int:
    return threading.get_ident()


async def _fail() -> None:
    raise LookupError("mine")


def test_work_is_done_in_one_other_thread():
    """All callers share one engine, and it is not theirs."""
    first = call(_thread_id)
    assert first == call(_thread_id) != threading.get_ident()


def test_errors_come_back():
    """What the work raises is raised here."""
    with pytest.raises(LookupError, match="mine"):
        call(_fail)


def _lines_of(error):
    return [os.path.basename(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]


async def _refuse() -> None:
    raise InvalidArgumentError(field="x", value=1, allowed="2")


def test_errors_of_ours_point_at_their_caller():
    """What lies between the caller and the error is left out, but for the call itself and for the caller's own code."""
    with pytest.raises(InvalidArgumentError) as refused:
        call(_refuse)

    # The coroutine stands for code of a user: it is in this file.
    assert _lines_of(refused.value) == ["test_portal.py", "portal.py", "test_portal.py"]

    with pytest.raises(LookupError) as failed:
        call(_fail)

    assert _lines_of(failed.value).count("portal.py") > 2


def test_a_program_sees_its_own_line(tmp_path):
    """The frames end at the call; in the development mode of Python all of them are shown."""
    program = tmp_path / "program.py"
    program.write_text("import fumehood\nfumehood.run_code('1', url='http://127.0.0.1:9')\n")

    def shown(*options):
        done = subprocess.run(
            [sys.executable, *options, str(program)], capture_output=True, text=True, check=False
        )
        return [line for line in done.stderr.splitlines() if line.startswith("  File ")]

    names = [line.split('"')[1].rpartition("/")[2] for line in shown()]
    assert names == ["program.py"]
    assert len(shown("-X", "dev")) > 8


def test_context_variables_go_along():
    """The work sees the caller's context."""
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    async def read() -> int:
        return variable.get()

    variable.set(7)
    assert call(read) == 7


def test_callbacks_run_in_the_callers_thread_and_may_call_again():
    """While the engine works, the caller's thread is the user's."""
    turn = Turn()

    def callback(value: int) -> int:
        assert threading.get_ident() == mine
        return call(_double, value)

    async def work() -> int:
        return await turn.relay(callback)(21)

    mine = threading.get_ident()
    assert turn.call(work) == 42


async def _double(value: int) -> int:
    return value * 2


@pytest.mark.parametrize("error", [LookupError, StopIteration, StopAsyncIteration])
def test_errors_of_callbacks_reach_the_work(error):
    """A callback that raises does so where the work waits for it."""
    turn = Turn()

    def callback(value: int) -> None:
        raise error

    async def work() -> str:
        try:
            await turn.relay(callback)(1)
        except (LookupError, RuntimeError, StopAsyncIteration):
            return "heard"

        return "not heard"

    assert turn.call(work) == "heard"


def test_ctrl_c_cancels_the_work_and_waits_for_its_end():
    """The interrupt is raised only when the work has been put in order."""
    order: list[str] = []
    running = threading.Event()

    async def work() -> None:
        running.set()

        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            order.append("work ended")

    def press() -> None:
        running.wait()
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()

    with pytest.raises(KeyboardInterrupt):
        call(work)

    presser.join()
    assert order == ["work ended"]


def test_ctrl_c_in_a_callback_does_not_stop_the_engine():
    """An interrupt belongs to the caller's thread."""
    turn = Turn()

    def callback(value: int) -> None:
        raise KeyboardInterrupt

    async def work() -> None:
        await turn.relay(callback)(1)

    with pytest.raises(KeyboardInterrupt):
        turn.call(work)

    assert call(_double, 4) == 8


class _InterruptedAtTheEnd:
    """An inbox in which Ctrl-C hits just after the last item was taken, and before anybody has seen it."""

    def __init__(self) -> None:
        self._items: SimpleQueue[object] = SimpleQueue()
        self._interrupts = [KeyboardInterrupt()]
        self.put = self._items.put

    def get(self) -> object:
        item = self._items.get()

        if self._interrupts:
            raise self._interrupts.pop()

        return item


def test_ctrl_c_at_the_very_end_of_a_call_is_raised_and_the_turn_goes_on():
    """The mark of the end is lost with the interrupt; nobody waits for it a second time."""
    turn = Turn()
    turn._inbox = _InterruptedAtTheEnd()

    with pytest.raises(KeyboardInterrupt):
        turn.call(_thread_id)

    assert turn.call(_thread_id) != threading.get_ident()


def test_the_engine_cannot_wait_for_itself():
    """A call that would never end is refused."""

    async def work() -> None:
        call(_double, 1)

    with pytest.raises(RuntimeError, match="cannot wait for itself"):
        call(work)


def test_an_iterator_is_closed_when_it_is_left():
    """Leaving early is told to the source."""
    closed: list[bool] = []

    async def numbers():
        try:
            for number in range(10):
                yield number
        finally:
            closed.append(True)

    for number in Turn().iterate(numbers()):
        if number == 3:
            break

    assert closed == [True]
    assert list(Turn().iterate(numbers())) == list(range(10))


def test_several_threads_may_wait_at_once():
    """One caller's wait is not another's."""
    meeting = asyncio.Event()

    async def wait() -> str:
        await meeting.wait()
        return "met"

    async def meet() -> None:
        meeting.set()

    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(call(wait))) for _ in range(5)]

    for thread in threads:
        thread.start()

    call(meet)

    for thread in threads:
        thread.join()

    assert answers == ["met"] * 5


def test_a_forked_child_has_an_engine_of_its_own():
    """The parent's loop is not touched by a child, which starts its own."""
    parents = shared_portal()
    pid = os.fork()

    if pid == 0:
        os._exit(0 if call(_double, 2) == 4 and shared_portal() is not parents else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert shared_portal() is parents
    assert call(_double, 3) == 6


def test_closing_runs_the_closers_and_ends_what_runs():
    """The last to register is the first to close, one that fails stops nobody, and no task is left behind."""
    own = portal.Portal()
    order: list[str] = []

    async def close_first() -> None:
        order.append("first")

    async def close_second() -> None:
        order.append("second")
        raise LookupError

    async def stay() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.append("task ended")

    own.loop.set_exception_handler(lambda loop, context: None)
    own.on_close(close_first)
    own.on_close(close_second)
    asyncio.run_coroutine_threadsafe(stay(), own.loop)
    own.close()
    own.close()

    assert order == ["second", "first", "task ended"]
    assert own.loop.is_closed()


def test_a_process_that_used_the_engine_ends_quietly():
    """Nothing is printed and nothing hangs at exit, warnings on."""
    code = "from fumehood.portal import call\nasync def f(): return 1\nprint(call(f))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_an_iterator_that_nobody_ends_is_no_trouble_at_exit():
    """A stream that was looked into and left, as at the end of a script."""
    code = (
        "from fumehood.portal import Turn\nasync def f():\n    yield 1\n    yield 2\n"
        "items = Turn().iterate(f())\nprint(next(items))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_thread_that_outlives_the_main_one_hears_why_it_fails():
    """Python's own message names neither the thread nor what to do."""
    code = (
        "import threading\nfrom fumehood.portal import call\n"
        "async def f():\n    raise RuntimeError('cannot schedule new futures after shutdown')\n"
        "def later():\n    threading.main_thread().join()\n    call(f)\n"
        "threading.Thread(target=later).start()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert "let it wait for this thread, with join()" in done.stderr
