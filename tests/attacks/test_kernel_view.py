"""K13 to K17: terminals, descriptors, /proc, devices, and layers that are missing."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from fumehood.scorecard.probes import SECRETS_OF_THE_MACHINE, SWITCHES_OF_THE_MACHINE
from fumehood_jail import mounts

DENIED = {"EACCES", "EPERM", "EROFS", "ENOENT"}


def test_k13_nothing_can_be_typed_into_a_terminal(inside, outside):
    """Not even into one's own; and only a terminal of the sandbox can be a controlling one."""
    said = inside("terminals")
    assert {said["TIOCSTI"], said["TIOCSETD"], said["TIOCLINUX"], said["TIOCCONS"]} == {"EPERM"}
    assert said["/dev/tty"] == ("ok" if inside.kind == "pty" else "ENXIO")

    control = outside("terminals")
    assert control["TIOCSTI"] in {"ok", "EIO"}  # EIO: the machine's administrator has switched it off
    assert control["TIOCSETD"] == "ok"
    assert control["TIOCLINUX"] == "ENOTTY"


def test_k13_a_terminal_is_one_of_the_sandbox(attacked):
    """What a pty leads to lies on the sandbox's own devpts, not on the host's."""
    handle = attacked.sandbox.pty.create()
    handle.send("exec readlink /proc/self/fd/0\n")
    assert b"/dev/pts/" in b"".join(handle)


def test_k14_no_descriptor_leaks(inside, outside):
    """0 to 2, and in a context its channel; what else is open there it has made itself."""
    found = inside("descriptors")
    opened = found["open"]
    assert found["cwd"] == "/home/user"
    assert {opened[fd]["kind"] for fd in "012"} <= {"p", "c"}
    del opened["0"], opened["1"], opened["2"]

    if inside.kind in ("context", "task"):
        assert opened.pop("3")["kind"] == "s"

    for entry in opened.values():
        assert inside.kind in ("context", "task"), entry
        assert entry["leads_to"] == "anon_inode:[eventpoll]" or entry.get("peer_pid", 0) > 0, entry

    with open("/etc/passwd", "rb") as leak:
        control = outside("descriptors", pass_fds=(leak.fileno(),))

    assert control["open"][str(leak_number(control))]["leads_to"] == "/etc/passwd"


def leak_number(control: dict) -> int:
    return next(int(fd) for fd, entry in control["open"].items() if entry["leads_to"] == "/etc/passwd")


def test_k14_the_socket_of_a_context_gives_no_hold_on_the_host(attacked):
    """A descriptor of the process at the other end can be had, and nothing can be done with it."""
    said = attacked.run(
        textwrap.dedent(
            """
            import fcntl, os, signal, socket, struct
            channel = socket.socket(fileno=os.dup(3))
            try:
                pidfd = struct.unpack("i", channel.getsockopt(socket.SOL_SOCKET, 77, 4))[0]
            except OSError as error:
                print("no pidfd")  # before Linux 6.5
            else:
                for attempt in (
                    lambda: signal.pidfd_send_signal(pidfd, 0),
                    lambda: os.listdir(f"/proc/self/fd/{pidfd}"),
                    lambda: fcntl.ioctl(pidfd, 0xFF00 + 3),  # PIDFD_GET_MNT_NAMESPACE
                ):
                    try:
                        print("ok", attempt())
                    except OSError as error:
                        print("refused", error.errno)
            print(struct.unpack("3i", channel.getsockopt(1, 17, 12))[0])
            """
        )
    ).split("\n")
    assert not [line for line in said if line.startswith("ok")]
    assert said[-2] == "0"  # the host's pid is not told

    with open(os.devnull) as file:
        pidfd = os.pidfd_open(os.getpid())
        signal.pidfd_send_signal(pidfd, 0)
        os.close(pidfd)
        assert file.readable()


def test_k15_secrets_of_the_machine_are_not_readable(inside, outside):
    """Absent, empty or denied: kernel addresses, memory, logs, keys, firmware, what init is."""
    said = inside("read_paths", SECRETS_OF_THE_MACHINE)
    told = {path: answer for path, answer in said.items() if answer and answer not in DENIED}
    assert told == {}

    environment = f"/proc/{os.getpid()}/environ"
    control = outside("read_paths", ["/proc/kallsyms", "/proc/cmdline", environment])
    assert not set(control.values()) & (DENIED | {""})


def test_k15_switches_of_the_machine_cannot_be_opened(inside, outside):
    """Nothing beneath /proc and /sys opens for writing, one's own entries included."""
    said = inside("open_for_writing", SWITCHES_OF_THE_MACHINE)
    assert set(said.values()) <= DENIED, said

    control = outside("open_for_writing", SWITCHES_OF_THE_MACHINE)
    assert {control["/proc/sys/kernel/core_pattern"], control["/proc/self/oom_score_adj"]} == {"ok"}
    assert control["/proc/sys/vm/drop_caches"] == "ok"


def test_k15_sys_and_cgroups_show_the_sandbox_alone(attacked):
    """No view of devices, of the kernel or of the control group's neighbours: /sys has the sandbox's own limits."""
    found = attacked.run(
        "import os; print(os.listdir('/proc/fs'), os.listdir('/proc/bus'))\n"
        "print(sorted(os.path.join(at, name) for at, _, names in os.walk('/sys') for name in names))"
    )
    masked, shown = found.splitlines()
    assert masked == "[] []"
    assert ast.literal_eval(shown) == [
        *(
            "/sys/devices/system/cpu/online",
            "/sys/devices/system/cpu/possible",
            "/sys/devices/system/cpu/present",
        ),
        *(
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/limits/boot_id",
            "/sys/fs/limits/meminfo",
        ),
    ]
    groups = attacked.run("print(open('/proc/self/cgroup').read())").split()
    assert {line.split(":", 2)[2] for line in groups} == {"/"}


MISSING = {
    "landlock": ("degraded", "refuse_call(444)", "landlock"),
    "cgroups": ("degraded", "hide_cgroups()", "cgroup"),
    "seccomp": (
        "refused",
        f"refuse_call({{'x86_64': 317, 'aarch64': 277}}['{os.uname().machine}'])",
        "seccomp",
    ),
    "own inodes": ("degraded", "cover_a_part_of_usr()", "own inodes"),
    "user namespaces": ("refused", "forbid_user_namespaces()", "clone"),
}
_SCRIPT = """
import json, os, struct, sys
from fumehood_jail import syscalls

def refuse_call(number):  # load nr; if equal answer ENOSYS, else allow
    steps = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7FFF0000))
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.seccomp_set_filter(b"".join(struct.pack("=HBBI", *step) for step in steps))

def hide_cgroups():
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "size=4k")

def cover_a_part_of_usr():  # what a mount hides, no overlay may show
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", "/usr/share", "tmpfs", syscalls.MS_RDONLY)

def forbid_user_namespaces():
    uid = os.geteuid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, line in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")

exec(sys.argv[1])
from fumehood import IsolationUnavailableError, Sandbox
answers = {}
for strict in (False, True):
    try:
        with Sandbox(strict=strict) as sandbox:
            layers = sandbox.get_info().isolation.missing
            answers[str(strict)] = {layer.name: layer.why for layer in layers}
    except IsolationUnavailableError as error:
        answers[str(strict)] = str(error)
print(json.dumps(answers))
"""


@pytest.mark.parametrize("missing", MISSING)
def test_k16_a_missing_layer_is_not_silent(missing, attacked):
    """Strict refuses to start and names the layer; otherwise the isolation level lists it, or nothing starts."""
    if os.geteuid() != 0:
        pytest.skip("needs root: to take a layer away")

    promised, preparation, name = MISSING[missing]
    words = [sys.executable, "-c", _SCRIPT, preparation]
    environment = {**os.environ, "FUMEHOOD_POOL_SIZE": "0"}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=60, env=environment)
    lax, strict = json.loads(done.stdout).values()
    assert isinstance(strict, str)
    assert name in strict

    if promised == "refused":
        assert isinstance(lax, str)
        assert name in lax
    else:
        assert all(why for why in lax.values())
        assert [layer for layer in lax if name in layer]
        control = {layer.name for layer in attacked.sandbox.get_info().isolation.missing}
        assert not [layer for layer in control if name in layer]


def test_k17_the_set_of_devices_is_minimal(inside, outside):
    """Null, zero, full, two of randomness and one's own terminal; no device can be made."""
    found = inside("devices", "/tmp")
    assert found["character"] == sorted(mounts.DEVICES)
    assert found["block"] == []
    assert (found["mknod character"], found["mknod block"], found["mknod fifo"]) == ("EPERM", "EPERM", "ok")

    control = outside("devices", str(outside.folder))
    assert (control["mknod character"], control["mknod block"]) == ("ok", "ok")
    assert set(control["character"]) - set(found["character"])


def test_k17_no_more_terminals_than_a_share(attacked, outside):
    """The machine has a few thousand for everybody; a sandbox gets 64."""
    opened = "import os\nmade = []\ntry:\n    while len(made) < 400: made.append(os.openpty())\nexcept OSError: pass\n"
    counted = attacked.run(opened + "print(len(made))\nfor pair in made:\n    for fd in pair: os.close(fd)")
    assert 1 <= int(counted) <= 64

    if "pty" not in os.listdir("/dev") and not os.path.exists("/dev/ptmx"):
        pytest.skip("needs root: and a machine with terminals")

    words = [sys.executable, "-c", opened.replace("400", "80") + "print(len(made))"]
    assert int(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout) == 80
