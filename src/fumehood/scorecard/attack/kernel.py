"""K01 to K17: system calls that the kernel permits a process, and its terminals, descriptors, /proc, /sys and devices.

A part of the program `attack`, which runs in a sandbox, in every kind of process, and outside. An attempt is harmless
where it succeeds: calls that act on the whole machine are made with arguments that the kernel refuses after its
permission check, and files are opened for writing and closed again, never written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import signal
import socket
import stat
import struct
import termios
import threading
from typing import Any

from .calls import (
    BAD_POINTER,
    HERE,
    apart,
    buffer,
    call,
    clone,
    number,
    numbers,
    open_and_close,
    outcome,
    run_machine_code,
)

NAMESPACE_FLAGS = {
    "user": 0x10000000,
    "mnt": 0x00020000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "cgroup": 0x02000000,
    "time": 0x00000080,
}


def privileges() -> dict[str, Any]:
    """Return the privileges of this process and of a new thread by /proc."""

    def read(path: str) -> dict[str, str]:
        with open(path, encoding="ascii", errors="replace") as file:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}

    wanted = (
        "NoNewPrivs",
        "Seccomp",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "Uid",
        "Gid",
        "Groups",
    )
    found: dict[str, Any] = {}

    def look(name: str) -> None:
        status = read(f"/proc/self/task/{threading.get_native_id()}/status")
        found[name] = {field: status[field] for field in wanted}

    look("process")
    thread = threading.Thread(target=look, args=("thread",))
    thread.start()
    thread.join()

    with open("/proc/self/uid_map", encoding="ascii") as file:
        found["uid_map"] = file.read().split()

    _, effective, saved = os.getresuid()
    found["id in reserve"] = "none" if saved == effective else apart(outcome, os.setresuid, -1, saved, -1)
    return found


def namespaces() -> dict[str, str]:
    """Try to make new namespaces by every call, and to enter existing ones."""
    links = {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACE_FLAGS}
    said = {f"unshare {name}": apart(call, "unshare", flag) for name, flag in NAMESPACE_FLAGS.items()}

    for name, flag in NAMESPACE_FLAGS.items():
        if name != "time":  # its bit belongs to the exit signal of clone
            said[f"clone {name}"] = clone(flag | signal.SIGCHLD)

    said["clone parent"] = clone(0x8000 | signal.SIGCHLD)
    said["clone3"] = call("clone3", BAD_POINTER, 64)

    for name in ("mnt", "net", "uts"):
        fd = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
        said[f"setns {name}"] = apart(call, "setns", fd, 0)
        os.close(fd)

    said["unchanged"] = str({name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACE_FLAGS} == links)
    return said


MOUNT_CALLS = {
    "mount": (BAD_POINTER, BAD_POINTER, BAD_POINTER, 0, 0),
    "umount2": (BAD_POINTER, 0),
    "pivot_root": (BAD_POINTER, BAD_POINTER),
    "chroot": (BAD_POINTER,),
    "fsopen": (BAD_POINTER, 0),
    "fsconfig": (-1, 0, 0, 0, 0),
    "fsmount": (-1, 0, 0),
    "fspick": (-1, BAD_POINTER, 0),
    "open_tree": (-1, BAD_POINTER, 0),
    "move_mount": (-1, BAD_POINTER, -1, BAD_POINTER, 0),
    "mount_setattr": (-1, BAD_POINTER, 0, BAD_POINTER, 32),
    "statmount": (BAD_POINTER, BAD_POINTER, 0, 0),
    "listmount": (BAD_POINTER, BAD_POINTER, 0, 0),
}
IO_URING_CALLS = {
    "io_uring_setup": (1, BAD_POINTER),
    "io_uring_enter": (-1, 0, 0, 0, 0, 0),
    "io_uring_register": (-1, 0, 0, 0),
}
EXOTIC_CALLS = {
    "bpf": (0, BAD_POINTER, 48),
    "perf_event_open": (BAD_POINTER, 0, -1, -1, 0),
    "userfaultfd": (0,),
    "fanotify_init": (0, 0),
    "kcmp": (1, 1, 0, 0, 0),
    "memfd_secret": (0,),
    "vmsplice": (-1, 0, 0, 0),
    "seccomp": (1, 0, BAD_POINTER),
    "mbind": (0, 0, 99, 0, 0, 0),
    "move_pages": (0, 0, 0, 0, 0, 0),
}
KEYRING_CALLS = {
    "add_key": (BAD_POINTER, BAD_POINTER, 0, 0, 0),
    "request_key": (BAD_POINTER, BAD_POINTER, 0, 0),
    "keyctl": (0, -3, 0, 0, 0),
}
MACHINE_CALLS = {
    "init_module": (BAD_POINTER, 0, BAD_POINTER),
    "finit_module": (-1, BAD_POINTER, 0),
    "delete_module": (BAD_POINTER, 0),
    "kexec_load": (0, 10_000, BAD_POINTER, 0),
    "reboot": (0, 0, 0, 0),
    "swapon": (BAD_POINTER, 0),
    "swapoff": (BAD_POINTER,),
    "acct": (BAD_POINTER,),
    "quotactl": (BAD_POINTER, BAD_POINTER, 0, 0),
    "quotactl_fd": (-1, 0, 0, 0),
    "settimeofday": (BAD_POINTER, 0),
    "clock_settime": (0, BAD_POINTER),
    "clock_adjtime": (0, BAD_POINTER),
    "adjtimex": (BAD_POINTER,),
    "iopl": (99,),
    "ioperm": (1 << 20, 1, 1),
    "syslog": (99, 0, 0),
    "sethostname": (BAD_POINTER, 4),
    "setdomainname": (BAD_POINTER, 4),
}
PAGE_CACHE_CALLS = {"splice": (-1, 0, -1, 0, 0, 0), "tee": (-1, -1, 1, 0), "syncfs": (-1,)}


def calls(table: str) -> dict[str, str]:
    """Make the calls of one table of this module."""
    return {name: call(name, *arguments) for name, arguments in globals()[table].items()}


def real_mounts() -> dict[str, str]:
    """Mount and unmount with valid arguments, and check whether the table of mounts has changed."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        before = file.read()

    mount_point = os.path.join(HERE, "here")
    os.makedirs(mount_point, exist_ok=True)
    said: dict[str, str] = apart(_mount_and_unmount, mount_point.encode() + b"\0")

    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        said["unchanged"] = str(file.read() == before)

    return said


def _mount_and_unmount(here: bytes) -> dict[str, str]:
    return {
        "tmpfs": call("mount", b"none\0", here, b"tmpfs\0", 0, b"size=4k\0"),
        "unmount": call("umount2", here, 0),
        "bind": call("mount", b"/proc\0", here, 0, 4096, 0),
        "unmount proc": call("umount2", here, 2),
    }


def other_memory(pid: int) -> dict[str, str]:
    """Try to read another process: by tracing, process_vm_readv, and in /proc."""
    (_own, own), (_there, there) = buffer(b"secret", 8), buffer(b"", 8)
    local, remote = (struct.pack("=QQ", address, 8) for address in (there, own))
    said = {
        "ptrace": apart(call, "ptrace", 0, 0, 0, 0),
        "process_vm_readv": call("process_vm_readv", os.getpid(), local, 1, remote, 1, 0),
        "process_vm_writev": call("process_vm_writev", os.getpid(), local, 1, remote, 1, 0),
        "pidfd_getfd": call("pidfd_getfd", -1, 0, 0),
        "process_madvise": call("process_madvise", -1, 0, 0, 0, 0),
    }

    for name in ("mem", "ns/mnt"):
        said[f"/{name}"] = outcome(open_and_close, f"/proc/{pid}/{name}", os.O_RDONLY)

    for name in ("environ", "maps", "auxv", "stack", "syscall"):
        said[f"/{name}"] = outcome(_read_byte, f"/proc/{pid}/{name}")

    for name in ("fd", "root"):
        said[f"/{name}"] = outcome(os.listdir, f"/proc/{pid}/{name}")

    said["/fd/0"] = outcome(os.readlink, f"/proc/{pid}/fd/0")
    return said


def _read_byte(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.read(fd, 1)
    finally:
        os.close(fd)


def file_handles() -> dict[str, str]:
    """Open a file by its handle, and by a forged one."""
    (_handle, handle), (_mount_id, mount_id) = buffer(struct.pack("=II", 128, 0), 136), buffer(b"", 8)
    crafted = struct.pack("=IIQ", 8, 1, 2)  # type FILEID_INO32_GEN, inode 2: the root of an ext4
    folder = os.open(HERE, os.O_RDONLY)
    said = {
        "name": call("name_to_handle_at", folder, b"\0", handle, mount_id, 0x1000),
        "open": call("open_by_handle_at", folder, handle, os.O_RDONLY),
        "crafted": call("open_by_handle_at", folder, crafted, os.O_RDONLY),
    }
    os.close(folder)
    return said


def socket_families() -> dict[str, str]:
    """Open a socket of each family and kind, and attach a filter program to one."""
    said = {}

    for family in range(46):
        for kind in (1, 2, 3, 4, 5, 10):
            said[f"{family}/{kind}"] = outcome(_open_socket, family, kind, 0)

    said["mptcp"] = outcome(_open_socket, 2, 1, 262)
    said["sctp"] = outcome(_open_socket, 2, 1, 132)
    said["raw"] = outcome(_open_socket, 2, 3, 1)
    said["ping"] = outcome(_open_socket, 2, 2, 1)
    pair = socket.socketpair()
    program = struct.pack("=HxxxxxxQ", 1, BAD_POINTER)
    said["classic filter"] = outcome(pair[0].setsockopt, 1, 26, program)
    said["bpf filter"] = outcome(pair[0].setsockopt, 1, 50, struct.pack("=i", -1))

    with socket.socket() as tcp:
        said["kernel tls"] = outcome(tcp.setsockopt, 6, 31, b"tls")

    return said


def _open_socket(family: int, kind: int, protocol: int) -> None:
    socket.socket(family, kind, protocol).close()


def foreign_abis() -> dict[str, str]:
    """Call by other tables of system calls, and weaken the memory protection of this process."""
    said = {
        "read implies exec": apart(call, "personality", 0x0400000),
        "no randomization": apart(call, "personality", 0x0040000),
        "query": call("personality", 0xFFFFFFFF),
    }

    if platform.machine() == "x86_64":
        said["x32"] = apart(number, 0x40000000 + 39)
        said["int 80"] = apart(_through_int_80)

    return said


def _through_int_80() -> str:
    """Call getpid by its number in the 32-bit table, with `int 0x80`; return "ok" if that works."""
    code = bytes.fromhex("53b814000000cd805bc3")  # push rbx; mov eax, 20; int 0x80; pop rbx; ret
    return "ok" if run_machine_code(code) == os.getpid() else "strange"


def declared_calls(declared: dict[str, str]) -> dict[str, str]:
    """Make every call that a policy refuses, and every unknown number, with invalid arguments.

    Args:
        declared: The errno that the policy returns for each call, by name.

    Returns:
        The calls with another result, and the result.
    """
    said = {name: apart(call, name, *[-1] * 6) for name in declared if name in numbers()}
    wrong = {name: answer for name, answer in said.items() if answer != declared[name]}
    known = set(numbers().values())

    for unknown in sorted(set(range(1024)) - known):
        answer = number(unknown, *[-1] * 6)

        if answer != "ENOSYS":
            wrong[str(unknown)] = answer

    return wrong


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
    """Read the beginning of each file: "" for an empty file, the errno, or the content."""
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
    """Open each file for writing, and close it."""
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
