"""Advice: turns a failed trial and the system's own settings into a reason and a remedy.

Used by the probe, in the host process. Pure but for `read_facts`: the same facts give the same answer, so that tests
can use facts recorded on other systems (a container with a filter, Debian, Ubuntu).
"""

from __future__ import annotations

import errno
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    Facts = dict[str, str]

_SYSCTLS = (
    "kernel.apparmor_restrict_unprivileged_userns",
    "kernel.dmesg_restrict",
    "kernel.io_uring_disabled",
    "kernel.kptr_restrict",
    "kernel.perf_event_paranoid",
    "kernel.unprivileged_bpf_disabled",
    "kernel.unprivileged_userns_clone",
    "kernel.yama.ptrace_scope",
    "fs.protected_fifos",
    "fs.protected_hardlinks",
    "fs.protected_regular",
    "fs.protected_symlinks",
    "fs.suid_dumpable",
    "user.max_cgroup_namespaces",
    "user.max_ipc_namespaces",
    "user.max_mnt_namespaces",
    "user.max_net_namespaces",
    "user.max_pid_namespaces",
    "user.max_user_namespaces",
    "user.max_uts_namespaces",
    "vm.unprivileged_userfaultfd",
)

# Settings of the host that make an escape harder: lowest good value, highest good value, advised value. None of them
# is required, because guest code cannot make the system calls that they restrict.
_HARDENING = {
    "kernel.io_uring_disabled": (2, 2, "2"),
    "kernel.unprivileged_bpf_disabled": (1, 2, "2"),
    "vm.unprivileged_userfaultfd": (0, 0, "0"),
    "kernel.kptr_restrict": (1, 2, "1"),
    "kernel.dmesg_restrict": (1, 1, "1"),
    "kernel.perf_event_paranoid": (2, 4, "2"),
    "kernel.yama.ptrace_scope": (1, 3, "1"),
    "fs.protected_symlinks": (1, 1, "1"),
    "fs.protected_hardlinks": (1, 1, "1"),
    "fs.protected_fifos": (1, 2, "1"),
    "fs.protected_regular": (1, 2, "1"),
    "fs.suid_dumpable": (0, 0, "0"),
}

# The beginning of the advice for such a setting; the setting, its value and a full stop follow.
SET_AS_ROOT = "As root: sysctl -w "

_ALLOW_FILTERED_CALLS = (
    "Start the container with a seccomp profile that permits clone, unshare, mount, umount2, pivot_root, "
    "mount_setattr and sethostname, or with none: docker or podman run --security-opt seccomp=unconfined; "
    "Kubernetes: securityContext.seccompProfile.type: Unconfined."
)
_ALLOW_DEBIAN = "As root: sysctl -w kernel.unprivileged_userns_clone=1 (keep it in /etc/sysctl.d/)."
_ALLOW_UBUNTU = (
    "As root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (keep it in /etc/sysctl.d/), or give "
    "this Python an AppArmor profile with the rule 'userns,'."
)
_ALLOW_UNMASKED_PROC = (
    "A new /proc needs one that is not masked. docker run --security-opt systempaths=unconfined; "
    "podman run --security-opt unmask=ALL; Kubernetes: securityContext.procMount: Unmasked."
)
_ALLOW_APPARMOR_MOUNT = "docker run --security-opt apparmor=unconfined, or a profile that permits mount."


def read_facts(proc: str = "/proc") -> Facts:
    """Reads the system's own settings; what cannot be read is left out.

    Returns:
        Values of sysctls by their dotted names, `"seccomp"` (the mode of this process), `"apparmor"`
        (its profile), `"container"` (what kind, when there are signs of one) and `"uid"`.
    """
    facts = {"uid": str(os.geteuid())}
    for name in _SYSCTLS:
        value = _read(f"{proc}/sys/{name.replace('.', '/')}")
        if value:
            facts[name] = value

    for line in _read(f"{proc}/self/status").splitlines():
        if line.startswith("Seccomp:"):
            facts["seccomp"] = line.split()[1]

    profile = _read(f"{proc}/self/attr/current").strip("\0")
    if profile and not profile.startswith("unconfined"):
        facts["apparmor"] = profile

    for kind, path in (("docker", "/.dockerenv"), ("podman", "/run/.containerenv")):
        if os.path.exists(path):
            facts["container"] = kind

    # As sd_booted(3) does.
    if os.path.isdir("/run/systemd/system"):
        facts["systemd"] = "1"

    return facts


def explain_clone(number: int, kind: str, facts: Facts) -> tuple[str, str]:
    """Explains why a clone into a new namespace failed.

    Args:
        number: The errno.
        kind: The namespace, as in /proc/self/ns: `user`, `pid`, `mnt`, ...
        facts: What `read_facts` returned.

    Returns:
        The reason, and what to do about it.
    """
    name = errno.errorcode.get(number, str(number))
    limit = f"user.max_{kind}_namespaces"
    if number in (errno.ENOSPC, errno.EUSERS):
        if facts.get(limit) == "0":
            return f"{limit} is 0 ({name})", f"As root: sysctl -w {limit}=15000 (keep it in /etc/sysctl.d/)."

        return f"the limit {limit} or the deepest nesting is reached ({name})", f"As root: raise {limit}."

    if number == errno.EINVAL:
        return f"this kernel has no {kind} namespaces ({name})", "Use a kernel that is built with them."

    if number == errno.EPERM and kind == "user" and facts["uid"] != "0":
        if facts.get("kernel.unprivileged_userns_clone") == "0":
            return f"kernel.unprivileged_userns_clone is 0 ({name})", _ALLOW_DEBIAN

        if facts.get("kernel.apparmor_restrict_unprivileged_userns") not in (None, "0"):
            return f"kernel.apparmor_restrict_unprivileged_userns is set ({name})", _ALLOW_UBUNTU

    if number in (errno.EPERM, errno.ENOSYS) and facts.get("seccomp", "0") != "0":
        return (
            f"the seccomp profile of the container forbids new {kind} namespaces ({name})",
            _ALLOW_FILTERED_CALLS,
        )

    if number == errno.EPERM:
        return (
            f"the system forbids new {kind} namespaces ({name}): a security module, or a process in a chroot",
            "Look in the kernel log (dmesg) for what refused it, and run outside of chroot.",
        )

    return f"clone answers {name}", "Free some memory or processes and try again."


def explain_map(number: int, facts: Facts) -> tuple[str, str]:
    """Explains why the id maps of a new user namespace could not be written."""
    name = errno.errorcode.get(number, str(number))
    if facts.get("kernel.apparmor_restrict_unprivileged_userns") not in (None, "0"):
        return f"kernel.apparmor_restrict_unprivileged_userns is set ({name})", _ALLOW_UBUNTU

    return (
        f"the id maps cannot be written ({name})",
        "The process needs a writable /proc of its own PID namespace.",
    )


def explain_mount(number: int, what: str, facts: Facts) -> tuple[str, str]:
    """Explains why a mount in a new user namespace failed.

    Args:
        number: The errno.
        what: `tmpfs`, `proc` or `pivot_root`.
        facts: What `read_facts` returned.
    """
    name = errno.errorcode.get(number, str(number))
    if number == errno.EACCES and "apparmor" in facts:
        return f"the AppArmor profile {facts['apparmor']!r} forbids mounts ({name})", _ALLOW_APPARMOR_MOUNT

    if facts.get("kernel.apparmor_restrict_unprivileged_userns") not in (None, "0") and facts["uid"] != "0":
        return f"kernel.apparmor_restrict_unprivileged_userns is set ({name})", _ALLOW_UBUNTU

    if number == errno.EPERM and what == "proc":
        return f"the /proc of this container is masked ({name})", _ALLOW_UNMASKED_PROC

    if number in (errno.EPERM, errno.ENOSYS) and facts.get("seccomp", "0") != "0":
        return f"the seccomp profile of the container forbids {what} ({name})", _ALLOW_FILTERED_CALLS

    if number == errno.EINVAL and what == "pivot_root":
        return (
            f"the root file system cannot be exchanged ({name}): it is an initramfs, or this is a chroot",
            "Run from a root that was mounted, not from rootfs.",
        )

    return f"{what} answers {name}", "Look in the kernel log (dmesg) for what refused it."


def explain_no_cgroup(reasons: list[str], facts: Facts) -> tuple[str, str]:
    """Explains why sandboxes get no cgroup of their own."""
    stand_in = "until then rlimits and a watcher stand in."
    if "systemd" in facts and facts["uid"] != "0":
        way_out = (
            "Start your program by 'systemd-run --user --scope -p Delegate=yes', which puts it below a place that is "
            f"yours; {stand_in}"
        )
    elif "container" in facts:
        way_out = (
            "Start the container with writable cgroups: docker run --security-opt writable-cgroups=true "
            f"(Docker 28) or --privileged; {stand_in}"
        )
    elif facts["uid"] == "0":
        way_out = f"Mount the memory and pids controllers writable; {stand_in}"
    else:
        way_out = f"Let root make a cgroup and give it to your user, with memory and pids; {stand_in}"

    return "; ".join(joined_reasons(reasons)), way_out


_UNWRITABLE = re.compile(r"cgroup v1: '(.*)' is not writable")


def joined_reasons(reasons: list[str]) -> list[str]:
    """Joins the folders of version 1 that cannot be written, one for each controller, into one reason."""
    folders = [found[1] for found in map(_UNWRITABLE.fullmatch, reasons) if found]
    others = [reason for reason in reasons if not _UNWRITABLE.fullmatch(reason)]
    if len(folders) < 2:
        return reasons

    return [*others, f"cgroup v1: {len(folders)} folders are not writable, such as {folders[0]!r}"]


def hardening(facts: Facts) -> list[tuple[str, bool, str, str]]:
    """Compares the host's settings with those that make an escape harder.

    Returns:
        For each setting that this kernel has: its name, whether it is good, the reason and the advice.
    """
    found = []
    for name, (lowest, highest, advised) in _HARDENING.items():
        value = facts.get(name, "")
        if not value.lstrip("-").isdigit():
            continue

        good = lowest <= int(value) <= highest
        found.append((name, good, f"{name} is {value}", "" if good else f"{SET_AS_ROOT}{name}={advised}."))

    return found


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
