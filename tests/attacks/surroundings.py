"""The part of the attacker's program that looks beyond the kernel: files, processes and the network around it.

Beside `probe.py`, which runs it: inside a sandbox, in every kind of process, and outside.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from typing import Any

from probe import HERE, call, outcome

# -- F: the file system


def change_files(folder: str) -> dict[str, str]:
    """Tries every way of changing what lies in a folder that holds at least one file."""
    victim = next(entry.path for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
    through_root = f"/proc/self/root{victim}"
    descriptor = os.open(victim, os.O_RDONLY)
    own = os.path.join(HERE, "own")

    with open(own, "w", encoding="ascii") as file:
        file.write("mine")

    said = {
        "create": outcome(lambda: os.close(os.open(f"{folder}/new", os.O_CREAT | os.O_WRONLY))),
        "make a folder": outcome(lambda: os.mkdir(f"{folder}/new-folder")),
        "link": outcome(lambda: os.symlink("/", f"{folder}/new-link")),
        "write": outcome(lambda: os.close(os.open(victim, os.O_WRONLY))),
        "write through root": outcome(lambda: os.close(os.open(through_root, os.O_WRONLY))),
        "write through descriptor": outcome(
            lambda: os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY))
        ),
        "truncate": outcome(lambda: os.truncate(victim, os.stat(victim).st_size)),
        "chmod": outcome(lambda: os.chmod(victim, stat.S_IMODE(os.stat(victim).st_mode))),
        "chmod through descriptor": outcome(
            lambda: os.chmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode))
        ),
        "times": outcome(lambda: os.utime(victim)),
        "attribute": outcome(lambda: os.setxattr(victim, "user.x", b"y")),
        "rename over": outcome(lambda: os.rename(own, f"{folder}/own")),
        "rename": outcome(lambda: os.rename(victim, f"{victim}.gone")),
        "remove": outcome(
            lambda: os.unlink(f"{victim}.gone" if os.path.exists(f"{victim}.gone") else victim)
        ),
    }
    os.close(descriptor)
    return said


# -- P: processes


def other_processes(foreign: list[int]) -> dict[str, Any]:
    visible = [name for name in os.listdir("/proc") if name.isdigit()]

    with open("/proc/1/cmdline", "rb") as file:
        init = file.read().split(b"\0")[0].decode()

    strangers = [pid for pid in foreign if str(pid) not in visible or not _is_inside()]
    return {
        "visible": len(visible),
        "init": init,
        "signal": {str(pid): outcome(lambda pid=pid: os.kill(pid, 0)) for pid in strangers},
        "pidfd": {str(pid): outcome(lambda pid=pid: os.close(os.pidfd_open(pid))) for pid in strangers},
    }


def _is_inside() -> bool:
    return os.path.isdir("/opt/fumehood")


def signal_init() -> dict[str, str]:
    """Sends every signal to process 1 by every call there is."""
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


def environments() -> dict[str, str]:
    found = {"own": str(dict(os.environ))}

    for name in os.listdir("/proc"):
        if name.isdigit():
            for file_name in ("environ", "cmdline"):
                try:
                    with open(f"/proc/{name}/{file_name}", "rb") as file:
                        found[f"{name}/{file_name}"] = file.read().decode("utf-8", "replace")
                except OSError:
                    continue

    return found


def reach(names: list[str], key: int, segment: int) -> dict[str, str]:
    """Connects to UNIX sockets, and attaches System V shared memory."""
    said = {}

    for name in names:
        with socket.socket(socket.AF_UNIX) as sock:
            said[name] = outcome(lambda sock=sock, name=name: sock.connect(name))

    said["segment by key"] = call("shmget", key, 0, 0)
    said["segment by number"] = call("shmat", segment, 0, 0)
    return said


# -- N: the network


def go_out(targets: list[list[Any]]) -> dict[str, Any]:
    """Connects or sends to each; returns what the kernel said and after how many seconds."""
    said = {}

    for kind, address, port in targets:
        started = time.monotonic()
        answer = outcome(lambda target=(kind, address, port): _send(*target))
        said[f"{kind} {address}"] = (answer, time.monotonic() - started)

    return said


def _send(kind: str, address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)

        if kind == "tcp":
            sock.connect((address, port))
        else:
            sock.sendto(b"x", (address, port))


def interfaces() -> dict[str, Any]:
    with open("/proc/net/route", encoding="ascii") as file:
        routes = [line.split()[0] for line in file.readlines()[1:]]

    names = [name for _, name in socket.if_nameindex()] if _allows_netlink() else _names_without_netlink()
    return {
        "names": names,
        "routes": routes,
        "netlink": "ok" if _allows_netlink() else outcome(lambda: socket.socket(16, 3, 0)),
    }


def _allows_netlink() -> bool:
    return outcome(lambda: socket.socket(16, 3, 0).close()) == "ok"


def _names_without_netlink() -> list[str]:
    with open("/proc/net/dev", encoding="ascii") as file:
        return [line.split(":")[0].strip() for line in file.readlines()[2:]]
