"""R01 to R10: how much of the machine's resources a process gets.

A part of the program `attack`, which runs in a sandbox and outside. Each probe stops at a harmless amount, and releases
it: outside it succeeds, and does no harm.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from typing import Any

from .calls import apart, descriptor, outcome

MIB = 1 << 20


def take_memory(mebibytes: int) -> str:
    """Allocate this much memory and touch it: "ok", or how the process ended."""

    def take() -> str:
        kept = [bytearray(MIB) for _ in range(mebibytes)]
        return "ok" if len(kept) == mebibytes else "less"

    return str(apart(take))


def start_processes(most: int) -> dict[str, Any]:
    """Start this many processes that do nothing; end them all again."""
    pids: list[int] = []
    answer = "ok"

    while len(pids) < most:
        try:
            pid = os.fork()
        except OSError as error:
            answer = errno.errorcode.get(error.errno or 0, str(error.errno))
            break

        if pid == 0:
            signal.pause()
            os._exit(0)

        pids.append(pid)

    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    for pid in pids:
        os.waitpid(pid, 0)

    return {"count": len(pids), "answer": answer}


def raise_limits() -> dict[str, str]:
    """Raise each hard limit by one: "raised", "refused", or "unlimited" where there is none."""
    said = {}

    for name, number in {
        "NOFILE": 7,
        "NPROC": 6,
        "CORE": 4,
        "SIGPENDING": 11,
        "NICE": 13,
        "RTPRIO": 14,
    }.items():
        hard = resource.getrlimit(number)[1]

        if hard == resource.RLIM_INFINITY:
            said[name] = "unlimited"
            continue

        said[name] = str(apart(_raise, number, hard + 1))

    return said


def _raise(number: int, hard: int) -> str:
    try:
        resource.setrlimit(number, (resource.getrlimit(number)[0], hard))
    except (OSError, ValueError):
        return "refused"

    return "raised"


def take_precedence() -> dict[str, str]:
    """Request a higher priority, and real-time scheduling; both in a child that then ends."""
    return {
        "nice": apart(outcome, os.nice, -1),
        "real time": apart(outcome, os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
    }


def core_limit() -> int:
    """Return the hard limit of RLIMIT_CORE, -1 if unlimited; with 1 byte the kernel calls no core handler."""
    return resource.getrlimit(resource.RLIMIT_CORE)[1]


def kernel_objects(most: int) -> dict[str, int]:
    """Create up to `most` inotify instances and as many terminals; return the number of each that was created."""
    return {
        "inotify": _count(most, lambda: [descriptor("inotify_init")]),
        "terminals": _count(most, lambda: list(os.openpty())),
    }


def _count(most: int, make: Any) -> int:
    held: list[int] = []
    count = 0

    while count < most:
        try:
            made = make()
        except OSError:
            break

        if min(made) < 0:
            break

        held += made
        count += 1

    for fd in held:
        os.close(fd)

    return count


def fill(folder: str, mebibytes: int) -> dict[str, Any]:
    """Write this many bytes into a file of a folder; remove it again."""
    path = f"{folder}/fumehood-fill"
    written = 0
    answer = "ok"

    with open(path, "wb", buffering=0) as file:
        try:
            while written < mebibytes * MIB:
                written += file.write(bytes(1 << 16)) or 0
        except OSError as error:
            answer = errno.errorcode.get(error.errno or 0, str(error.errno))

    os.unlink(path)
    return {"written": written, "answer": answer}


def fill_with_files(folder: str, most: int) -> dict[str, Any]:
    """Create up to `most` empty files in a new folder and remove them; return their number and the error, or "ok"."""
    place = f"{folder}/fumehood-files"
    os.mkdir(place)
    count = 0
    answer = "ok"

    while count < most:
        try:
            os.close(os.open(f"{place}/{count}", os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            answer = errno.errorcode.get(error.errno or 0, str(error.errno))
            break

        count += 1

    for number in range(count):
        os.unlink(f"{place}/{number}")

    os.rmdir(place)
    return {"count": count, "answer": answer}
