"""The launch: the visible, ordered list of steps that makes a base jail, and the one that makes a sandbox.

A reviewer reads the security of the product here. `enter_base_jail` runs in the launcher's clone and ends in an exec of
the template's interpreter, which is restricted from its first instruction. `set_up_sandbox` runs in the clone that
becomes a sandbox's init, `enter_sandbox` in each fork that becomes a context, and `confine` in both, before user code
runs there. Each step is named; a step that fails ends the launch with a `JailError` and no process runs partly
restricted.
"""

from __future__ import annotations

import fcntl
import os
import signal
from typing import Any, Callable, Dict, List, NoReturn, Optional

from fumehood_jail import (
    caps,
    counts,
    landlock,
    mounts,
    namespaces,
    network,
    own_root,
    rlimits,
    seccomp,
    syscalls,
    users,
)
from fumehood_jail.errors import JailError

# The user id of every process inside a sandbox.
GUEST_UID = 1000
# Contexts keep this as their saved user id, where there are enough ids; it owns the namespaces of forked sandboxes.
FORK_OWNER_UID = 2000
# Jail init and zygote are root of the base jail's user namespace, and an unprivileged user on the host.
BASE_UID = 0
HOSTNAME = "fumehood"
# Number of files that init may have open for snapshots.
SNAPSHOT_FILES = 8192
# The descriptors of the sockets from jail init and zygote to the host.
JAIL_INIT_FD = 3
ZYGOTE_FD = 4
_ABOVE_PROMISED = 16
_ABOVE_WRITABLE = sorted({os.path.dirname(place) for place in mounts.WRITABLE})

# Capabilities that jail init and zygote need: to write the id maps of sandboxes (which may map their own id 0: that
# takes CAP_SETFCAP since Linux 5.12), to kill them, and to fork into their namespaces (CAP_SYS_ADMIN, and
# CAP_SYS_PTRACE because their inits cannot be traced; man 2 setns. The system call filter refuses ptrace itself). All
# others are dropped from the bounding set as well, so that the exec as root of the namespace does not bring them back.
_BASE_CAPABILITIES = frozenset(
    {"CAP_SETUID", "CAP_SETGID", "CAP_SETFCAP", "CAP_KILL", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE"}
)


# Every namespace but that of pids, in which the process is started, and that of cgroups, which each process makes for
# itself. The user namespace is included because it owns the others.
_ENTERED_NAMESPACES = syscalls.CLONE_NAMESPACES & ~(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWCGROUP)


def enter_base_jail(plan: Dict[str, Any]) -> NoReturn:
    """Turns a fresh clone of the launcher into the jail init: changes its root and host name, executes the interpreter.

    Before: a clone with every namespace new and its id maps written. After: does not return; the interpreter has six
    capabilities within its own user namespace and a system call filter, and dies with the launcher. Every descriptor
    but 0, 1, 2 and the two sockets is closed by the exec.
    """
    _step("give up supplementary groups", users.drop_supplementary_groups)
    _step("build the root", mounts.build_root, plan["root"])
    _step("seal the root", mounts.seal_root)
    _step("leave the host its share of what the kernel counts", counts.leave_half_to_the_host)
    _step("name the machine", syscalls.sethostname, HOSTNAME)
    # 1 and not 0: only 1 keeps core dumps from the program that a core_pattern may name (fs/coredump.c). No guest can
    # change it.
    _step("forbid core dumps", rlimits.apply, {"core": 1})
    _step("die with the launcher", syscalls.prctl, syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    _step("lock the mounts", _go_below)
    _step("enter the template's control group", _enter_cgroups, plan["cgroup_fds"])
    _step("close what is not ours", _keep_only, plan["jail_init_fd"], plan["zygote_fd"])
    _step("die with the one above", syscalls.prctl, syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    _step("drop capabilities", caps.keep_only, _BASE_CAPABILITIES)
    _step("forbid new privileges", syscalls.prctl, syscalls.PR_SET_NO_NEW_PRIVS, 1)
    _step("load the system call filter of jail init and zygote", seccomp.load, bytes.fromhex(plan["seccomp"]))
    _step("start the interpreter", os.execve, plan["argv"][0], plan["argv"], plan["envs"])
    raise AssertionError("execve returned")


def set_up_sandbox(options: Dict[str, Any], devices: Optional[int] = None) -> None:
    """Sets up what all processes of a sandbox share: host name, writable filesystems, /proc, loopback.

    Before: the first process of new namespaces, its id maps written, in its control groups; no guest code exists.
    After: this process is the guest's user, and still has every capability within the sandbox.

    Args:
        options: The settings of this one sandbox.
        devices: A mount with device nodes for this sandbox alone, if there is one.
    """
    _step("become the guest user", _become_guest)
    _step("name the machine", syscalls.sethostname, options["hostname"])

    if options["is_fork"]:
        _step("enter the root of forks", mounts.enter_fork_root)
    else:
        _step("enter a root with inodes of its own", own_root.enter, devices)

    _step(
        "mount the sandbox's filesystems",
        mounts.mount_sandbox,
        options["disk_bytes"],
        options["inodes"],
        GUEST_UID,
    )
    # In the sandbox's own /proc: in one that all sandboxes share, the kernel keeps an entry of each name for each of
    # their namespaces, and a lookup passes all of them.
    _step("bound what the kernel counts for the host's user", counts.bound_a_sandbox)
    _step("bound the sockets", network.bound_sockets)
    _step("mask /proc", mounts.mask_proc, options["memory_bytes"], options["cpu_cores"])
    _step("bring up the loopback", network.loopback_up)


def confine(
    options: Dict[str, Any],
    program: bytes,
    is_context: bool,
    load_filter: Callable[[bytes], None] = seccomp.load,
    before_landlock: Optional[Callable[[], None]] = None,
) -> int:
    """Takes from a process of a sandbox that is set up everything that guest code must not have.

    Init and each context call this for themselves; what they start inherits it. After: an ordinary user without
    capabilities, restricted by Landlock and the system call filter, that cannot be traced or dumped.

    Where init watches the memory, contexts are left dumpable, because only then does the kernel report how much memory
    they hold. The filter still refuses tracing, and Landlock lets only processes that a context has started reach its
    memory; where there is no Landlock contexts stay untraceable.

    Args:
        options: The settings of this one sandbox.
        program: The system call filter.
        is_context: Whether user code will run here, which may then signal only processes that it starts itself.
        load_filter: Loads the filter.
        before_landlock: Starts the one thread of init that is restricted by everything but Landlock.

    Returns:
        The Landlock ABI that is enforced, 0 when the kernel has none.
    """
    saved = FORK_OWNER_UID if is_context and options["has_migrators"] else GUEST_UID
    _step("become the guest user", _become_guest, saved)
    # A change of user resets this to fs.suid_dumpable: while capabilities are left it must be off.
    _step("forbid tracing", syscalls.prctl, syscalls.PR_SET_DUMPABLE, 0)
    _step("set resource limits", rlimits.apply, _limits(options["rlimits"], is_context))
    _step("drop every capability", caps.drop_all)
    _step("forbid new privileges", syscalls.prctl, syscalls.PR_SET_NO_NEW_PRIVS, 1)
    _step("load the system call filter", load_filter, program)
    _step("forbid tracing", syscalls.prctl, syscalls.PR_SET_DUMPABLE, 0)

    if before_landlock is not None:
        _step("start the watcher's thread", before_landlock)

    abi = _step("enforce Landlock", _enforce_landlock, is_context)

    if is_context and options["is_weighed"] and abi:
        _step("let init see how much memory this is", syscalls.prctl, syscalls.PR_SET_DUMPABLE, 1)

    return int(abi)


def enter_sandbox(init_pidfd: int, gate: int, cgroup_fds: List[int]) -> None:
    """Moves a fork of the zygote into the namespaces and control groups of a sandbox where guest code may already run.

    Before: started in the sandbox's PID namespace, with descriptors of the host that no guest may ever see: the caller
    closes them before user code runs. After: every capability within the sandbox and none outside; not yet the guest's
    user, and not traceable: the kernel refuses guests access to a process of another user with more capabilities.
    """
    _step("forbid tracing", syscalls.prctl, syscalls.PR_SET_DUMPABLE, 0)
    _step("enter the sandbox's namespaces", syscalls.setns, init_pidfd, _ENTERED_NAMESPACES)
    mount_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    enter_control_groups(cgroup_fds)

    if not os.read(gate, 1):
        raise JailError("wait for the sandbox", 0, "its init ended before it was set up")

    # Init may have replaced the root meanwhile: entering the same namespace again leads to the current root.
    _step("enter the sandbox's root", syscalls.setns, mount_namespace, syscalls.CLONE_NEWNS)
    os.close(mount_namespace)
    os.chdir("/")


def become_owner_of_fork(has_migrators: bool) -> None:
    """Changes to the user id that will own a fork's namespaces, inside the namespace of the forked sandbox.

    Guest code of that sandbox sees this process, and can neither trace it nor, where sandboxes have ids of their own,
    signal it.
    """
    owner = FORK_OWNER_UID if has_migrators else GUEST_UID
    _step("become the owner", os.setresgid, GUEST_UID, GUEST_UID, GUEST_UID)
    _step("become the owner", os.setresuid, owner, owner, owner)
    _step("forbid tracing", syscalls.prctl, syscalls.PR_SET_DUMPABLE, 0)


def enter_control_groups(cgroup_fds: List[int]) -> None:
    """Moves this process into its sandbox's control groups, and makes them the root of its cgroup namespace.

    Args:
        cgroup_fds: Descriptors that the host has opened, one for each hierarchy; writing "0" moves the writer in.
    """
    _step("enter the control groups", _be_below_cgroups, cgroup_fds)


def _be_below_cgroups(cgroup_fds: List[int]) -> None:
    _enter_cgroups(cgroup_fds)
    # A new namespace, so that the guest sees its own cgroup as the root.
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)


def _enter_cgroups(cgroup_fds: List[int]) -> None:
    for fd in cgroup_fds:
        os.write(fd, b"0")
        os.close(fd)


def _limits(table: Dict[str, int], is_context: bool) -> Dict[str, int]:
    """Returns the limits of this process: init may have more files open, for snapshots; guests get the plain limits."""
    return table if is_context else {**table, "nofile": table["nofile"] + SNAPSHOT_FILES}


def _become_guest(saved: int = GUEST_UID) -> None:
    os.setresgid(GUEST_UID, GUEST_UID, GUEST_UID)
    os.setresuid(GUEST_UID, GUEST_UID, saved)
    os.umask(0o022)


def _enforce_landlock(is_context: bool) -> int:
    """Restricts file access by Landlock: reading anywhere, writing only in the writable places.

    A rule belongs to a directory and not to its path. The directories of the root are the same in a sandbox and in its
    forks (`own_root`), so that a process that migrates to a forked sandbox may write to what is mounted there: the
    kernel checks the directories above a mount, but not the one that the mount covers. /tmp lies in the root itself,
    and has a rule of its own; `mounts` describes what forks have instead.
    """
    roots = ["/", mounts.FORK_ROOT] if os.path.isdir(mounts.FORK_ROOT) else ["/"]
    return landlock.restrict(
        read_only=roots,
        read_write=[*_ABOVE_WRITABLE, mounts.SHORT_SCRATCH],
        devices=("/dev",),
        scoped=is_context,
    )


def _go_below() -> None:
    """Continues in a clone, in a nested user namespace in which the kernel has locked every mount as it is.

    Code of a template that gets into jail init or zygote can then neither make a folder of the host writable nor
    uncover what a mount hides: it would need rights in the outer namespace. The process that stays there, the builder,
    only waits for the clone, and exits with its status.
    """
    # Off since the change of user: the clone's id maps could not be opened.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    gate = namespaces.Gate()
    pid = syscalls.clone(namespaces.INNER_FLAGS)

    if pid:
        namespaces.write_same_map(pid)
        gate.open()
        _wait_above(pid)

    gate.wait()
    mounts.mount_own_proc()


def _wait_above(pid: int) -> NoReturn:
    """Closes all descriptors, waits for the clone in the nested namespace, and exits with its status."""
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    caps.drop_all()
    syscalls.close_range(0)
    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _keep_only(jail_init_fd: int, zygote_fd: int) -> None:
    """Leaves the interpreter with 0, 1, 2 and the two sockets as 3 and 4; the exec closes the report pipe."""
    spare = fcntl.fcntl(zygote_fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE_PROMISED)
    os.dup2(jail_init_fd, JAIL_INIT_FD)
    os.dup2(spare, ZYGOTE_FD)
    syscalls.close_range(ZYGOTE_FD + 1, 0xFFFFFFFF, syscalls.CLOSE_RANGE_CLOEXEC)


def _step(name: str, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except JailError:
        raise
    except OSError as error:
        raise JailError(name, error.errno or 0, str(error)) from None
