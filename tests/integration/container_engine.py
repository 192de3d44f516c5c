"""Stands for the program `docker` where there is none: it runs a command with what the options leave of root.

Of an engine it imitates what decides whether sandboxes can start: capabilities, the filter of system calls (Docker's
own profile as far as namespaces and mounts are concerned, or the one that is given), a masked or unmasked /proc,
namespaces for processes, mounts, IPC and names, and an environment of its own. Not imitated are the image, AppArmor,
the container's network and its control groups.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(os.environ["CONTAINERS"])
# As `runc` masks them unless told otherwise.
MASKED = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi", "/sys/firmware")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
# What Docker's profile refuses to those who lack CAP_SYS_ADMIN, of what sandboxes are made with.
REFUSED = (
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "fsopen",
    "fsmount",
    "move_mount",
    "open_tree",
)
NAMESPACES = 0x7E020000
EPERM, ENOSYS = 1, 38


def main(words: list[str]) -> int:
    """Obeys `docker VERB ...`."""
    verb, *others = words

    if verb == "image":
        return 1

    if verb == "build":
        (HERE / "Dockerfile").write_text(sys.stdin.read())
        return 0

    if verb == "run":
        return run(others)

    if verb == "exec":
        return execute(others[1:])

    if verb == "inspect":
        print(0 if is_alive() else 1)
        return 0

    if verb == "rm":
        os.killpg(int((HERE / "pid").read_text()), signal.SIGKILL)
        return 0

    print((HERE / "log").read_text())
    return 0


def run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)

    for flag in ("--detach", "--init"):
        parser.add_argument(flag, action="store_true")

    for name in (
        "--restart",
        "--stop-timeout",
        "--name",
        "--publish",
        "--volume",
        "--pids-limit",
        "--ulimit",
    ):
        parser.add_argument(name)

    for name in ("--cap-drop", "--cap-add", "--security-opt", "--env"):
        parser.add_argument(name, action="append", default=[])

    parser.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    envs = {"PATH": os.environ["PATH"], "CONTAINERS": str(HERE), "FUMEHOOD_STATE_FOLDER": str(HERE / "state")}

    for pair in given.env:
        name, equals, value = pair.partition("=")
        envs[name] = value if equals else os.environ[name]

    without = os.environ.get("WITHOUT", "")
    security = dict(option.partition("=")[::2] for option in given.security_opt)
    security.pop(without, None)
    made = {"envs": envs, "security": security, "caps": given.cap_add}
    (HERE / "container").write_text(json.dumps(made))

    with open(HERE / "log", "w") as log:
        process = subprocess.Popen(
            confined(["fumehood", *given.words[1:]], made),
            env=envs,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    (HERE / "pid").write_text(str(process.pid))
    return 0


def execute(words: list[str]) -> int:
    """Runs a program as confined as the container, in namespaces of its own."""
    made = json.loads((HERE / "container").read_text())
    return subprocess.run(confined(words, made), env=made["envs"], check=False).returncode


def confined(words: list[str], made: dict[str, Any]) -> list[str]:
    """Returns a command with what is left of root around it."""
    setup = ["set -e", "mount --make-rprivate /", "mount -t proc proc /proc"]

    if made["security"].get("systempaths") != "unconfined":
        setup += [f"mount --bind /dev/null {path}" for path in MASKED if os.path.isfile(path)]
        setup += [f"mount -t tmpfs -o ro none {path}" for path in MASKED if os.path.isdir(path)]
        setup += [
            f"mount --bind {path} {path}; mount -o remount,bind,ro {path}"
            for path in READ_ONLY
            if os.path.exists(path)
        ]

    bounds = ",".join(["-all", *(f"+{name.lower()}" for name in made["caps"])])
    profile = made["security"].get("seccomp", "")
    start = [sys.executable, __file__, "start", profile, *words]
    setup.append(f"exec setpriv --bounding-set {bounds} --inh-caps -all {shlex.join(start)}")
    spaces = ("--mount", "--pid", "--fork", "--ipc", "--uts", "--kill-child")
    return ["unshare", *spaces, "sh", "-c", "\n".join(setup)]


def start(profile: str, words: list[str]) -> None:
    """Loads the filter and becomes the program of the image."""
    from fumehood_jail import seccomp, syscalls

    table = json.loads(Path(seccomp.POLICIES, f"syscalls_{platform.machine()}.json").read_text())
    load, jump_equal, jump_any, answer = 0x20, 0x15, 0x45, 0x06
    allow = (answer, 0, 0, 0x7FFF0000)
    code = [(load, 0, 0, 0)]

    if profile:
        (rule,) = json.loads(Path(profile).read_text())["syscalls"]
        refused = dict.fromkeys(rule["names"], rule["errnoRet"])
    else:
        refused = {**dict.fromkeys(REFUSED, EPERM), "clone3": ENOSYS}

    for name, number in refused.items():
        if name in table:
            code += [(jump_equal, 0, 1, table[name]), (answer, 0, 0, 0x00050000 | number)]

    if not profile:
        code += [(jump_equal, 0, 3, table["clone"]), (load, 0, 0, 16), (jump_any, 0, 1, NAMESPACES)]
        code += [(answer, 0, 0, 0x00050000 | EPERM)]

    code.append(allow)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.load(b"".join(struct.pack("=HBBI", *instruction) for instruction in code))
    os.execvp(words[0], words)


def is_alive() -> bool:
    try:
        os.kill(int((HERE / "pid").read_text()), signal.SIG_BLOCK)
    except ProcessLookupError:
        return False

    return True


if __name__ == "__main__":
    if sys.argv[1] == "start":
        start(sys.argv[2], sys.argv[3:])

    sys.exit(main(sys.argv[1:]))
