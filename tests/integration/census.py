"""What a host process has around it: its processes, cgroups, descriptors, threads, tasks, mounts and folders.

Used by the tests and by their children, to find what is to be killed and to see that nothing is left behind.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 30.0


def children_of(pid: int) -> list[int]:
    """Lists the children of a process, the oldest first."""
    return sorted(child for child, parent in _parents().items() if parent == pid)


def descendants_of(pid: int) -> list[int]:
    """Lists all that descend from a process."""
    return list(_below(pid, _children()))


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    for child in children.get(pid, ()):
        yield child
        yield from _below(child, children)


def _children() -> dict[int, list[int]]:
    """Lists the children of every process, the oldest first: one look for all."""
    found: dict[int, list[int]] = {}

    for child, parent in sorted(_parents().items()):
        found.setdefault(parent, []).append(child)

    return found


def parts_of(host: int) -> dict[str, list[int]]:
    """Lists the parts of a host by what they are, as pids of the host."""
    children = _children()
    launchers = [pid for pid in children.get(host, ()) if b"fumehood_jail.launcher" in _command_line(pid)]
    builders = [child for pid in launchers for child in children.get(pid, ())]
    jail_inits = [child for pid in builders for child in children.get(pid, ())]
    below = [(jail_init, child) for jail_init in jail_inits for child in children.get(jail_init, ())]
    zygotes = [child for jail_init, child in below if _pid_namespace(child) == _pid_namespace(jail_init)]
    return {
        "launcher": launchers,
        "builder": builders,
        "jail_init": jail_inits,
        "zygote": zygotes,
        "init": [child for _, child in below if child not in zygotes],
        "context": [child for zygote in zygotes for child in children.get(zygote, ())],
    }


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _parents() -> dict[int, int]:
    found = {}

    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue

        try:
            stat = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue

        found[int(name)] = int(stat.rpartition(")")[2].split()[1])

    return found


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def excess(count: Callable[[], dict[str, int]], expected: dict[str, int]) -> dict[str, Any]:
    """Counts again whenever the kernel has let others run, until there is no more than expected.

    Returns:
        What there is too much of, by name, as count and expected count, and what is open then.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS

    while True:
        counted = count()
        found = {name: (counted[name], most) for name, most in expected.items() if counted[name] > most}

        if not found:
            return found

        if time.monotonic() > deadline:
            return {**found, "open": _kinds_of_descriptors()}

        os.sched_yield()


def _kinds_of_descriptors() -> dict[str, int]:
    """Counts the descriptors of this process by what they lead to."""
    kinds: Counter[str] = Counter()

    for name in os.listdir("/proc/self/fd"):
        # The one of this look has been closed.
        with suppress(FileNotFoundError):
            kinds[re.sub(r"[0-9]+|[0-9a-z]{20,}", "N", os.readlink(f"/proc/self/fd/{name}"))] += 1

    return dict(kinds)


def wait_for_ends(pidfds: list[int], seconds: float) -> list[int]:
    """Waits until the processes behind pidfds have ended; returns the pidfds of those that have not."""
    deadline = time.monotonic() + seconds
    left = list(pidfds)

    while left and (remaining := deadline - time.monotonic()) > 0:
        poller = select.poll()

        for fd in left:
            poller.register(fd, select.POLLIN)

        ended = {fd for fd, _ in poller.poll(remaining * 1000)}
        left = [fd for fd in left if fd not in ended]

    return left


def cgroups_of(host: int) -> list[str]:
    """Lists the cgroups that a host has made, in every hierarchy."""
    return sorted(path for path in _all_cgroups() if f"-{host}-" in os.path.basename(path))


def _all_cgroups() -> Iterator[str]:
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        for name in names:
            if name.startswith("fumehood"):
                yield os.path.join(folder, name)


def mounts() -> list[str]:
    """Lists what is mounted for this process."""
    return sorted(Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines())


def folders() -> list[str]:
    """Lists what may lie in the folders of the host that programs write to."""
    found = [str(path) for path in Path(tempfile.gettempdir()).glob("*fumehood*")]

    for path in (Path("/run/fumehood"), Path("/dev/shm")):
        found += [str(entry) for entry in path.glob("*") if "fumehood" in str(entry)]

    return sorted(found)


def open_resources(loop: asyncio.AbstractEventLoop) -> dict[str, int]:
    """Counts what this process holds: descriptors, threads, children, and tasks of a loop."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,
        # The workers of asyncio's own executor are a bounded pool that grows as it likes.
        "threads": sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate()),
        "processes": len(descendants_of(os.getpid())),
        "tasks": len(asyncio.all_tasks(loop)),
        "cgroups": len(cgroups_of(os.getpid())),
    }
