"""The launcher without namespaces: starts the zygote, and ends with it or with the host.

Runs as a process of its own (`python -I -S`), started by the host with one JSON plan on a descriptor, with the rights
of the host's user. It adopts every process that loses its parent: processes of a sandbox whose reaper was killed from
outside are reparented to it, and it kills them. At its end it removes the folder of the sandboxes. It never reads data
from a template or a guest.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import time
from typing import Any, Dict, List, NoReturn, Set

from fumehood_jail import landlock_launch, syscalls
from fumehood_jail.errors import JailError

EXIT_HOST_GONE = 3
EXIT_LAUNCH_FAILED = 4
_LOOK_MS = 500
# The next poll after adopted processes were killed, which may have forked meanwhile.
_NEXT_LOOK_MS = 1
# How long reapers may take to end their sandboxes before they are killed themselves.
_REAPERS_SECONDS = 3.0
_PAUSE_SECONDS = 0.005


def main(plan_fd: int) -> NoReturn:
    """Carries out the plan found on `plan_fd`; exits when no process that it started is left."""
    with open(plan_fd, "rb") as file:
        plan = json.load(file)

    report_fd = fcntl.fcntl(int(plan["report_fd"]), fcntl.F_DUPFD_CLOEXEC, 16)
    os.close(int(plan["report_fd"]))
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    zygote = os.fork()

    if zygote == 0:
        _be_zygote(plan, report_fd)

    os.close(report_fd)
    host = int(plan["host_pidfd"])
    _close_all_but(host)
    status = _watch(zygote, host)
    _end_all_sandboxes()
    _remove(plan["folder"])
    os._exit(status)


def _be_zygote(plan: Dict[str, Any], report_fd: int) -> NoReturn:
    try:
        landlock_launch.enter_zygote(plan)
    except JailError as error:
        _report(report_fd, error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the host must hear of it
        _report(report_fd, JailError("launch", 0, f"{type(error).__name__}: {error}"))

    os._exit(EXIT_LAUNCH_FAILED)


def _report(report_fd: int, error: JailError) -> None:
    fields = {"step": error.step, "errno": error.errno, "detail": error.detail, "hint": error.hint}
    os.write(report_fd, json.dumps(fields).encode())


def _watch(zygote: int, host: int) -> int:
    """Waits for the end of the zygote or of the host; meanwhile kills adopted processes, whose reaper is dead."""
    zygote_pidfd = os.pidfd_open(zygote)
    poller = select.poll()
    poller.register(zygote_pidfd, select.POLLIN)
    poller.register(host, select.POLLIN)

    rest_ms = _LOOK_MS

    while True:
        ready = {fd for fd, _ in poller.poll(rest_ms)}

        if zygote_pidfd in ready:
            _, status = os.waitpid(zygote, 0)
            return os.waitstatus_to_exitcode(status) & 0xFF

        if host in ready:
            signal.pidfd_send_signal(zygote_pidfd, signal.SIGKILL)
            os.waitpid(zygote, 0)
            return EXIT_HOST_GONE

        adopted = [pid for pid in _children() if pid != zygote]
        rest_ms = _NEXT_LOOK_MS if adopted else _LOOK_MS

        for pid in adopted:
            _kill_group(pid)
            _kill(pid)
            _reap(pid)


def _end_all_sandboxes() -> None:
    """Waits for the reapers to end their sandboxes, and kills the remaining processes after a time-out."""
    deadline = time.monotonic() + _REAPERS_SECONDS
    reapers: Set[int] = set(_children())

    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return

        if pid:
            reapers.discard(pid)
            continue

        for child in _children():
            if child not in reapers or time.monotonic() > deadline:
                _kill(child)

        time.sleep(_PAUSE_SECONDS)


def _children() -> List[int]:
    """Returns the children of this process: the kernel's own list where it keeps one, else by a scan of /proc."""
    own = os.getpid()
    try:
        with open(f"/proc/self/task/{own}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == own]


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _kill_group(pid: int) -> None:
    """Kills the process group of an adopted process, dead or alive: this also catches a process that keeps forking.

    A group is within a session, and each session of a sandbox began there, so the group holds no other process. Only a
    reaper that had not begun yet is still in our own group.
    """
    try:
        group = os.getpgid(pid)

        if group != os.getpgrp():
            os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _remove(folder: str) -> None:
    """Removes a folder tree with programs that handle any depth; no guest process is left that could plant a link."""
    for argv in (["chmod", "-R", "u+rwx", folder], ["rm", "-rf", folder]):
        subprocess.run(
            argv,
            env={"PATH": "/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


def _close_all_but(kept: int) -> None:
    """Closes the zygote's descriptors: its end is visible only once no other process has its socket open."""
    if kept > 3:
        syscalls.close_range(3, kept - 1)

    syscalls.close_range(kept + 1)
