"""The surroundings of a process: files, other processes and the network.

A part of the program `attack`, which runs in a sandbox, in every kind of process, and outside. It needs only the
standard library. `change_files` removes the files it finds: it is for folders that are read-only or of no value;
`open_system` restores everything.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from typing import Any

from .calls import HERE, apart, call, open_and_close, outcome

COMMON_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")

# -- F: the file system


def change_files(folder: str) -> dict[str, str]:
    """Tries every way of changing files in a folder that holds at least one."""
    victim = next(entry.path for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
    through_root = f"/proc/self/root{victim}"
    descriptor = os.open(victim, os.O_RDONLY)
    own = os.path.join(HERE, "own")

    with open(own, "w", encoding="ascii") as file:
        file.write("mine")

    said = {
        "create": outcome(open_and_close, f"{folder}/new", os.O_CREAT | os.O_WRONLY),
        "make a folder": outcome(os.mkdir, f"{folder}/new-folder"),
        "link": outcome(os.symlink, "/", f"{folder}/new-link"),
        "write": outcome(open_and_close, victim, os.O_WRONLY),
        "write through root": outcome(open_and_close, through_root, os.O_WRONLY),
        "write through descriptor": outcome(open_and_close, f"/proc/self/fd/{descriptor}", os.O_WRONLY),
        "truncate": outcome(os.truncate, victim, os.stat(victim).st_size),
        "chmod": outcome(os.chmod, victim, stat.S_IMODE(os.stat(victim).st_mode)),
        "chmod through descriptor": outcome(os.chmod, descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode)),
        "times": outcome(os.utime, victim),
        "attribute": outcome(os.setxattr, victim, "user.x", b"y"),
        "rename over": outcome(os.rename, own, f"{folder}/own"),
        "rename": outcome(os.rename, victim, f"{victim}.gone"),
        "remove": outcome(
            lambda: os.unlink(f"{victim}.gone" if os.path.exists(f"{victim}.gone") else victim)
        ),
    }
    os.close(descriptor)
    return said


def open_system(folders: list[str]) -> dict[str, str]:
    """Try to change folders, harmlessly: files are opened and closed, names made and removed."""
    said = {}

    for folder in folders:
        victim = next(
            (entry.path for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)), ""
        )
        name = f"{folder}/fumehood-{os.getpid()}"
        said[f"create in {folder}"] = outcome(_make, name)
        said[f"make a folder in {folder}"] = outcome(_make_folder, name)
        said[f"link in {folder}"] = outcome(_make_link, name)

        for way in (victim, f"/proc/self/root{victim}"):
            if victim:
                said[f"write {way}"] = outcome(open_and_close, way, os.O_WRONLY)

        if victim:
            said[f"write {victim} through a descriptor"] = outcome(_reopen, victim)
            said[f"chmod {victim}"] = outcome(os.chmod, victim, stat.S_IMODE(os.stat(victim).st_mode))

    return said


def _make(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink(path)


def _make_folder(path: str) -> None:
    os.mkdir(path)
    os.rmdir(path)


def _make_link(path: str) -> None:
    os.symlink("/", path)
    os.unlink(path)


def _reopen(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY))
    finally:
        os.close(descriptor)


def unbounded_mounts() -> dict[str, str]:
    """Return writable mounts that allow set-uid programs or devices, or have no size."""
    said = {}

    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        lines = [line.split() for line in file if line.strip()]

    for line in lines:
        place, options, after = line[4], set(line[5].split(",")), line[line.index("-") + 1 :]

        if "rw" not in options or (place.startswith(("/proc", "/dev/")) and place != "/dev/shm"):
            continue

        lacking = {"nosuid", "nodev"} - options
        lacking |= set() if "size=" in after[2] else {"size"}

        if lacking:
            said[place] = ", ".join(sorted(lacking))

    return said


def words_of_the_host(words: list[str]) -> dict[str, str]:
    """Search for words in the environment, paths of modules, command lines, memory maps and the system's files."""
    import sys

    texts = {
        "paths": repr((sys.path, sys.prefix, sys.executable, sys.argv)),
        "modules": repr([getattr(module, "__file__", "") for module in list(sys.modules.values())]),
        "name": repr(tuple(os.uname())),
    }

    for path in ("/proc/self/environ", "/proc/self/cmdline", "/proc/self/maps", "/etc/passwd", "/etc/hosts"):
        try:
            with open(path, "rb") as file:
                texts[path] = file.read(1 << 20).decode("utf-8", "replace")
        except OSError:
            continue

    return {f"{word} in {name}": "ok" for name, text in texts.items() for word in words if word in text}


# -- P: processes


def other_processes(foreign: list[int]) -> dict[str, Any]:
    """Search for processes, and signal and open those of the host."""
    visible = [name for name in os.listdir("/proc") if name.isdigit()]

    with open("/proc/1/cmdline", "rb") as file:
        init = file.read().split(b"\0")[0].decode()

    foreign_processes = [pid for pid in foreign if str(pid) not in visible or not _is_inside()]
    return {
        "visible": len(visible),
        "init": init,
        "signal": {str(pid): outcome(os.kill, pid, 0) for pid in foreign_processes},
        "pidfd": {str(pid): outcome(_open_process, pid) for pid in foreign_processes},
    }


def _open_process(pid: int) -> None:
    os.close(os.pidfd_open(pid))


def _is_inside() -> bool:
    return os.path.isdir("/opt/fumehood")


def signal_init() -> dict[str, str]:
    """Sends every signal to process 1 by every system call for signals."""
    init = os.pidfd_open(1)
    information = struct.pack("=iii", 0, 0, -1) + bytes(116)  # si_code SI_QUEUE
    said = {}

    for value in range(1, 65):
        said[f"kill {value}"] = call("kill", 1, value)
        said[f"tgkill {value}"] = call("tgkill", 1, 1, value)
        said[f"tkill {value}"] = call("tkill", 1, value)
        said[f"sigqueue {value}"] = call("rt_sigqueueinfo", 1, value, information)
        said[f"tgsigqueue {value}"] = call("rt_tgsigqueueinfo", 1, 1, value, information)
        said[f"pidfd {value}"] = call("pidfd_send_signal", init, value, 0, 0)

    os.close(init)
    return said


def stay_behind(mark: str) -> str:
    """Leave a process in another session that ignores signals; it ends by itself after a minute."""
    import signal
    import subprocess
    import sys

    code = (
        "import os, signal, time\n"
        "for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "os.closerange(0, 64)\n"
        "time.sleep(60)\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code, mark], check=True)
    return signal.Signals.SIGTERM.name


def environments() -> dict[str, str]:
    """Read the environment and the command line of every process that can be read."""
    found = {"own": str(dict(os.environ))}
    pids = [name for name in os.listdir("/proc") if name.isdigit()]

    for path in (f"{pid}/{name}" for pid in pids for name in ("environ", "cmdline")):
        try:
            with open(f"/proc/{path}", "rb") as file:
                found[path] = file.read().decode("utf-8", "replace")
        except OSError:
            continue

    return found


def words_in_processes(words: list[str]) -> dict[str, str]:
    """Search for words in the environment of every process that can be read."""
    return {name: "ok" for name, text in environments().items() if any(word in text for word in words)}


def reach(names: list[str], key: int = 0, segment: int = -1) -> dict[str, str]:
    """Connects to UNIX sockets, and attaches System V shared memory."""
    said = {}

    for name in names:
        with socket.socket(socket.AF_UNIX) as sock:
            said[name] = outcome(sock.connect, name)

    if segment >= 0:
        said["segment by key"] = call("shmget", key, 0, 0)
        said["segment by number"] = call("shmat", segment, 0, 0)

    return said


# -- T: neighbours


def leave(name: str) -> dict[str, str]:
    """Leave files of this name in every world-writable folder."""
    return {folder: outcome(_touch, f"{folder}/{name}") for folder in COMMON_FOLDERS}


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def find(name: str) -> dict[str, str]:
    """Search for files of this name, and remove them."""
    return {folder: outcome(os.unlink, f"{folder}/{name}") for folder in COMMON_FOLDERS}


def draw() -> dict[str, str]:
    """Draw random values from every source that should differ between two sandboxes."""
    import random
    import secrets
    import uuid

    return {
        "urandom": os.urandom(8).hex(),
        "random": str(random.random()),
        "uuid4": str(uuid.uuid4()),
        "uuid1": str(uuid.uuid1()),
        "secrets": secrets.token_hex(8),
        "hash seed": str(hash("fumehood")),
        "addresses": str(id(os)),
    }


def draw_in_forks() -> list[dict[str, str]]:
    """Draw random values in two forks of one process, without a reseed."""
    draw()
    return [apart(draw), apart(draw)]


# -- N: the network


def go_out(targets: list[list[Any]], patience_seconds: float = 5) -> dict[str, Any]:
    """Connect or send to each address; return the kernel's result and the seconds it took."""
    said = {}

    for kind, address, port in targets:
        started = time.monotonic()
        answer = outcome(_send, kind, address, port, patience_seconds)
        said[f"{kind} {address}"] = (answer, time.monotonic() - started)

    return said


def _send(kind: str, address: str, port: int, patience_seconds: float) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as sock:
        sock.settimeout(patience_seconds)

        if kind == "tcp":
            sock.connect((address, port))
        else:
            sock.sendto(b"x", (address, port))


def interfaces() -> dict[str, Any]:
    """Return the names of all interfaces, the routes, and whether netlink can be used for them."""
    with open("/proc/net/route", encoding="ascii") as file:
        routes = [line.split()[0] for line in file.readlines()[1:]]

    names = [name for _, name in socket.if_nameindex()] if _allows_netlink() else _names_without_netlink()
    return {
        "names": names,
        "routes": routes,
        "netlink": "ok" if _allows_netlink() else outcome(socket.socket, 16, 3, 0),
    }


def _allows_netlink() -> bool:
    return outcome(_ask_the_kernel) == "ok"


def _ask_the_kernel() -> None:
    socket.socket(16, 3, 0).close()


def _names_without_netlink() -> list[str]:
    with open("/proc/net/dev", encoding="ascii") as file:
        return [line.split(":")[0].strip() for line in file.readlines()[2:]]
