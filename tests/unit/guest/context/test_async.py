"""Top-level await and tasks that go on between cells."""

from __future__ import annotations

import asyncio
import os
import socket
import time

import pytest
from guest_driver import process_status

from fumehood_guest.context.event_loop import BackgroundLoop


def test_top_level_await(context):
    """await works at the top of a cell and gives a result."""
    assert (
        context.run(
            "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7\nawait f()"
        ).text
        == "7"
    )
    assert (
        context.run(
            "async with asyncio.timeout(5) if hasattr(asyncio, 'timeout') else asyncio.Lock(): x = 1\nx"
        ).text
        == "1"
    )
    assert context.run("await asyncio.sleep(0); 1/0").error[0] == "ZeroDivisionError"


def test_tasks_go_on_between_cells(context):
    """A task made in a cell runs while the context is idle; its output names that cell."""
    first = context.run(
        "import asyncio\nasync def tick():\n    await asyncio.sleep(0.05)\n"
        "    print('tick')\ntask = asyncio.create_task(tick())"
    )
    assert first.error is None
    first_id = first.reply["id"]
    header, payload = context.next_message()
    assert (header["id"], payload) == (first_id, b"tick\n")
    assert context.run("task.done()").text == "True"


def test_the_output_of_a_task_names_its_cell(context):
    """Output during a later cell still carries the id of the cell that made the task."""
    first = context.run(
        "import asyncio\nasync def tick():\n    await asyncio.sleep(0.05)\n"
        "    print('tick')\ntask = asyncio.create_task(tick())"
    )
    later = context.run("await task\nprint('mine')")
    assert later.stdout == "mine\n"
    assert [(header["id"], payload) for header, payload in context.background] == [
        (first.reply["id"], b"tick\n")
    ]


def test_a_server_answers_between_cells(context):
    """A server of asyncio serves clients while no cell runs."""
    context.run(
        "import asyncio\n"
        "async def serve(reader, writer):\n    writer.write(await reader.readline()); writer.close()\n"
        "server = await asyncio.start_unix_server(serve, '/tmp/fumehood_echo.sock')"
    )

    with socket.socket(socket.AF_UNIX) as client:
        client.connect("/tmp/fumehood_echo.sock")
        client.sendall(b"hello\n")
        assert client.recv(100) == b"hello\n"

    context.run("server.close()")


def test_calls_from_threads_wake_the_loop(context):
    """call_soon_threadsafe works while the context is idle."""
    context.run(
        "import asyncio, threading\nloop = asyncio.get_running_loop()\n"
        "def work():\n    loop.call_soon_threadsafe(print, 'woken')\n"
        "threading.Timer(0.05, work).start()"
    )
    assert context.next_message()[1] == b"woken\n"


def test_asyncio_run_works_in_a_cell(context):
    """Unlike in Jupyter, a whole program with asyncio.run runs, and a loop of one's own too."""
    outcome = context.run(
        "import asyncio\nasync def f(): return 5\n"
        "a = asyncio.run(f())\nloop = asyncio.new_event_loop()\n"
        "b = loop.run_until_complete(f()); loop.close()\n"
        "task = asyncio.ensure_future(f())\n[a, b]"
    )
    assert outcome.text == "[5, 5]"
    assert context.run("await task").text == "5"
    assert context.run("asyncio.get_event_loop().run_until_complete(f())").text == "5"


def test_a_running_loop_still_refuses_asyncio_run(context):
    """Inside of a coroutine asyncio.run is refused as ever."""
    outcome = context.run(
        "import asyncio\nasync def f(): pass\nasync def g():\n    c = f()\n"
        "    try: asyncio.run(c)\n    finally: c.close()\nawait g()"
    )
    assert outcome.error[0] == "RuntimeError"


def test_a_failing_task_is_reported_and_harmless(context):
    """An exception in a background task is written to stderr; SystemExit in one does not end the context."""
    context.run(
        "import asyncio, gc\nasync def bad(): raise ValueError('in task')\nt = asyncio.create_task(bad())"
    )
    outcome = context.run("await asyncio.sleep(0.01)\ndel t\ngc.collect();")
    assert "ValueError: in task" in outcome.stderr + "".join(
        payload.decode() for _, payload in context.background
    )
    context.run("async def leave(): raise SystemExit(3)\nt = asyncio.create_task(leave())")
    assert context.run("1").text == "1"


def test_an_interrupt_cancels_the_cell_alone(context):
    """Other tasks survive the interrupt of a cell that awaits, unless it meets one of them at work."""
    context.run(
        "import asyncio\nticks = []\nasync def tick():\n    while True:\n"
        "        ticks.append(1)\n        await asyncio.sleep(0.2)\n"
        "task = asyncio.create_task(tick())"
    )

    def on_message(header, payload):
        if payload == b"go\n":
            context.interrupt()

    outcome = context.run("print('go')\nawait asyncio.sleep(60)", on_message=on_message)
    assert outcome.error[0] == "KeyboardInterrupt"
    one_more = "n = len(ticks)\nwhile len(ticks) == n and not task.done():\n    await asyncio.sleep(0.01)\n"
    assert context.run(f"{one_more}len(ticks) > n, task.done()").text == "(True, False)"
    context.run("task.cancel()")


def test_a_stopped_loop_goes_on(context):
    """A task that stops the loop between cells stops neither the context nor the other tasks."""
    context.run(
        "import asyncio\nloop = asyncio.get_running_loop()\n"
        "loop.call_later(0.02, loop.stop)\nloop.call_later(0.04, print, 'later')"
    )
    assert context.next_message()[1] == b"later\n"


def test_a_closed_loop_is_replaced(context):
    """A cell that closes the loop does not end asynchronous cells for good."""
    context.run("import asyncio\nasyncio.get_running_loop().close()")
    assert context.run("await asyncio.sleep(0, 5)").text == "5"


def test_a_broken_loop_does_not_spin(context):
    """A cell that breaks the loop for good leaves a context that rests, and runs the next cell."""
    context.run(
        "import asyncio\nloop = asyncio.get_running_loop()\nloop._run_once = None\nloop.call_later(9, print)"
    )
    assert context.run("1").text == "1"
    wait_until_resting(context.pid)
    assert context.run("await asyncio.sleep(0, 2)").text == "2"


def test_an_idle_context_does_not_wake_up(context):
    """Without pending tasks an idle context sleeps: no voluntary switches while nothing happens."""
    context.run("import asyncio\nawait asyncio.sleep(0)")
    wait_until_resting(context.pid, 0.3)


def wait_until_resting(pid: int, seconds: float = 0.1) -> None:
    """Waits until a process does nothing for a while."""
    deadline = time.monotonic() + 20

    while not is_resting(pid, seconds):
        assert time.monotonic() < deadline


def is_resting(pid: int, seconds: float) -> bool:
    """Whether a process neither runs nor wakes up during some time."""
    before = activity(pid)
    deadline = time.monotonic() + seconds

    while time.monotonic() < deadline:
        if activity(pid) != before:
            return False

    return True


def activity(pid: int) -> tuple[str, str]:
    status = process_status(pid)
    return status["voluntary_ctxt_switches"], status["nonvoluntary_ctxt_switches"]


def test_a_loop_that_has_lost_its_poller_is_given_up_at_once():
    """Code that closes descriptors may close the loop's own: that is told once, not again and again."""
    near, far = socket.socketpair()
    background = BackgroundLoop(near.fileno())
    background.lend()
    loop = asyncio.get_running_loop()
    background.take_back()

    with near, far, open(os.devnull) as other:
        os.dup2(other.fileno(), background.fds()[0])

        with pytest.raises(OSError, match="Invalid argument"):
            background.wait()

        far.send(b"a frame")
        background.wait()
        background.lend()
        assert background.run(asyncio.sleep(0, "a new loop")) == "a new loop"
        background.take_back()
        background.close()
        loop.close()
