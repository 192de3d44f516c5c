"""Children of the tests: host processes that use fumehood as another user, in another place, to another end.

The parent calls `run_scene`, or `start_scene` for one that it will disturb. The child is this very file, run
as a program: it puts itself into the place that was asked for (as root it can become an ordinary user, for
whom the interpreter and the checkout are made reachable) and then replaces itself by a Python that runs one
function of `user_scenes.py` or `fault_scenes.py`. What that returns comes back as JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import stat
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO

FOLDER = Path(__file__).resolve().parent
CHECKOUT = FOLDER.parents[1]
_MOST_USERS = 64
_NUMBER_VARIABLE = "TEST_USER_NUMBER"
_held: list[BinaryIO] = []


def _own_number() -> int:
    """Returns a number that no other process of tests has, of this run or of another on this machine; scenes have ours.

    Scenes of one user that run side by side would take each other's ids, and use up each other's limits.
    """
    if given := os.environ.get(_NUMBER_VARIABLE):
        return int(given)

    for number in range(_MOST_USERS):
        with contextlib.suppress(OSError):
            lock = open(f"{tempfile.gettempdir()}/fumehood-test-user-{number}.lock", "wb")  # noqa: SIM115
            # Held as long as this process lives.
            _held.append(lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number

    raise RuntimeError(f"{_MOST_USERS} processes of tests have a user each")


_NUMBER = _own_number()
# Nobody's, on any machine; the range for sandboxes is not used by fumehood as root either.
USER_ID = 12345 + _NUMBER
USER_NAME = "fumehood-test"
SUBORDINATE_IDS = (1_300_000_000 + 8192 * _NUMBER, 8192)

_CALL = """
import json, sys
sys.path.insert(0, {folder!r})
import {module}
print(json.dumps({module}.{function}(*json.loads({arguments!r}))))
"""


def start_scene(
    name: str, *arguments: Any, ordinary: bool = False, place: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    """Start a scene in a process of its own.

    Args:
        name: Module and function, such as `user_scenes.doctor`.
        arguments: Plain values for it.
        ordinary: As an ordinary user; the caller's own if that is none other.
        place: Names of `_PLACES`, in the order in which they are entered.
    """
    module, function = name.split(".")
    text = json.dumps(arguments)
    call = _CALL.format(folder=str(FOLDER), module=module, function=function, arguments=text)
    argv = [sys.executable, "-W", "default", "-c", call]
    become = USER_ID if ordinary and os.geteuid() == 0 else os.geteuid()
    order = json.dumps({"argv": argv, "uid": become, "place": place})
    # To import pandas and matplotlib beforehand takes most of an engine's start.
    return subprocess.Popen(
        [sys.executable, "-I", "-B", __file__, order],
        cwd="/",
        env={"FUMEHOOD_PRELOAD": "", **os.environ, _NUMBER_VARIABLE: str(_NUMBER)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run_scene(
    name: str, *arguments: Any, ordinary: bool = False, place: tuple[str, ...] = (), timeout: float = 300
) -> Any:
    """Run a scene in a process of its own, and return what it returns.

    What it may take is judged by its own clock: the time-out only ends one that hangs, on a busy machine too.
    """
    child = start_scene(name, *arguments, ordinary=ordinary, place=place)

    try:
        shown, complaint = child.communicate(timeout=timeout)
    finally:
        end(child)

    assert child.returncode == 0, f"{shown.decode()}\n{complaint.decode()}"
    assert complaint == b"", complaint.decode()
    return json.loads(shown)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill a scene, whatever became of it, and close its pipes."""
    child.kill()
    child.wait()

    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


# -- in the child


def main(order: dict[str, Any]) -> None:
    """Enter the places, become the user, and be the program."""
    sys.path.insert(0, str(CHECKOUT / "src"))

    is_another = order["uid"] != os.geteuid()

    if is_another:
        _make_reachable()
        os.setgroups([])

    for name in order["place"]:
        _PLACES[name](order["uid"])

    if is_another:
        os.setresgid(order["uid"], order["uid"], order["uid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
        os.environ.update({"HOME": "/nonexistent", "USER": USER_NAME, "LOGNAME": USER_NAME})

    os.execv(order["argv"][0], order["argv"])


def _make_reachable() -> None:
    """Lets everybody walk to the interpreter and the checkout, in a mount namespace of our own.

    A folder on the way that is closed (such as /root) is covered by an empty one, in which only what is
    needed appears.
    """
    _leave_the_hosts_mounts()
    needed = {os.path.realpath(path) for path in (sys.base_prefix, sys.prefix, str(CHECKOUT))}
    opened = {path: os.open(path, os.O_PATH) for path in sorted(needed)}
    closed = {path: folder for path in opened if (folder := _closed_folder(path))}

    for folder in sorted(set(closed.values())):
        _mount("tmpfs", folder, "tmpfs", data="mode=0755")

    for path in closed:
        os.makedirs(path, 0o755, exist_ok=True)
        _mount(f"/proc/self/fd/{opened[path]}", path, bind=True)


def _closed_folder(path: str) -> str | None:
    """Returns the first folder on the way to a path that not everybody may cross."""
    parts = path.strip("/").split("/")
    folders = ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return next((folder for folder in folders if not os.stat(folder).st_mode & stat.S_IXOTH), None)


def _leave_the_hosts_mounts() -> None:
    from fumehood_jail import syscalls

    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def _mount(
    source: str, target: str, fstype: str | None = None, *, bind: bool = False, data: str = ""
) -> None:
    from fumehood_jail import syscalls

    syscalls.mount(source, target, fstype, syscalls.MS_BIND if bind else 0, data)


def _in_a_container_with_a_filter(_uid: int) -> None:
    """What Docker's profile does: a process without CAP_SYS_ADMIN gets no new namespaces."""
    from fumehood_jail import seccomp, syscalls

    numbers = json.loads(Path(seccomp.POLICIES, f"syscalls_{platform.machine()}.json").read_text())
    load, jump_equal, jump_set, answer = 0x20, 0x15, 0x45, 0x06
    allow, refuse, unknown = 0x7FFF0000, 0x00050001, 0x00050026
    code = [
        (load, 0, 0, 0),
        (jump_equal, 5, 0, numbers["clone"]),
        (jump_equal, 7, 0, numbers["clone3"]),
        (jump_equal, 5, 0, numbers["unshare"]),
        (jump_equal, 4, 0, numbers["setns"]),
        (jump_equal, 3, 0, numbers["mount"]),
        (answer, 0, 0, allow),
        (load, 0, 0, 16),
        (jump_set, 0, 2, syscalls.CLONE_NAMESPACES),
        (answer, 0, 0, refuse),
        (answer, 0, 0, unknown),
        (answer, 0, 0, allow),
    ]
    seccomp.load(b"".join(struct.pack("=HBBI", *instruction) for instruction in code))


def _without_user_namespaces(uid: int) -> None:
    """A system whose user.max_user_namespaces is 0; the sysctl is kept for each user namespace."""
    from fumehood_jail import syscalls

    ready, tell = os.pipe()
    parent = os.getpid()

    if (helper := os.fork()) == 0:
        os.read(ready, 1)

        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{parent}/{name}").write_text(f"{uid} {uid} 1\n")

        os._exit(0)

    syscalls.unshare(syscalls.CLONE_NEWUSER)
    os.write(tell, b"!")
    assert os.waitpid(helper, 0)[1] == 0
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def _with_a_masked_proc(_uid: int) -> None:
    """A container that hides a file of its /proc; the kernel then allows no new procfs."""
    _leave_the_hosts_mounts()
    _mount("/dev/null", "/proc/interrupts", bind=True)


def _with_subordinate_ids(_uid: int) -> None:
    """A user with a name, and ranges in /etc/subuid and /etc/subgid; the host's files are not touched."""
    _leave_the_hosts_mounts()
    line = f"{USER_NAME}:{SUBORDINATE_IDS[0]}:{SUBORDINATE_IDS[1]}\n"
    texts = {
        "/etc/passwd": f"{USER_NAME}:x:{USER_ID}:{USER_ID}::/nonexistent:/bin/sh\n",
        "/etc/group": f"{USER_NAME}:x:{USER_ID}:\n",
        "/etc/subuid": line,
        "/etc/subgid": line,
    }

    for path, text in texts.items():
        with tempfile.NamedTemporaryFile() as shown:
            shown.write(Path(path).read_bytes() + text.encode())
            shown.flush()
            os.fchmod(shown.fileno(), 0o644)
            _mount(shown.name, path, bind=True)


def _under_a_guardian(_uid: int) -> None:
    """Lets a parent process stay behind that adopts whatever loses its own, and ends after the last of them.

    It says how long the last of them has lived after the host, and ends as the host did.
    """
    from fumehood_jail import syscalls

    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    host = os.fork()

    if host == 0:
        return

    statuses = {}
    ends = []

    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break

        statuses[pid] = status
        ends.append((pid, time.monotonic()))

    moments = dict(ends)
    os.write(2, f"\nsurvived by {ends[-1][1] - moments[host]:.3f} s\n".encode())
    os._exit(os.waitstatus_to_exitcode(statuses[host]) & 0xFF)


def _where_others_can_read(_uid: int) -> None:
    """An interpreter and a checkout that everybody can read, as in an image of a container."""
    _make_reachable()


_PLACES = {
    "readable": _where_others_can_read,
    "guardian": _under_a_guardian,
    "seccomp profile": _in_a_container_with_a_filter,
    "no user namespaces": _without_user_namespaces,
    "masked proc": _with_a_masked_proc,
    "subordinate ids": _with_subordinate_ids,
}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
