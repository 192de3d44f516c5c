"""The launcher: clones the jail init into its base jail, and makes the jail init die with the host.

Runs as a process of its own (`python -I -S`), started by the host with one JSON plan on a descriptor. It is the only
process that acts with the host user's rights: it writes the id maps, then waits. It never reads data from the template
or the guest. When the host ends for any reason, the launcher kills the jail init, and with it (PID 1 of its namespace)
every sandbox, paused ones too.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any, Dict, NoReturn, Optional

from fumehood_jail import cgroup_freezer, launch, namespaces, syscalls, users
from fumehood_jail.errors import JailError

EXIT_HOST_GONE = 3
EXIT_LAUNCH_FAILED = 4
_THAW_PAUSE_SECONDS = 0.01


def main(plan_fd: int) -> NoReturn:
    """Carries out the plan found on `plan_fd`; exits with the jail init's status."""
    with open(plan_fd, "rb") as file:
        plan = json.load(file)

    # Moved above the descriptor numbers that the jail init expects for its own.
    report_fd = fcntl.fcntl(int(plan["report_fd"]), fcntl.F_DUPFD_CLOEXEC, 16)
    os.close(int(plan["report_fd"]))
    plan["report_fd"] = report_fd
    try:
        pid = _clone_jail_init(plan)
    except JailError as error:
        _report(report_fd, error)
        os._exit(EXIT_LAUNCH_FAILED)
    except Exception as error:  # noqa: BLE001 - whatever it is, the host must hear of it
        _report(report_fd, JailError("launch", 0, f"{type(error).__name__}: {error}"))
        os._exit(EXIT_LAUNCH_FAILED)

    os.close(report_fd)
    _watch(pid, int(plan["host_pidfd"]), plan["freezer"])


def _clone_jail_init(plan: Dict[str, Any]) -> int:
    ids = users.IdPlan.from_dict(plan["ids"])
    if os.geteuid() == 0:
        # The kernel refuses this in a namespace that was made with setgroups denied, as by `unshare -r`.
        users.drop_supplementary_groups()

    gate = namespaces.Gate()
    try:
        pid = syscalls.clone(namespaces.JAIL_FLAGS)
    except OSError as error:
        raise JailError(
            "clone into new namespaces",
            error.errno or 0,
            str(error),
            "run 'fumehood doctor': it says which namespace this system refuses and how to allow it",
        ) from None

    if pid == 0:
        _become_jail_init(gate, plan)

    try:
        users.write_maps(pid, ids)
    except JailError:
        gate.close()
        raise

    gate.open()
    return pid


def _become_jail_init(gate: namespaces.Gate, plan: Dict[str, Any]) -> NoReturn:
    try:
        gate.wait()
    except EOFError:
        # The launcher has failed, and reports why: a report holds one error.
        os._exit(EXIT_LAUNCH_FAILED)

    try:
        launch.enter_base_jail(plan)
    except JailError as error:
        _report(int(plan["report_fd"]), error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the host must hear of it
        _report(int(plan["report_fd"]), JailError("launch", 0, f"{type(error).__name__}: {error}"))

    os._exit(EXIT_LAUNCH_FAILED)


def _report(report_fd: int, error: JailError) -> None:
    fields = {"step": error.step, "errno": error.errno, "detail": error.detail, "hint": error.hint}
    os.write(report_fd, json.dumps(fields).encode())


def _watch(pid: int, host_pidfd: int, freezer: Optional[Dict[str, str]]) -> NoReturn:
    jail_init_pidfd = os.pidfd_open(pid)
    _close_all_but(jail_init_pidfd, host_pidfd)
    poller = select.poll()
    poller.register(jail_init_pidfd, select.POLLIN)
    poller.register(host_pidfd, select.POLLIN)
    ready = {fd for fd, _ in poller.poll()}

    if jail_init_pidfd not in ready:
        signal.pidfd_send_signal(jail_init_pidfd, signal.SIGKILL)
        _wait_for_all(pid, freezer)
        os._exit(EXIT_HOST_GONE)

    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _wait_for_all(pid: int, freezer: Optional[Dict[str, str]]) -> None:
    """Waits for the jail init, the last to end in its namespace; thaws frozen processes so that they die."""
    if freezer is None:
        os.waitpid(pid, 0)
        return

    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        cgroup_freezer.thaw_family(freezer["parent"], freezer["family"])
        time.sleep(_THAW_PAUSE_SECONDS)


def _close_all_but(*kept: int) -> None:
    """Closes the jail init's descriptors: its end is visible only once no other process has its socket open."""
    first = 0

    for fd in sorted(kept):
        if fd > first:
            syscalls.close_range(first, fd - 1)

        first = fd + 1

    syscalls.close_range(first)


if __name__ == "__main__":
    main(int(sys.argv[1]))
