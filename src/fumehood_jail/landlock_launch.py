"""The launch without namespaces: the visible, ordered lists of steps for zygote, sandbox and guest code.

A reviewer reads here what `landlock-only` consists of. `enter_zygote` runs in the launcher's child and ends in an exec
of the template's interpreter, which is fenced from its first instruction. `enter_sandbox` runs in the process that
becomes a sandbox's reaper, `enter_init` in its init, `enter_guest` in each process before it becomes guest code. Each
step is named; a step that fails ends the launch with a `JailError` and no process runs partly restricted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
from typing import Any, Callable, Dict, List, NoReturn, Optional

from fumehood_jail import caps, landlock_fence, rlimits, seccomp, syscalls
from fumehood_jail.errors import JailError

# The descriptor of the zygote's socket to the host.
ZYGOTE_FD = 3
_ABOVE_PROMISED = 16
# Number of files that init may have open beyond those of its guests.
_OPEN_FILES_OF_INIT = 1024

# Devices that reveal nothing of the host and change nothing there.
_DEVICES = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]
# For init alone, which opens terminals for commands: the terminals of the host's user are in the same place.
_TERMINALS = ["/dev/ptmx", "/dev/pts"]
_OWN_TERMINAL = ["/dev/tty"]

# Files that programs read about the machine. Other processes are not among them, except for init, which counts its own.
_FACTS = [
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/random",
    "/proc/sys/vm/overcommit_memory",
    "/proc/uptime",
    "/proc/version",
    "/sys/devices/system/cpu",
]
_PROCESSES = ["/proc"]


def enter_zygote(plan: Dict[str, Any]) -> NoReturn:
    """Turns a fork of the launcher into the zygote: drops rights, fences, executes the template's interpreter.

    Before: a child of the launcher with the rights of the host's user. After: does not return; the interpreter has no
    capability, can gain none, reads the system and its template, writes beneath one folder, reaches no network, and
    dies with the launcher.
    """
    _step("become the guests' user", _become, plan["uid"], plan["gid"])
    os.chdir("/")
    os.umask(0o022)
    # 1 and not 0: only 1 keeps cores from the program that a core_pattern may name (fs/coredump.c).
    _step("forbid core dumps", rlimits.apply, {"core": 1})
    _step("close what is not ours", _keep_only, plan["zygote_fd"])
    _step("die with the launcher", syscalls.prctl, syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    _step("forbid new privileges", syscalls.prctl, syscalls.PR_SET_NO_NEW_PRIVS, 1)
    _step(
        "enforce Landlock",
        lambda: landlock_fence.fence(
            readable=[*plan["readable"], *_FACTS, *_PROCESSES],
            writable=[plan["rooms"]],
            devices=[*_DEVICES, *_TERMINALS, *_OWN_TERMINAL],
        ),
    )
    _step("load the system call filter", seccomp.load, bytes.fromhex(plan["seccomp"]))
    _step("start the interpreter", os.execve, plan["argv"][0], plan["argv"], plan["envs"])
    raise AssertionError("execve returned")


def enter_sandbox(options: Dict[str, Any], cgroup_fds: List[int]) -> None:
    """Fences a fork of the zygote into one sandbox, and verifies that the fence holds.

    Before: the only thread; the folder of the sandbox exists. After: every process started from here can write in that
    folder alone, and all processes of the sandbox can be killed by one call that reaches no other process.
    """
    _step("adopt processes without a parent", syscalls.prctl, syscalls.PR_SET_CHILD_SUBREAPER, 1)
    _step("enter the control groups", _enter_cgroups, cgroup_fds)
    _step(
        "enforce Landlock",
        lambda: landlock_fence.fence(
            readable=[*options["readable"], *_FACTS, *_PROCESSES],
            writable=[options["folder"]],
            devices=[*_DEVICES, *_TERMINALS, *_OWN_TERMINAL],
        ),
    )
    _step("try the fence", _try_the_fence, os.getppid(), os.path.dirname(options["folder"]))


def enter_init(options: Dict[str, Any]) -> None:
    """Makes a fork of the reaper the init of its sandbox: it may signal every process in it but the reaper."""
    _step("die with the reaper", syscalls.prctl, syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    _step("adopt processes without a parent", syscalls.prctl, syscalls.PR_SET_CHILD_SUBREAPER, 1)
    _step("spare the reaper", landlock_fence.fence_signals)
    open_files = options["rlimits"]["nofile"] + _OPEN_FILES_OF_INIT
    _step("set resource limits", rlimits.apply, {**options["rlimits"], "nofile": open_files})


def enter_guest(options: Dict[str, Any], program: bytes, processes: int) -> None:
    """Takes from a fork of init everything that guest code must not have.

    After: it can read its own entries in /proc and those of no other process, signals only processes that it starts,
    and can make none of the calls that neither Landlock nor the kernel's own checks restrict.

    Args:
        options: The settings of this one sandbox.
        program: The system call filter of guest code.
        processes: How many processes and threads the user may have, those of the host counted as well.
    """
    # Init may only measure the memory of a process that it may read; Landlock keeps other guests out.
    _step("let init see how much memory this is", syscalls.prctl, syscalls.PR_SET_DUMPABLE, 1)
    _step("set resource limits", rlimits.apply, {"nofile": options["rlimits"]["nofile"], "nproc": processes})
    _step(
        "enforce Landlock",
        lambda: landlock_fence.fence(
            readable=[*options["readable"], *_FACTS, f"/proc/{os.getpid()}"],
            writable=[options["folder"]],
            devices=[*_DEVICES, *_OWN_TERMINAL],
        ),
    )
    _step("load the system call filter", seccomp.load, program)


def _become(uid: Optional[int], gid: Optional[int]) -> None:
    """Changes to the guests' user id if this process is root; otherwise keeps its id and drops all capabilities."""
    if uid is not None and gid is not None:
        # The bounding set can only be emptied while CAP_SETPCAP is held.
        caps.seal()
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        caps.drop_all()
        return

    if os.geteuid() == 0:
        raise JailError("become the guests' user", errno.EPERM, "root must not run guests as itself")

    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.capset(0, 0, 0)


def _enter_cgroups(cgroup_fds: List[int]) -> None:
    for fd in cgroup_fds:
        os.write(fd, b"0")
        os.close(fd)


def _try_the_fence(outsider: int, closed_folder: str) -> None:
    """Checks, before any guest code exists, that the kernel refuses what the fence should prevent."""
    for what, trial in (
        ("a signal to a process outside", lambda: os.kill(outsider, 0)),
        ("a look into the folder of all sandboxes", lambda: os.listdir(closed_folder)),
        ("a socket of the network", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)),
        ("a look into the secrets of the system", lambda: os.close(os.open("/etc/shadow", os.O_RDONLY))),
    ):
        if not _is_refused(trial):
            raise JailError("try the fence", 0, f"{what} was not refused")


def _is_refused(trial: Callable[[], object]) -> bool:
    try:
        trial()
    except FileNotFoundError:
        return True
    except OSError as error:
        return error.errno in (errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT)

    return False


def _keep_only(zygote_fd: int) -> None:
    """Leaves the interpreter with descriptors 0, 1, 2 and its socket as 3."""
    spare = fcntl.fcntl(zygote_fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE_PROMISED)
    os.dup2(spare, ZYGOTE_FD)
    syscalls.close_range(ZYGOTE_FD + 1, 0xFFFFFFFF, syscalls.CLOSE_RANGE_CLOEXEC)


def _step(name: str, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except JailError:
        raise
    except OSError as error:
        raise JailError(name, error.errno or 0, str(error)) from None
