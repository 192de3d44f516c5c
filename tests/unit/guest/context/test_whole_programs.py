"""The descendants of a judged program: all are ended, at a cost that a program cannot multiply."""

from __future__ import annotations

import json
import subprocess
import sys

_HEAD = """
import json, os, signal
from fumehood_guest.context.whole_programs import Orphans

orphans = Orphans()
lists = []
real = os.listdir
os.listdir = lambda path: (lists.append(path), real(path))[1]
ready, begun = os.pipe()
"""
_TAIL = """
orphans.end()

try:
    left = os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    left = None

print(json.dumps([len(lists), left]))
"""
_MANY = """
for _ in range(100):
    if os.fork() == 0:
        os.write(begun, b"!")
        signal.pause()

for _ in range(100):
    os.read(ready, 1)
"""
_DEEP = """
if os.fork() == 0:
    for _ in range(40):
        os.write(begun, b"!")

        if os.fork() != 0:
            signal.pause()

    os.write(begun, b"!")
    signal.pause()

for _ in range(41):
    os.read(ready, 1)
"""
_WITHOUT_END = """
import atexit
from fumehood_guest.shared import process_usage

kill = process_usage.kill
made = []


def make():
    made.append(os.fork())

    if made[-1] == 0:
        signal.alarm(60)
        signal.pause()


def kill_and_make(pid):
    # As one that has forked since all processes were listed.
    make()
    kill(pid)


make()
process_usage.kill = kill_and_make
atexit.register(lambda: kill(made[-1]))
"""


def _ended(scene: str) -> tuple[int, object]:
    """Makes descendants of a process, ends them, and returns how often all processes were listed, and what is left."""
    done = subprocess.run(
        [sys.executable, "-c", _HEAD + scene + _TAIL], capture_output=True, text=True, timeout=120, check=True
    )
    count, left = json.loads(done.stdout)
    return count, left


def test_descendants_are_ended_with_few_lists_of_all_processes() -> None:
    """As many beside each other, or beneath each other, as a program makes."""
    assert _ended(_MANY) == (1, None)
    assert _ended(_DEEP) == (1, None)


def test_processes_that_are_made_without_end_do_not_hold_up_the_end() -> None:
    """Interrupts are held back meanwhile, so that it must come to an end whatever the program does."""
    count, left = _ended(_WITHOUT_END)
    assert count == 50
    # Its process is there, and has not ended.
    assert left == [0, 0]
