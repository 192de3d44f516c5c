"""What the children of the clock tests do: host processes whose time of day jumps, and one that stands still.

Run by `launching.py`; returns plain values. The time of day is what Python tells: `time.time` and `datetime.now`.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from typing import Any

from fumehood import CommandTimeoutError, Sandbox, Template

_HOUR = 3600.0
# Without packages it is there sooner.
_PLAIN = Template(name="plain", preload=())
_real_time = time.time
_offset = 0.0


class _Shifted(datetime.datetime):
    """The class of times as modules of ours have imported it, with a clock that can be set."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime.fromtimestamp(_real_time() + _offset, tz)


def _take_hold_of_the_clock() -> None:
    time.time = lambda: _real_time() + _offset
    time.time_ns = lambda: int((_real_time() + _offset) * 1e9)

    for name, module in list(sys.modules.items()):
        if name.startswith("fumehood") and getattr(module, "datetime", None) is datetime.datetime:
            module.datetime = _Shifted  # type: ignore[attr-defined]


def time_of_day_jumps(*hours: float) -> list[dict[str, Any]]:
    """Sets the time of day in the middle of everything that has a time limit."""
    _take_hold_of_the_clock()

    with Sandbox(template=_PLAIN, timeout=600, idle_timeout=300) as sandbox:
        sandbox.run_code("x = 1")
        return [_one_jump(sandbox, to) for to in hours]


def _one_jump(sandbox: Sandbox, hours: float) -> dict[str, Any]:
    global _offset

    started = sandbox.get_info().started_at
    made = time.monotonic()
    short = Sandbox(template=_PLAIN, timeout=1.0)
    waits = sandbox.commands.run("sleep 60", background=True, timeout=300)
    _offset = hours * _HOUR
    begun = time.monotonic()
    stopped = sandbox.run_code("import time\ntime.sleep(60)", timeout=0.2)
    limit_seconds = time.monotonic() - begun

    try:
        sandbox.commands.run("sleep 60", timeout=0.2)
        command = "returned"
    except CommandTimeoutError:
        command = "timed out"

    sandbox.pause()
    sandbox.resume()
    lived_at_once = short.is_running() or time.monotonic() - made > 1.0

    while short.is_running():
        assert time.monotonic() - begun < 40, "it lives on"

    short.kill()
    ends_at = sandbox.get_info().ends_at
    assert ends_at is not None
    running = [command.pid for command in sandbox.commands.list()]
    waits.kill()
    return {
        "limit": stopped.error and stopped.error.kind,
        "limit in time": limit_seconds < 30,
        "command": command,
        "lived at once": lived_at_once,
        "kept": sandbox.run_code("x").text,
        "its command runs": waits.pid in running,
        "running": sandbox.is_running(),
        # By the clock that people read, set or not, it began when it began.
        "started": sandbox.get_info().started_at == started,
    }


def host_stands_still(seconds: float) -> dict[str, Any]:
    """Stops this process for a while as a suspended machine would, with an execution and timers under way."""
    stop_us = (
        f"import os, signal, time\nhost = os.getppid()\nos.kill(host, signal.SIGSTOP)\n"
        f"time.sleep({seconds})\nos.kill(host, signal.SIGCONT)"
    )

    with (
        Sandbox(template=_PLAIN, timeout=600, idle_timeout=300) as sandbox,
        Sandbox(template=_PLAIN, timeout=600) as other,
    ):
        other.run_code("y = 2")
        helper = subprocess.Popen([sys.executable, "-c", stop_us])
        execution = sandbox.run_code("import time\ntime.sleep(0.3)\n40 + 2", timeout=60)
        helper.wait()
        return {
            "text": execution.text,
            "wall": execution.usage.wall_seconds < seconds + 30,
            "other": other.run_code("y").text,
            "running": [sandbox.is_running(), other.is_running()],
        }
