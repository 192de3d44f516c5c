"""T06, H04: a guest that floods a reader of the engine holds up itself, and neither the loop nor its neighbours.

Each flood goes through another reader. While it goes on, no callback of the loop may use much processor time at once,
and a neighbour's cells take at most five times as long as beside an honest busy loop of the same sandbox.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.attacks.test_wire import SPEAKER, run_twice
from tests.loop_stalls import loop_stalls
from tests.waiting import until

from fumehood import Limits, ProtocolViolationError, SandboxError

# One frame at the bounds of the wire costs some tens of milliseconds; a stall that is none of our making, such as a
# collection of garbage, some more. Without bounds on a turn it is seconds. Where two processors share a core that both
# use, each takes twice its time for the same work: the bound is that, or what parsing so many frames takes just then.
LONGEST_STALL_SECONDS = 0.25
LONGEST_STALL_FRAMES = 50
BOUNDARY_FRAME = b'{"a":[' + b"{}," * 49_000 + b"0]}"
CELLS = 40
ROUNDS = 3
BEGUN = "open('/tmp/begun', 'w').close()\n"
BUSY = f"{BEGUN}while True: pass"
# Pieces of a megabyte, so that the sender costs nothing beside what it sends.
_SEND = f"piece = one * ((1 << 20) // len(one) + 1)\n{BEGUN}while True: raw(piece)"
_SHOWN = (
    "one = frame({'type': 'update_display_data', 'display_id': 'd', 'id': current(), 'at': 1.0, 'parts': %s, "
    "'metadata': %s}, %s)\n"
)
FRAMES = {
    "the shortest text": f"one = stream(b'x')\n{_SEND}",
    "text and clearing": (
        f"one = stream(b'x') + frame({{'type': 'clear_output', 'id': current(), 'at': 1.0, 'wait': True}})\n{_SEND}"
    ),
    "text behind the pipes": f"one = stream(b'x', unread_stdout=1_000_000, unread_stderr=1_000_000)\n{_SEND}",
    "large texts": f"one = stream('\\u20ac'.encode() * 300_000)\n{_SEND}",
    "updates of many parts": (_SHOWN % ("[[f'a/x{n}', 1] for n in range(64)]", "{}", "b'x' * 64") + _SEND),
    "headers of many values": _SHOWN % ("[]", "{'a': [{}] * 49_000}", "b''") + _SEND,
    "comm messages of many values": (
        f"one = comm(b'{{\"data\":{{\"a\":[' + b'{{}},' * 49_000 + b'0]}},\"metadata\":{{}}}}')\n{_SEND}"
    ),
    "errors": (
        "one = frame({'type': 'error', 'id': current(), 'at': 1.0, 'ename': 'E', 'evalue': 'x' * 60_000}, "
        f"json.dumps(['x' * 48] * 5_000).encode())\n{_SEND}"
    ),
}
FORKED = "import os\nfor _ in range(%d):\n    if not os.fork():\n        while True: %s\n" + BUSY.replace(
    "\n", "\n"
)
PROGRAMS = {
    "prints": f"{BEGUN}while True: print('x')",
    "pipes": FORKED % (4, "os.write(1, b'x' * 65536); os.write(2, b'x' * 65536)"),
    "pipes, byte by byte": FORKED % (4, "os.write(1, b'x'); os.write(2, b'x')"),
    "refused calls": FORKED % (4, "libc.mount(0, 0, 0, 0, 0)"),
}


def cell_seconds(neighbour: Any) -> list[float]:
    """How long a neighbour's cells take, sorted."""
    taken = []

    for _ in range(CELLS):
        began = time.perf_counter()
        neighbour.sandbox.run_code("1")
        taken.append(time.perf_counter() - began)

    return sorted(taken)


def longest_stall_seconds() -> float:
    """How long the loop may be held up, at this moment of this machine."""
    taken = []

    for _ in range(3):
        began = time.thread_time()
        json.loads(BOUNDARY_FRAME)
        taken.append(time.thread_time() - began)

    return max(LONGEST_STALL_SECONDS, LONGEST_STALL_FRAMES * min(taken))


def p95(seconds: list[float]) -> float:
    return seconds[int(len(seconds) * 0.95)]


@contextmanager
def running(flooder: Any, code: str) -> Iterator[None]:
    """Runs code that has no end, and kills its sandbox afterwards."""

    def run() -> None:
        try:
            flooder.sandbox.run_code(code, timeout=60)
        except SandboxError:
            return  # it was killed, as it was to be

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: flooder.sandbox.files.exists("/tmp/begun"), "the flood")
        yield
        assert thread.is_alive(), "the flood has ended"
    finally:
        flooder.sandbox.kill()
        thread.join()


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Programs of this machine that compute."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def hold(make: Callable[..., Any], flood: Callable[[], Any], *, programs: int = 0) -> None:
    """Asserts that a flood holds up neither the loop nor a neighbour; a round may be spoilt by other work.

    Each round has a control of its own, in the same moments: a machine that gets busier slows both.

    Args:
        make: Makes a sandbox.
        flood: Enters the flood.
        programs: How many programs of this machine take part in the flood. As many compute beside the control.
    """
    neighbour = make()
    neighbour.run("1")
    seen = []

    for _ in range(ROUNDS):
        busy = make()
        busy.run("1")

        with busy_programs(programs), running(busy, BUSY):
            control = p95(cell_seconds(neighbour))

        with flood(), loop_stalls() as stalls:
            taken = p95(cell_seconds(neighbour))
            allowed = longest_stall_seconds()

        seen.append((taken / control, stalls.longest_seconds, allowed))

        if taken <= 5 * control and stalls.longest_seconds <= allowed:
            return

    pytest.fail(f"times as slow as beside a busy loop, longest stall of the loop, and what it may be: {seen}")


def speaking(make: Callable[..., Any], code: str) -> Any:
    flooder = make(limits=Limits(grace_seconds=0.1))
    flooder.run(SPEAKER)
    flooder.run("import ctypes\nlibc = ctypes.CDLL(None)")
    return running(flooder, code)


@pytest.mark.parametrize("name", FRAMES)
def test_t06_a_flood_of_frames_delays_no_other_sandbox(name, make):
    """Written raw to the channel, as fast as the host takes them."""
    hold(make, lambda: speaking(make, FRAMES[name]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_t06_a_flood_by_a_program_delays_no_other_sandbox(name, make):
    """By print, by the pipes behind the descriptors 1 and 2, and by calls that the host is told of."""
    hold(make, lambda: speaking(make, PROGRAMS[name]))


@contextmanager
def commands(flooder: Any, command: str) -> Iterator[None]:
    for _ in range(20):
        flooder.sandbox.commands.run(command, background=True)

    yield
    flooder.sandbox.kill()


@contextmanager
def watched(flooder: Any) -> Iterator[None]:
    """Many changes of files in a directory that somebody watches."""
    with flooder.sandbox.files.watch("/tmp") as changes:
        flooder.sandbox.commands.run(
            "cd /tmp; while :; do for n in 1 2 3 4 5 6 7 8 9; do : > file-with-a-name-$n; done; rm file-*; done",
            background=True,
        )
        assert next(changes)
        yield

    flooder.sandbox.kill()


@pytest.mark.parametrize("command", ["yes", "while :; do echo; done"])
def test_t06_a_flood_by_commands_delays_no_other_sandbox(command, make):
    """Twenty commands that write without an end."""
    hold(make, lambda: commands(make(), command))


def test_t06_a_flood_of_changed_files_delays_no_other_sandbox(make):
    """Init tells of each change of a watched directory."""
    hold(make, lambda: watched(make()))


def broken_rule(mine: Any, code: str) -> str:
    with pytest.raises(ProtocolViolationError) as caught:
        run_twice(mine, code)

    return f"{caught.value.rule}: {caught.value.detail}"


BEYOND = {
    "lines of a traceback": ("['x'] * 5_002", "payload: traceback has 5002 items, limit 5001"),
    "bytes of a traceback": ("['x' * 90] * 4_000", "payload: error: payload of 376000 bytes, limit 262144"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_h04_an_error_beyond_the_bounds_ends_the_sandbox(name, make):
    """The interpreter cuts its tracebacks; what is longer would keep the loop busy for several turns."""
    mine = make()
    mine.run(SPEAKER)
    lines, rule = BEYOND[name]
    code = (
        "raw(frame({'type': 'error', 'id': current(), 'at': 1.0, 'ename': 'E', 'evalue': ''}, "
        f"json.dumps({lines}).encode()))"
    )
    assert broken_rule(mine, code).startswith(rule)


MEANINGLESS = {
    "text without a character": ("raw(stream(b''))", "payload: stream"),
    "clearing what is clear": (
        "one = frame({'type': 'clear_output', 'id': current(), 'at': 1.0, 'wait': True})\nraw(one * 100_001)",
        "order: clear_output",
    ),
    "what was changed, again and again": (
        "one = frame({'type': 'changes', 'id': current(), 'at': 1.0}, b'[]')\nraw(one * 101)",
        "order: changes",
    ),
}


@pytest.mark.parametrize("name", MEANINGLESS)
def test_h04_messages_that_mean_nothing_end_the_sandbox(name, make):
    """No program sends them; the error names the rule."""
    mine = make()
    mine.run(SPEAKER)
    code, rule = MEANINGLESS[name]
    assert broken_rule(mine, code).startswith(rule)


# Runs in the process of the checkpoint itself, as soon as that is forked: writes to the socket that is new to it.
FLOODED_CHECKPOINT = """
import os, stat, threading
piece = b''.join(frame(one) for one in %s) * 20_000
def flood(fd):
    try:
        while True: os.write(fd, piece)
    except OSError: pass
def sockets():
    found = {}
    for fd in range(64):
        try: one = os.fstat(fd)
        except OSError: continue
        if stat.S_ISSOCK(one.st_mode): found[one.st_ino] = fd
    return found
before = sockets()
def begin():
    for number, fd in sockets().items():
        if number not in before: threading.Thread(target=flood, args=(fd,), daemon=True).start()
os.register_at_fork(after_in_child=begin)
"""
CHECKPOINTS = {
    "ends of nothing": ("[{'type': 'ended', 'number': 1, 'signal': 9}]", "does not live"),
    "kept, again and again": ("[{'type': 'kept', 'pid': 7, 'left_behind': []}]", "kept twice"),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_t06_a_flood_by_a_checkpoint_ends_its_sandbox(name, make):
    """Its channel has no message that may come twice without being asked for; a neighbour does not notice."""
    neighbour, mine = make(), make()
    neighbour.run("1")
    mine.run(SPEAKER)
    said, rule = CHECKPOINTS[name]
    mine.run(FLOODED_CHECKPOINT % said)

    def use() -> None:
        mine.sandbox.checkpoint()
        until(lambda: mine.sandbox.run_code("1") and None, "its end")

    with loop_stalls() as stalls, pytest.raises(ProtocolViolationError, match=rule):
        use()

    assert stalls.longest_seconds <= LONGEST_STALL_SECONDS
    assert neighbour.run("print(1)") == "1\n"


def test_h04_what_an_honest_program_does_often_ends_nothing(make):
    """The control: clearing without an end in sight, empty prints, and lines of nothing."""
    mine = make()
    code = (
        "from IPython.display import clear_output\nimport sys\n"
        "for n in range(2000):\n    clear_output(wait=True); print('', end=''); sys.stdout.write(''); print()"
    )
    assert mine.sandbox.run_code(code).error is None
    assert mine.run("print(1)") == "1\n"
