"""The probe: which layers of isolation this system really gives, found by trying each of them.

`probe` runs in the host process and starts a process of its own for the trials, since a raw clone needs a single-
threaded process; the caller's process is not changed. A layer counts as present only if a child process has just used
it: version numbers and configuration prove nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys

from fumehood_jail import (
    advice,
    call_numbers,
    cgroups,
    landlock,
    namespaces,
    network,
    seccomp,
    syscalls,
    users,
)
from fumehood_jail.errors import JailError
from fumehood_jail.notify_trial import hold_a_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn

    from fumehood_jail.advice import Facts

_TIMEOUT_SECONDS = 60
_USERS = "user namespace"
# mount_setattr came with 5.12, Landlock with 5.13.
_OLDEST_KERNEL = (5, 12)
_COMPLETE_KERNEL = (5, 13)
_COMPLETE_LANDLOCK_ABI = 6
_FORKS_HINT = (
    "The host must be let trace what it has started (ptrace: kernel.yama.ptrace_scope below 3, and a container's "
    "profile that permits it, as Docker's own does), and be under no filter with a listener of another program."
)
_TRIAL_MEMORY_BYTES = 64 * 1024 * 1024


class ProbedLayer:
    """One layer of isolation on this system.

    Attributes:
        name: Its name, in one or two words.
        state: `"there"`, `"degraded"` or `"missing"`.
        need: `"required"` (without it no sandbox starts), `"wanted"` (without it the isolation level reports it) or
            `"advice"` (a setting of the host, or a layer that only one operation needs).
        why: The result of the trial.
        how_to_get_it: The remedy if it is not there; empty when it is.
        cause: The other missing layer that is the only reason why this one is missing; empty if there is no such
            layer.
    """

    __slots__ = ("cause", "how_to_get_it", "name", "need", "state", "why")

    def __init__(
        self, name: str, state: str, need: str, why: str, how_to_get_it: str = "", cause: str = ""
    ) -> None:
        self.name = name
        self.state = state
        self.need = need
        self.why = why
        self.how_to_get_it = how_to_get_it
        self.cause = cause

    def to_dict(self) -> dict[str, str]:
        """Returns the layer as plain values."""
        names = ("name", "state", "need", "why", "how_to_get_it", "cause")
        return {name: getattr(self, name) for name in names}


class _RefusalError(Exception):
    """A trial failed: carries the step and the errno."""

    def __init__(self, step: str, number: int, detail: str) -> None:
        super().__init__(step, number, detail)
        self.step = step
        self.number = number
        self.detail = detail


def probe() -> list[ProbedLayer]:
    """Tries every layer in a process of its own.

    Raises:
        JailError: The process of the trials itself failed.
    """
    package_parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = (
        f"import sys; sys.path.insert(0, {package_parent!r}); from fumehood_jail import probe; probe.main()"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise JailError("probe", 0, done.stderr.decode("utf-8", "backslashreplace").strip() or "no answer")

    return [ProbedLayer(**fields) for fields in json.loads(done.stdout)]


def main() -> None:
    """Writes the layers to standard output as JSON."""
    json.dump([layer.to_dict() for layer in try_everything()], sys.stdout)


def try_everything() -> list[ProbedLayer]:
    """Tries every layer in children of this process, which must have only one thread."""
    facts = advice.read_facts()
    layers = [_kernel()]
    try:
        plan = users.plan_ids()
    except JailError as error:
        layers.append(ProbedLayer("ids", "missing", "required", str(error), error.hint))
        return layers

    try:
        layers += _namespaces(plan, facts)
        has_users = layers[1].state == "there"
        layers += _mounts(plan, facts, has_users)
        layers.append(_ids(plan) if has_users else _follows("ids", "wanted"))
    finally:
        plan.release()

    layers += [_no_new_privs(), _seccomp(), _landlock(), _cgroup(facts)]
    layers.append(_forks() if has_users else _follows("forks", "advice"))
    for name, good, why, way_out in advice.hardening(facts):
        layers.append(ProbedLayer(name, "there" if good else "missing", "advice", why, way_out))

    return layers


def _kernel() -> ProbedLayer:
    release = os.uname().release
    numbers = release.split("-")[0].split(".")
    version = (int(numbers[0]), int(numbers[1]))
    why = f"Linux {release} on {call_numbers.MACHINE}"
    if version >= _COMPLETE_KERNEL:
        return ProbedLayer("kernel", "there", "required", why)

    if version >= _OLDEST_KERNEL:
        return ProbedLayer("kernel", "degraded", "required", why, "Linux 5.13 and later have all layers.")

    return ProbedLayer("kernel", "missing", "required", why, "Linux 5.12 is the oldest that works.")


def _namespaces(plan: users.IdPlan, facts: Facts) -> list[ProbedLayer]:
    """Tries the user namespace alone, then each other kind together with it."""
    layers: list[ProbedLayer] = []
    for kind, flag in namespaces.ALL_NAMESPACES.items():
        action = network.loopback_up if kind == "net" else _nothing
        name = f"{kind} namespace"
        # All others are made in a user namespace: without one, their trials would only repeat this failure.
        if layers and layers[0].state == "missing":
            layers.append(_follows(name, "required"))
            continue

        try:
            _try_in_clone(syscalls.CLONE_NEWUSER | flag, plan, action)
        except _RefusalError as refusal:
            layers.append(ProbedLayer(name, "missing", "required", *_explain(refusal, kind, facts)))
        else:
            layers.append(
                ProbedLayer(name, "there", "required", f"a child has lived in a new {kind} namespace")
            )

    return layers


def _follows(name: str, need: str) -> ProbedLayer:
    return ProbedLayer(
        name,
        "missing",
        need,
        "and so: it is made in a user namespace, and none can be made",
        "Get user namespaces first.",
        _USERS,
    )


def _mounts(plan: users.IdPlan, facts: Facts, has_users: bool) -> list[ProbedLayer]:
    flags = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID
    layers = []
    for what, action in (("tmpfs", _mount_tmpfs), ("proc", _mount_proc), ("pivot_root", _exchange_root)):
        if not has_users:
            layers.append(_follows(what, "required"))
            continue

        try:
            _try_in_clone(flags, plan, action)
        except _RefusalError as refusal:
            layers.append(ProbedLayer(what, "missing", "required", *_explain(refusal, what, facts)))
        else:
            layers.append(
                ProbedLayer(
                    what, "there", "required", f"{what} has worked for a child in namespaces of its own"
                )
            )

    return [*layers, _overlay(plan) if has_users else _follows("overlay", "wanted")]


def _overlay(plan: users.IdPlan) -> ProbedLayer:
    try:
        _try_in_clone(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS, plan, _mount_overlay)
    except _RefusalError as refusal:
        return ProbedLayer(
            "overlay",
            "missing",
            "wanted",
            f"no overlay of /usr in a user namespace: {refusal.detail}",
            "Linux 5.11 and later allow it, where the module is there (modprobe overlay) and no security module "
            "forbids it. Without it, locks and watches on the system's files reach the host and other sandboxes.",
        )

    return ProbedLayer(
        "overlay", "there", "wanted", "a lock on a file beneath an overlay has not reached the file"
    )


def _explain(refusal: _RefusalError, what: str, facts: Facts) -> tuple[str, str]:
    if refusal.step == "clone":
        return advice.explain_clone(
            refusal.number, what if what in namespaces.ALL_NAMESPACES else "user", facts
        )

    if refusal.step == "map-ids":
        return advice.explain_map(refusal.number, facts)

    if refusal.step == "network":
        return (
            refusal.detail,
            "The loopback device of a new network namespace must be there to be brought up.",
        )

    return advice.explain_mount(refusal.number, what, facts)


def _ids(plan: users.IdPlan) -> ProbedLayer:
    """Returns the layer of user ids, judged by the id plan that the trials have used."""
    if plan.kind == "single":
        way_out = "Give the container 65536 user ids (docker: userns-remap; podman: --uidmap)."
        if os.geteuid() != 0:
            way_out = (
                "Install newuidmap and newgidmap, and list a range for you in /etc/subuid and /etc/subgid."
            )

        return ProbedLayer("ids", "degraded", "wanted", "; ".join(plan.notes), way_out)

    first = plan.uid_map[-1][1]
    why = f"{plan.kind}: {plan.count} ids from {first} on, one for each sandbox"
    return ProbedLayer("ids", "there", "wanted", "; ".join([why, *plan.notes]))


def _no_new_privs() -> ProbedLayer:
    try:
        _try_in_fork(_prctl_no_new_privs)
    except _RefusalError as refusal:
        return ProbedLayer("no_new_privs", "missing", "required", refusal.detail, "Use Linux 3.5 or later.")

    return ProbedLayer("no_new_privs", "there", "required", "a child has given up gaining privileges")


def _seccomp() -> ProbedLayer:
    try:
        program = seccomp.compile_policy(os.path.join(seccomp.POLICIES, "sandbox.toml"))
        _try_in_fork(lambda: _be_filtered(program))
    except _RefusalError as refusal:
        way_out = (
            "The kernel needs CONFIG_SECCOMP_FILTER, and a container must permit the seccomp system call."
        )
        return ProbedLayer("seccomp", "missing", "required", refusal.detail, way_out)

    digest = seccomp.policy_digest(program)[:12]
    return ProbedLayer("seccomp", "there", "required", f"a child was refused what policy {digest} refuses")


def _forks() -> ProbedLayer:
    try:
        program = seccomp.compile_policy(os.path.join(seccomp.POLICIES, "sandbox.toml"), is_notifying=True)
        hold_a_child(program)
    except (JailError, OSError) as error:
        return ProbedLayer(
            "forks", "missing", "advice", f"live sandboxes cannot be forked: {error}", _FORKS_HINT
        )

    return ProbedLayer(
        "forks", "there", "advice", "a child was held in a system call, and made another in its place"
    )


def _landlock() -> ProbedLayer:
    abi = landlock.available_abi()
    way_out = "Boot with 'landlock' in the kernel's lsm= list, on a kernel with CONFIG_SECURITY_LANDLOCK."
    if abi == 0:
        return ProbedLayer(
            "landlock", "missing", "wanted", "the kernel has none, or it is switched off", way_out
        )

    try:
        _try_in_fork(_be_landlocked)
    except _RefusalError as refusal:
        return ProbedLayer("landlock", "missing", "wanted", refusal.detail, way_out)

    why = f"ABI {abi}: a child was refused what was not listed"
    if abi < _COMPLETE_LANDLOCK_ABI:
        return ProbedLayer(
            "landlock", "degraded", "wanted", why, "Linux 6.12 also fences signals and abstract sockets."
        )

    return ProbedLayer("landlock", "there", "wanted", why)


def _cgroup(facts: Facts) -> ProbedLayer:
    driver, reasons = cgroups.detect()
    if driver is None:
        return ProbedLayer("cgroup", "missing", "wanted", *advice.explain_no_cgroup(reasons, facts))

    try:
        _use_cgroup(driver)
    except (JailError, OSError) as error:
        return ProbedLayer("cgroup", "missing", "wanted", *advice.explain_no_cgroup([str(error)], facts))

    why = f"version {driver.version} in {driver.parent!r}, with {', '.join(sorted(driver.controllers))}"
    if not driver.disks:
        why += "; reads from disks are not bounded, which takes io (blkio in version 1) as well"
    if "cpu" not in driver.controllers:
        return ProbedLayer(
            "cgroup", "degraded", "wanted", why, "Hand down the cpu controller as well, to limit CPU time."
        )

    return ProbedLayer("cgroup", "there", "wanted", why)


def _use_cgroup(driver: cgroups.CgroupDriver) -> None:
    """Makes a cgroup, puts a child in, reads its usage, kills it and removes all."""
    name = cgroups.cgroup_name("fumehoodprobe", "trial")
    cgroup = driver.create(name, memory_bytes=_TRIAL_MEMORY_BYTES, processes=4, cpu_cores=1.0)
    try:
        pid = os.fork()
        if pid == 0:
            signal.pause()

        cgroup.add(pid)
        cgroup.cpu_seconds()
        cgroup.peak_memory_bytes()
        cgroup.kill()
        os.waitpid(pid, 0)
    finally:
        cgroup.remove()


def _try_in_clone(flags: int, plan: users.IdPlan, action: Callable[[], None]) -> None:
    """Runs `action` as root of new namespaces; raises `_RefusalError` with the step that failed."""
    gate = namespaces.Gate()
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    try:
        pid = syscalls.clone(flags)
    except OSError as error:
        gate.close()
        os.close(read_fd)
        os.close(write_fd)
        raise _RefusalError("clone", error.errno or 0, str(error)) from None

    if pid == 0:
        _report(write_fd, lambda: _as_root(gate, action))

    os.close(write_fd)
    try:
        users.write_maps(pid, plan)
        gate.open()
    except JailError as error:
        gate.close()
        raise _RefusalError("map-ids", error.errno, str(error)) from None
    finally:
        answer = _hear(read_fd, pid)

    _judge(answer)


def _try_in_fork(action: Callable[[], None]) -> None:
    """Runs `action` in a child; raises `_RefusalError` if it raised."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _report(write_fd, action)

    os.close(write_fd)
    _judge(_hear(read_fd, pid))


def _as_root(gate: namespaces.Gate, action: Callable[[], None]) -> None:
    gate.wait()
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    action()


def _report(write_fd: int, action: Callable[[], None]) -> NoReturn:
    """Runs `action` in a child, writes a report of its outcome and exits."""
    answer: dict[str, Any] = {}
    try:
        action()
    except JailError as error:
        answer = {"step": error.step, "number": error.errno, "detail": str(error)}
    except OSError as error:
        answer = {"step": "action", "number": error.errno or 0, "detail": str(error)}
    except Exception as error:  # noqa: BLE001 - a child says what went wrong and ends
        answer = {"step": "action", "number": 0, "detail": f"{type(error).__name__}: {error}"}
    finally:
        os.write(write_fd, json.dumps(answer).encode())
        os._exit(0)


def _hear(read_fd: int, pid: int) -> bytes:
    with open(read_fd, "rb") as file:
        answer = file.read()

    os.waitpid(pid, 0)
    return answer


def _judge(answer: bytes) -> None:
    if not answer:
        raise _RefusalError("action", 0, "the trial was killed")

    fields = json.loads(answer)
    if fields:
        raise _RefusalError(**fields)


def _nothing() -> None:
    pass


def _mount_tmpfs() -> None:
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("none", "/tmp", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=64k")  # noqa: S108


def _mount_proc() -> None:
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    restrictions = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", "/proc", "proc", restrictions)


def _mount_overlay() -> None:
    _mount_tmpfs()
    os.chdir("/tmp")  # noqa: S108 - the tmpfs that was just mounted
    os.mkdir("empty")
    os.mkdir("overlay")
    syscalls.mount("overlay", "overlay", "overlay", syscalls.MS_RDONLY, "lowerdir=/usr/bin:empty")
    name = next(entry.name for entry in os.scandir("/usr/bin") if entry.is_file(follow_symlinks=False))
    with open(f"/usr/bin/{name}", "rb") as file, open(f"overlay/{name}", "rb") as same:
        fcntl.flock(file, fcntl.LOCK_SH)
        fcntl.flock(same, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _exchange_root() -> None:
    _mount_tmpfs()
    os.mkdir("/tmp/old")  # noqa: S108 - in the tmpfs that was just mounted
    syscalls.pivot_root("/tmp", "/tmp/old")  # noqa: S108
    os.chdir("/")
    syscalls.umount2("/old", syscalls.MNT_DETACH)
    if os.listdir("/") != ["old"] or os.listdir("/old"):
        raise OSError(0, "the old root is still visible")


def _prctl_no_new_privs() -> None:
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if syscalls.prctl(syscalls.PR_GET_NO_NEW_PRIVS) != 1:
        raise OSError(0, "no_new_privs did not stay set")


def _be_filtered(program: bytes) -> None:
    _prctl_no_new_privs()
    seccomp.load(program)
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
    except PermissionError:
        return

    raise OSError(0, "the filter let unshare through")


def _be_landlocked() -> None:
    _prctl_no_new_privs()
    with open("/proc/self/stat", "rb"):
        pass

    landlock.restrict(read_only=["/usr"], read_write=[])
    try:
        with open("/proc/self/stat", "rb"):
            pass
    except PermissionError:
        return

    raise OSError(0, "Landlock let an unlisted file be opened")
