"""What the children of the tests of pauses do: each function is one host process that pauses sandboxes.

Run by `launching.py`, as whatever user; returns plain values to the test, or waits to be ended by it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import census

from fumehood import Sandbox

# A process that is always another one, and two that wake whatever is stopped.
_STORM = """
import os, signal
def storm():
    while True:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass
def wake():
    while True:
        for pid in range(2, 200):
            try: os.kill(pid, signal.SIGCONT)
            except OSError: pass
for work in (storm, wake, wake):
    if os.fork() == 0:
        os.setsid()
        work()
"""
_STOPPED = """
import os, subprocess
child = subprocess.Popen(["sleep", "1000"])
child.send_signal(19)
os.waitpid(child.pid, os.WUNTRACED)
"""
_STATE = "open(f'/proc/{child.pid}/stat').read().split()[2]"


def paused_storm() -> dict[str, Any]:
    """Pauses a sandbox in which processes do all they can to run; tells whether one did, and how it went on."""
    os.environ["FUMEHOOD_POOL_SIZE"] = "0"

    with Sandbox() as sandbox:
        sandbox.run_code("x = 42")
        sandbox.run_code(_STORM)
        layers = {layer.name: layer.state for layer in sandbox.get_info().isolation.layers}
        seen = {"freezer": layers["cgroup freezer"], "before": _moves()}
        sandbox.pause()
        seen["paused"] = len(_looks())
        sandbox.resume()
        seen["after"] = _moves()
        seen["kept"] = sandbox.run_code("x").text
        sandbox.pause()

    seen["killed"] = sandbox.is_running()
    return seen


def storm_that_ends() -> dict[str, Any]:
    """Keeps only the files of a sandbox in which processes do all they can to live on; tells whether one did."""
    os.environ["FUMEHOOD_POOL_SIZE"] = "0"

    with Sandbox() as sandbox:
        sandbox.run_code("open('kept.txt', 'w').write('as it was')")
        sandbox.run_code(_STORM)
        before = _moves()
        sandbox.pause(files_only=True)
        sandbox.resume()
        return {
            "before": before,
            "after": sandbox.get_metrics().processes,
            "kept": sandbox.files.read("kept.txt"),
        }


def storm_dropped_by_a_resume() -> dict[str, Any]:
    """Pauses such a sandbox with all that it holds, and drops that when it is resumed."""
    os.environ["FUMEHOOD_POOL_SIZE"] = "0"

    with Sandbox() as sandbox:
        sandbox.run_code("x = 42; open('kept.txt', 'w').write('as it was')")
        sandbox.run_code(_STORM)
        sandbox.pause()
        sandbox.resume(files_only=True)
        return {
            "after": sandbox.get_metrics().processes,
            "variable": sandbox.run_code("'x' in dir()").text,
            "kept": sandbox.files.read("kept.txt"),
        }


def stopped_before() -> list[str | None]:
    """Pauses and resumes a sandbox in which a process was stopped already; tells its state each time."""
    with Sandbox() as sandbox:
        sandbox.run_code(_STOPPED)
        states = [sandbox.run_code(_STATE).text]
        sandbox.pause()
        sandbox.resume()
        return [*states, sandbox.run_code(_STATE).text]


def host_with_paused_sandboxes() -> None:
    """Pauses what never rests, tells the test, and waits to be killed."""
    sandboxes = [Sandbox() for _ in range(2)]

    for sandbox in sandboxes:
        sandbox.run_code(_STORM)
        sandbox.pause()

    os.write(1, f"{os.getpid()}\n".encode())
    signal.pause()


def _moves() -> bool:
    """Whether something runs below this process: on a busy machine that takes more than a look or two to see."""
    end = time.monotonic() + 20
    first = _look()

    while time.monotonic() < end:
        if _look() != first:
            return True

    return False


def _looks() -> set[tuple[tuple[str, str], ...]]:
    """What can be seen of all processes below this one, and their CPU time, in a third of a second."""
    end = time.monotonic() + 0.3
    looks = set()

    while time.monotonic() < end:
        looks.add(_look())

    return looks


def _look() -> tuple[tuple[str, str], ...]:
    return tuple((str(pid), _times(pid)) for pid in sorted(census.descendants_of(os.getpid())))


def _times(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "gone"

    return " ".join((fields[0], fields[11], fields[12]))
