"""The launcher where there are no namespaces: starts the zygote, and ends with it or with the host.

Runs as a process of its own (`python -I -S`), started by the host with one JSON plan on a descriptor, with the rights
of the host's user. It adopts every process that loses its parent: a sandbox whose reaper was killed from outside loses
its processes to it, and it ends them. At its end it removes the folder of the sandboxes. It never reads what comes from
a template or a guest.
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
# How soon it looks again for those whom the ones just ended have made meanwhile.
_NEXT_LOOK_MS = 1
# How long reapers may take to end their sandboxes before they are ended themselves.
_REAPERS_SECONDS = 3.0
_PAUSE_SECONDS = 0.005


def main(plan_fd: int) -> NoReturn:
    """Carries out the plan found on `plan_fd`; ends when nothing is left of what it has started."""
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
    _end_everybody()
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
    """Waits for the end of the zygote or of the host; meanwhile ends whoever is adopted, because its reaper is dead."""
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


def _end_everybody() -> None:
    """Reapers end their sandboxes when the host or the zygote has gone; what is left after a while is ended here."""
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
    """What this process has to wait for: the kernel's own list where it keeps one, else a look at all processes."""
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
    """Kills the group of somebody adopted, dead or not: one that forks and ends all the time is found nowhere else.

    A group is within a session, and each session of a sandbox has begun there: nobody else is in it. Only a reaper
    that was not even begun is still in ours.
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
    """By programs that know folders of any depth; nobody is left who could exchange one for a link meanwhile."""
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
    """Closes what the zygote now holds: while the launcher had its socket open too, nobody would see it end."""
    if kept > 3:
        syscalls.close_range(3, kept - 1)

    syscalls.close_range(kept + 1)
