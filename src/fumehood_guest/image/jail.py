"""The jail of everything that handles an image's content: it unpacks a layer, looks into an image, or runs a step.

Runs as a process of its own (`python -I -S`), started by the host with one JSON plan on a descriptor. The first process
acts with the host user's rights: it clones the jailed one into new namespaces, writes its id maps, and waits. The
jailed process sees one folder of the host, as its root: all that it needs of Python is imported before. It has no
network, few capabilities in a user namespace of its own, and a system call filter before it reads the first byte of
the image. When the host ends, it ends too.
"""

from __future__ import annotations

import encodings.ascii
import encodings.idna
import encodings.latin_1
import encodings.utf_8  # noqa: F401 - codecs are imported late, when there are no files any more
import json
import os
import select
import signal
import socket
from typing import Any, Dict, NoReturn

from fumehood_guest.image import image_root, place, step, survey, unpack
from fumehood_jail import caps, namespaces, network, rlimits, seccomp, syscalls, users
from fumehood_jail.errors import JailError

EXIT_FAILED = 4
_STAGING = "/tmp"  # noqa: S108 - a mount point in a private mount namespace
# To write files of any owner, and to give them one.
_FILE_CAPABILITIES = frozenset({"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"})
# What builders of images give to a step, in a user namespace whose root has no right on the host.
_STEP_CAPABILITIES = frozenset(
    {
        *(
            "CAP_CHOWN",
            "CAP_DAC_OVERRIDE",
            "CAP_FOWNER",
            "CAP_FSETID",
            "CAP_KILL",
            "CAP_SETGID",
            "CAP_SETUID",
        ),
        *("CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_MKNOD", "CAP_SETFCAP"),
    }
)
_PROXY_FD = 3


def main(plan_fd: int) -> NoReturn:
    """Carries out the plan found on `plan_fd`; exits with the status of the jailed process."""
    os.chdir("/")

    with open(plan_fd, "rb") as file:
        plan = json.load(file)

    if plan["task"] == "unpack":
        unpack.prepare(plan["order"])

    try:
        pid = _clone(plan)
    except JailError as error:
        _fail(error)

    _watch(pid, int(plan["host_pidfd"]))


def _clone(plan: Dict[str, Any]) -> int:
    if os.geteuid() == 0:
        users.drop_supplementary_groups()

    for fd in plan.get("cgroup_fds", ()):
        # The jailed process is started in the group that this one is in.
        os.write(fd, b"0")
        os.close(fd)

    gate = namespaces.Gate()
    try:
        pid = syscalls.clone(namespaces.JAIL_FLAGS)
    except OSError as error:
        raise JailError(
            "clone into new namespaces", error.errno or 0, str(error), "run 'fumehood doctor'"
        ) from None

    if pid == 0:
        try:
            gate.wait()
            _be_jailed(plan)
        except JailError as error:
            _fail(error)
        except BaseException as error:
            _fail(JailError("image jail", 0, f"{type(error).__name__}: {error}"))

        os._exit(0)

    try:
        users.write_maps(pid, users.IdPlan.from_dict(plan["ids"]))
    except JailError:
        gate.close()
        raise

    gate.open()
    return pid


def _be_jailed(plan: Dict[str, Any]) -> None:
    users.drop_supplementary_groups()
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    proxy = None

    if plan.get("proxy_fd"):
        # Closed in the program, which reaches the proxy by the loopback alone.
        proxy = socket.socket(fileno=os.dup2(plan["proxy_fd"], _PROXY_FD, inheritable=False))
        os.set_inheritable(_PROXY_FD, False)

    syscalls.close_range(_PROXY_FD + 1 if proxy is not None else _PROXY_FD, 0xFFFFFFFF)
    rlimits.apply(plan["rlimits"])
    os.umask(0 if plan["task"] == "unpack" else 0o022)

    target = (
        os.open(plan["target"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if plan.get("target") else None
    )

    if plan["task"] == "unpack":
        _enter_folder(plan["folder"])
        kept = _FILE_CAPABILITIES
    elif plan["task"] in ("survey", "place", "pack"):
        image_root.enter(plan)
        kept = _FILE_CAPABILITIES
    else:
        image_root.enter(plan)
        network.loopback_up()
        syscalls.sethostname("build")
        kept = _STEP_CAPABILITIES

    caps.keep_only(kept)
    # The kernel clears it with a change of user.
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.load(bytes.fromhex(plan["seccomp"]))

    if plan["task"] == "unpack":
        unpack.unpack(plan["order"])
    elif plan["task"] == "survey":
        survey.survey(plan["order"], target)
    elif plan["task"] == "place":
        place.place(plan["order"])
    elif plan["task"] == "pack":
        place.pack(plan["order"])
    else:
        step.run(plan["order"], proxy)


def _enter_folder(folder: str) -> None:
    """Makes one folder of the host the root, and detaches everything else."""
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    syscalls.mount(f"/proc/self/fd/{fd}", _STAGING, None, syscalls.MS_BIND)
    syscalls.mount_setattr(_STAGING, syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV, 0, False)
    os.close(fd)
    os.chdir(_STAGING)
    # The old root lies on top of the new one then, and is unmounted (man 2 pivot_root, `pivot_root(".", ".")`).
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")


def _watch(pid: int, host_pidfd: int) -> NoReturn:
    """Waits for the jailed process, and kills it when the host has gone."""
    pidfd = os.pidfd_open(pid)
    # The host sees the end of its pipes when the jailed process ends.
    syscalls.close_range(0, min(pidfd, host_pidfd) - 1)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.register(host_pidfd, select.POLLIN)

    if pidfd not in {fd for fd, _ in poller.poll()}:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _fail(error: JailError) -> NoReturn:
    os.write(1, json.dumps({"failed": error.step, "detail": error.detail, "errno": error.errno}).encode())
    os._exit(EXIT_FAILED)
