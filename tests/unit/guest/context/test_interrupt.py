"""Interrupts: the cell ends, the state stays, the loop lives."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest
from guest_driver import process_status, wait_until_asleep
from tests.waiting import until


def interrupt_when_printed(context, *, asleep=False):
    def on_message(header, payload):
        if header["type"] == "stream" and payload == b"go\n":
            if asleep:
                wait_until_asleep(context.pid)

            context.interrupt()

    return on_message


SLEEPERS = (
    "import time; time.sleep(60)",
    "import subprocess; subprocess.run(['sleep', '60'])",
    "!sleep 60",
    "import threading; threading.Event().wait()",
    "import asyncio; await asyncio.sleep(60)",
    "import asyncio; asyncio.run(asyncio.sleep(60))",
    "import os; os.read(os.pipe()[0], 1)",
    "%%bash\nsleep 60",
)


@pytest.mark.parametrize("body", ["while True: pass", "while True: print(end='')", *SLEEPERS])
@pytest.mark.parametrize("asleep", [False, True])
def test_an_interrupt_ends_the_cell_and_keeps_the_state(context, body, asleep):
    """Whatever the cell waits for: KeyboardInterrupt, and the variables survive."""
    context.run("kept = 5")
    asleep = asleep and body in SLEEPERS
    code = (
        f"print('go')\n{body}\nprint('not reached')"
        if not body.startswith("%%")
        else f"{body}; echo not reached"
    )

    if body.startswith("%%"):
        context.send(code)
        wait_until_asleep(context.pid)
        context.interrupt()
        outcome = context.finish()
    else:
        outcome = context.run(code, on_message=interrupt_when_printed(context, asleep=asleep))
        assert outcome.stdout.startswith("go\n")
        assert "not reached" not in outcome.stdout
        assert outcome.error[0] == "KeyboardInterrupt"

    assert outcome.error is not None
    assert outcome.reply["status"] == "error"
    assert len(outcome.traceback.splitlines()) < 15
    assert context.run("kept").text == "5"


def test_user_code_may_catch_the_interrupt(context):
    """A cell may handle KeyboardInterrupt, and its own SIGINT handler lasts to the next cell."""
    code = "try:\n    print('go')\n    while True: pass\nexcept KeyboardInterrupt:\n    print('caught')"
    outcome = context.run(code, on_message=interrupt_when_printed(context))
    assert (outcome.error, outcome.stdout) == (None, "go\ncaught\n")
    context.run("import signal\nhits = []\nsignal.signal(signal.SIGINT, lambda *_: hits.append(1));")
    context.run("print('go')\nwhile not hits: pass", on_message=interrupt_when_printed(context))
    assert context.run("hits").text == "[1]"
    assert context.run("signal.getsignal(signal.SIGINT) is signal.default_int_handler").text == "False"


def test_the_default_handler_is_pythons(context):
    """asyncio.run and others ask for the default handler by identity."""
    assert (
        context.run("import signal\nsignal.getsignal(signal.SIGINT) is signal.default_int_handler").text
        == "True"
    )


def test_an_interrupt_while_idle_is_spent_on_nothing(context):
    """Interrupts between cells leave the next cell alone."""
    context.run("x = 1")

    for _ in range(20):
        context.interrupt()

    wait_until_asleep(context.pid)
    assert context.run("x").text == "1"


def test_an_interrupt_right_after_the_request_is_not_lost(context):
    """The signal may overtake the code: the cell is interrupted all the same."""
    for _ in range(20):
        context.send("import time\ntime.sleep(60)")
        context.interrupt()
        assert context.finish().error[0] == "KeyboardInterrupt"


def test_interrupts_at_any_moment_leave_whole_frames(context):
    """Interrupts at random moments of a cell that prints never break a frame or the loop."""
    chance = random.Random(5)

    for _ in range(60):
        context.send("for n in range(300): print(n)")
        timer = threading.Timer(chance.uniform(0, 0.01), context.interrupt)
        timer.start()
        outcome = context.finish()
        timer.join()
        assert outcome.error is None or outcome.error[0] == "KeyboardInterrupt"

    wait_until_asleep(context.pid)
    assert context.run("print('alive')").stdout == "alive\n"


def ring_until(flag, seconds):
    """Code that starts a timer whose handler raises each time; once there is a file, it stops the timer as well."""
    return (
        "import os, signal\n"
        "class Ring(Exception): pass\n"
        "def ring(*_):\n"
        f"    if os.path.exists({str(flag)!r}): signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "    raise Ring\n"
        "kept = 5\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        f"signal.setitimer(signal.ITIMER_REAL, {seconds}, {seconds})"
    )


def is_over(context):
    """Whether the timer is stopped; an alarm that was still to come ends this cell."""
    return context.run("signal.getitimer(signal.ITIMER_REAL)").text == "(0.0, 0.0)"


def test_alarms_at_any_moment_leave_whole_frames(context, tmp_path):
    """A handler that raises at a high rate, between cells too, breaks neither frames nor the loop."""
    context.run(ring_until(tmp_path / "flag", 0.0005))

    for _ in range(100):
        context.run("for n in range(50): print(n)")

    (tmp_path / "flag").touch()
    until(lambda: is_over(context))
    assert context.run("kept").text == "5"


def test_alarms_while_nothing_is_asked_leave_the_context_alive(context, tmp_path):
    """However long a handler goes on raising between two cells, the context waits, and the next cells run."""
    context.run(ring_until(tmp_path / "flag", 0.0005))

    def has_come_to_rest() -> bool:
        status = process_status(context.pid)
        is_unheard = int(status["SigBlk"], 16) >> (signal.SIGALRM - 1) & 1
        return status["State"][0] == "Z" or (status["State"][0] == "S" and bool(is_unheard))

    until(has_come_to_rest)
    (tmp_path / "flag").touch()
    assert context.run("kept").text == "5"
    assert is_over(context)
    assert context.run("[*signal.pthread_sigmask(signal.SIG_BLOCK, ())]").text == "[]"


def test_children_get_the_default_signals(context):
    """A child of a cell is started with nothing blocked and no signal ignored."""
    context.run("import subprocess")
    text = context.run(
        "print(subprocess.check_output('grep -E \"Sig(Blk|Ign)\" /proc/self/status', shell=True, text=True))"
    ).stdout
    # Of the first 31 signals; the C library has ideas of its own about those that follow.
    masks = [int(mask, 16) & 0x7FFFFFFF for mask in text.split()[1::2]]
    assert masks == [0, 0]


def test_two_interrupts(context):
    """A second interrupt during the handling of the first does no harm."""
    code = "print('go')\ntry:\n    while True: pass\nfinally:\n    print('go')\n    while True: pass"
    assert context.run(code, on_message=interrupt_when_printed(context)).error[0] == "KeyboardInterrupt"
    assert context.run("1").text == "1"


def test_sigterm_ends_a_context(bare_zygote):
    """Other signals have their default effect."""
    context = bare_zygote.start()
    wait_until_asleep(context.pid)
    os.kill(context.pid, signal.SIGTERM)
    assert context.close() == -signal.SIGTERM
