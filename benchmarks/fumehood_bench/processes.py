"""What processes cost, read from /proc: CPU time of whole trees and proportional memory.

Reads only, from the outside, and asks nobody for pids: the sandboxes of a measuring process are its
descendants.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third on (proc_pid_stat(5)); None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None

    return text[text.rindex(")") + 2 :].split()


def descendants(root: int | None = None) -> set[int]:
    """Every living process below `root` (this process by default)."""
    children: dict[int, list[int]] = {}

    for entry in os.listdir("/proc"):
        fields = _stat(int(entry)) if entry.isdigit() else None

        if fields and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(entry))

    found: set[int] = set()
    waiting = [os.getpid() if root is None else root]

    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting.extend(below)

    return found


def tree_cpu_seconds() -> float:
    """CPU time of this process, of all that live below it, and of all the dead these have waited for."""
    ticks = 0

    for pid in descendants() | {os.getpid()}:
        fields = _stat(pid)

        if fields:
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime

    return ticks / _TICKS_PER_SECOND


def memory_bytes(pid: int) -> tuple[int, int]:
    """Proportional and private memory of a process (PSS and USS of /proc/PID/smaps_rollup)."""
    sizes = {
        name: int(kilobytes) * 1024
        for name, kilobytes in re.findall(
            r"^(\w+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M
        )
    }
    return sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"]


def reset_peak() -> None:
    """Let the peak count from here (proc_pid_clear_refs(5), value 5)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_resident_bytes() -> int:
    """The most memory this process has held since the last reset."""
    return _own_status("VmHWM")


def resident_bytes() -> int:
    """The memory this process holds now."""
    return _own_status("VmRSS")


def _own_status(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert match is not None
    return int(match[1]) * 1024
