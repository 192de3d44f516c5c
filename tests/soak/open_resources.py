"""What the host process and the machine hold: what must be as before when the soak is over."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import re
import tempfile
from pathlib import Path

from tests.integration import census

MEMORY = "RSS (KiB)"


def count(loop: asyncio.AbstractEventLoop) -> dict[str, int]:
    """Counts everything, by name; of the memory what is in use, for what the allocator keeps in hand is given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    resident = re.search(r"VmRSS:\s+(\d+)", status)
    assert resident is not None
    return {
        MEMORY: int(resident[1]),
        **census.open_resources(loop),
        "zombies": sum(_is_zombie(pid) for pid in census.descendants_of(os.getpid())),
        "mounts": len(census.mounts()),
        "files": len(census.folders()) + len(os.listdir(tempfile.gettempdir())) + len(os.listdir("/dev/shm")),
    }


def _is_zombie(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False

    return text.rpartition(")")[2].split()[0] == "Z"


def is_as_before(now: int, before: int, slack: float = 0.05) -> bool:
    """Within five hundredths, if nothing else is said; of few things, all."""
    return abs(now - before) <= before * slack


def table(before: dict[str, int], now: dict[str, int], wrong: int, slack: dict[str, float]) -> str:
    """What there was and what there is."""
    rows = [("", "before", "after", "", "")]

    for name, was in before.items():
        change = f"{(now[name] - was) / was:+.1%}" if was else f"{now[name] - was:+d}"
        verdict = "as before" if is_as_before(now[name], was, slack.get(name, 0.05)) else "NOT AS BEFORE"
        rows.append((name, str(was), str(now[name]), change, verdict))

    rows.append(("wrong results", "0", str(wrong), "", "none" if wrong == 0 else "WRONG"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        f"{row[0].ljust(widths[0])}  "
        + "  ".join(cell.rjust(width) for cell, width in zip(row[1:4], widths[1:4], strict=True))
        + f"  {row[4]}"
        for row in rows
    )
