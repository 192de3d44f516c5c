"""K13 to K17: a process's view of the machine: terminals, descriptors, /proc, /sys and devices.

A part of the program `attack`, which runs in a sandbox, in every kind of process, and outside. Files are opened for
writing and closed again, never written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
import termios
from typing import Any

from .calls import apart, open_and_close, outcome


def terminals() -> dict[str, str]:
    """Inject input into a terminal of its own, and search for a controlling one."""
    said = {"/dev/tty": outcome(open_and_close, "/dev/tty", os.O_RDWR | os.O_NOCTTY)}

    def type_into_own() -> dict[str, str]:
        os.setsid()
        _, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        return {
            "TIOCSTI": outcome(fcntl.ioctl, slave, termios.TIOCSTI, b"x"),
            "TIOCSETD": outcome(fcntl.ioctl, slave, termios.TIOCSETD, struct.pack("i", 0)),
            "TIOCLINUX": outcome(fcntl.ioctl, slave, 0x541C, b"\x06"),
            "TIOCCONS": outcome(fcntl.ioctl, os.open("/dev/null", os.O_RDWR), 0x541D),
        }

    return {**said, **apart(type_into_own)}


def descriptors() -> dict[str, Any]:
    """List all open descriptors, their targets and their owners."""
    found: dict[str, Any] = {}

    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode
        except OSError:
            continue  # the one of this listing itself

        found[name] = {"kind": stat.filemode(mode)[0], "leads_to": os.readlink(f"/proc/self/fd/{name}")}

        if stat.S_ISSOCK(mode):
            with socket.socket(fileno=os.dup(int(name))) as sock:
                credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)

            found[name]["peer_pid"] = struct.unpack("3i", credentials)[0]

    return {"open": found, "cwd": os.getcwd()}


def read_paths(paths: list[str]) -> dict[str, str]:
    """Read the beginning of each: "" for an empty file, the errno, or the content."""
    said = {}

    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                said[path] = os.read(fd, 64).decode("latin-1")
            finally:
                os.close(fd)
        except OSError as error:
            said[path] = errno.errorcode[error.errno or 0]

    return said


def open_for_writing(paths: list[str]) -> dict[str, str]:
    """Open each for writing, and close it."""
    return {path: outcome(open_and_close, path, os.O_WRONLY) for path in paths}


def devices(folder: str) -> dict[str, Any]:
    """List the devices, and try to make one."""
    kinds = {name: stat.filemode(os.lstat(f"/dev/{name}").st_mode)[0] for name in os.listdir("/dev")}
    null = os.makedev(1, 3)
    return {
        "character": sorted(name for name, kind in kinds.items() if kind == "c"),
        "block": sorted(name for name, kind in kinds.items() if kind == "b"),
        "mknod character": outcome(_make_and_remove, f"{folder}/made", stat.S_IFCHR, null),
        "mknod block": outcome(_make_and_remove, f"{folder}/made", stat.S_IFBLK, os.makedev(7, 0)),
        "mknod fifo": outcome(_make_and_remove, f"{folder}/made", stat.S_IFIFO, 0),
    }


def _make_and_remove(path: str, kind: int, device: int) -> None:
    os.mknod(path, kind | 0o600, device)
    os.unlink(path)
