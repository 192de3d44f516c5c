"""The attacker's program: tries one kind of attack and prints what the kernel said, as JSON.

The same file runs inside a sandbox, in every kind of process, and outside, where the positive control must show that
the attack works. It needs the standard library only. What it tries is harmless where it succeeds: calls that act on
the whole machine are made with arguments that the kernel refuses after it has let the caller in.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import signal
import socket
import stat
import struct
import sys
import termios
import threading
from collections.abc import Callable
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
BAD_POINTER = 1
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
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_numbers: dict[str, int] = {}


def call(name: str, *arguments: Any) -> str:
    """Makes a system call by name; returns "ok" or the name of the errno."""
    if not _numbers:
        with open(f"{HERE}/numbers.json", encoding="ascii") as file:
            _numbers.update(json.load(file))

    if name not in _numbers:
        return "ENOSYS"

    return number(_numbers[name], *arguments)


def number(number: int, *arguments: Any) -> str:
    """Makes a system call by number."""
    words = [argument if isinstance(argument, bytes) else ctypes.c_long(argument) for argument in arguments]
    result = _libc.syscall(ctypes.c_long(number), *words)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else "ok"


def outcome(attempt: Callable[[], Any]) -> str:
    """Returns "ok", or the name of the errno that the attempt raised."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))

    return "ok"


def apart(function: Callable[[], Any]) -> Any:
    """Runs a function in a forked child, as what it tries cannot be undone; a death becomes "signal N"."""
    read_end, write_end = os.pipe()
    pid = os.fork()

    if pid == 0:
        try:
            os.write(write_end, json.dumps(function()).encode())
        finally:
            os._exit(0)

    os.close(write_end)
    with open(read_end, "rb") as file:
        answer = file.read()

    _, status = os.waitpid(pid, 0)
    return json.loads(answer) if answer else f"signal {os.WTERMSIG(status)}"


# -- K: the kernel


def privileges() -> dict[str, Any]:
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

    return found


def namespaces() -> dict[str, str]:
    links = {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACE_FLAGS}
    said = {
        f"unshare {name}": apart(lambda flag=flag: call("unshare", flag))
        for name, flag in NAMESPACE_FLAGS.items()
    }

    for name, flag in NAMESPACE_FLAGS.items():
        if name != "time":  # its bit belongs to the exit signal of clone
            said[f"clone {name}"] = _clone(flag | signal.SIGCHLD)

    said["clone parent"] = _clone(0x8000 | signal.SIGCHLD)
    said["clone3"] = call("clone3", BAD_POINTER, 64)

    for name in ("mnt", "net", "uts"):
        fd = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
        said[f"setns {name}"] = apart(lambda fd=fd: call("setns", fd, 0))
        os.close(fd)

    said["unchanged"] = str({name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACE_FLAGS} == links)
    return said


def _clone(flags: int) -> str:
    """A raw clone whose child leaves at once."""
    if not _numbers:
        call("getpid")

    pid = _libc.syscall(ctypes.c_long(_numbers["clone"]), ctypes.c_long(flags), 0, 0, 0, 0)

    if pid == 0:
        _libc._exit(0)

    if pid == -1:
        return errno.errorcode[ctypes.get_errno()]

    if not flags & 0x8000:
        os.waitpid(pid, 0)

    return "ok"


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
    return {name: call(name, *arguments) for name, arguments in globals()[table].items()}


def real_mounts() -> dict[str, str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        before = file.read()

    mount_point = os.path.join(HERE, "here")
    os.makedirs(mount_point, exist_ok=True)
    here = mount_point.encode()
    said = apart(lambda: {
        "tmpfs": call("mount", b"none\0", here + b"\0", b"tmpfs\0", 0, b"size=4k\0"),
        "unmount": call("umount2", here + b"\0", 0),
        "bind": call("mount", b"/proc\0", here + b"\0", 0, 4096, 0),
        "unmount proc": call("umount2", here + b"\0", 2),
    })  # fmt: skip

    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        said["unchanged"] = str(file.read() == before)

    return said


def other_memory(pid: int) -> dict[str, str]:
    own = ctypes.create_string_buffer(b"secret", 8)
    there = ctypes.create_string_buffer(8)
    local, remote = (struct.pack("=QQ", ctypes.addressof(each), 8) for each in (there, own))
    said = {
        "ptrace": apart(lambda: call("ptrace", 0, 0, 0, 0)),
        "process_vm_readv": call("process_vm_readv", os.getpid(), local, 1, remote, 1, 0),
        "process_vm_writev": call("process_vm_writev", os.getpid(), local, 1, remote, 1, 0),
        "pidfd_getfd": call("pidfd_getfd", -1, 0, 0),
        "process_madvise": call("process_madvise", -1, 0, 0, 0, 0),
    }

    for name in ("mem", "environ", "maps", "auxv", "stack", "syscall", "fd", "root", "ns/mnt"):
        opener = os.listdir if name in ("fd", "root") else lambda path: os.close(os.open(path, os.O_RDONLY))
        said[f"/{name}"] = outcome(lambda name=name, opener=opener: opener(f"/proc/{pid}/{name}"))

    return said


def file_handles() -> dict[str, str]:
    handle = ctypes.create_string_buffer(struct.pack("=II", 128, 0) + bytes(128), 136)
    mount_id = ctypes.c_int()
    crafted = struct.pack("=IIQ", 8, 1, 2)  # type FILEID_INO32_GEN, inode 2: the root of an ext4
    folder = os.open(HERE, os.O_RDONLY)
    said = {
        "name": call(
            "name_to_handle_at", folder, b"\0", ctypes.addressof(handle), ctypes.addressof(mount_id), 0x1000
        ),
        "open": call("open_by_handle_at", folder, ctypes.addressof(handle), os.O_RDONLY),
        "crafted": call("open_by_handle_at", folder, crafted, os.O_RDONLY),
    }
    os.close(folder)
    return said


def socket_families() -> dict[str, str]:
    said = {}

    for family in range(46):
        for kind in (1, 2, 3, 4, 5, 10):
            said[f"{family}/{kind}"] = outcome(
                lambda family=family, kind=kind: socket.socket(family, kind, 0).close()
            )

    said["mptcp"] = outcome(lambda: socket.socket(2, 1, 262).close())
    said["sctp"] = outcome(lambda: socket.socket(2, 1, 132).close())
    said["raw"] = outcome(lambda: socket.socket(2, 3, 1).close())
    said["ping"] = outcome(lambda: socket.socket(2, 2, 1).close())
    pair = socket.socketpair()
    program = struct.pack("=HxxxxxxQ", 1, BAD_POINTER)
    said["classic filter"] = outcome(lambda: pair[0].setsockopt(1, 26, program))
    said["bpf filter"] = outcome(lambda: pair[0].setsockopt(1, 50, struct.pack("=i", -1)))

    with socket.socket() as tcp:
        said["kernel tls"] = outcome(lambda: tcp.setsockopt(6, 31, b"tls"))

    return said


def foreign_abis() -> dict[str, str]:
    said = {
        "read implies exec": apart(lambda: call("personality", 0x0400000)),
        "no randomization": apart(lambda: call("personality", 0x0040000)),
        "query": call("personality", 0xFFFFFFFF),
    }

    if platform.machine() == "x86_64":
        said["x32"] = apart(lambda: number(0x40000000 + 39))
        said["int 80"] = apart(_through_int_80)

    return said


def _through_int_80() -> str:
    """getpid of the 32-bit table, which has another number there."""
    code = bytes.fromhex("53b814000000cd805bc3")  # push rbx; mov eax, 20; int 0x80; pop rbx; ret
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return "ok" if function() == os.getpid() else "strange"


def terminals() -> dict[str, str]:
    said = {"/dev/tty": outcome(lambda: os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)))}

    def type_into_own() -> dict[str, str]:
        os.setsid()
        _, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        return {
            "TIOCSTI": outcome(lambda: fcntl.ioctl(slave, termios.TIOCSTI, b"x")),
            "TIOCSETD": outcome(lambda: fcntl.ioctl(slave, termios.TIOCSETD, struct.pack("i", 0))),
            "TIOCLINUX": outcome(lambda: fcntl.ioctl(slave, 0x541C, b"\x06")),
            "TIOCCONS": outcome(lambda: fcntl.ioctl(os.open("/dev/null", os.O_RDWR), 0x541D)),
        }

    return {**said, **apart(type_into_own)}


def descriptors() -> dict[str, Any]:
    found: dict[str, Any] = {}

    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode
        except OSError:
            continue  # the one that this very listing has used

        found[name] = {"kind": stat.filemode(mode)[0], "leads_to": os.readlink(f"/proc/self/fd/{name}")}

        if stat.S_ISSOCK(mode):
            with socket.socket(fileno=os.dup(int(name))) as sock:
                credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)

            found[name]["peer_pid"] = struct.unpack("3i", credentials)[0]

    return {"open": found, "cwd": os.getcwd()}


def read_paths(paths: list[str]) -> dict[str, str]:
    """Reads the beginning of each: "" for nothing, the errno, or what was there."""
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
    return {path: outcome(lambda path=path: os.close(os.open(path, os.O_WRONLY))) for path in paths}


def devices(folder: str) -> dict[str, Any]:
    kinds = {name: stat.filemode(os.lstat(f"/dev/{name}").st_mode)[0] for name in os.listdir("/dev")}
    null = os.makedev(1, 3)
    return {
        "character": sorted(name for name, kind in kinds.items() if kind == "c"),
        "block": sorted(name for name, kind in kinds.items() if kind == "b"),
        "mknod character": outcome(lambda: _make_and_remove(f"{folder}/made", stat.S_IFCHR, null)),
        "mknod block": outcome(lambda: _make_and_remove(f"{folder}/made", stat.S_IFBLK, os.makedev(7, 0))),
        "mknod fifo": outcome(lambda: _make_and_remove(f"{folder}/made", stat.S_IFIFO, 0)),
    }


def _make_and_remove(path: str, kind: int, device: int) -> None:
    os.mknod(path, kind | 0o600, device)
    os.unlink(path)


# -- the entry


def report(name: str, *arguments: Any) -> str:
    """Runs one probe and returns what it found as a line of JSON."""
    if name not in globals():
        import surroundings

        return json.dumps(getattr(surroundings, name)(*arguments))

    return json.dumps(globals()[name](*arguments))


if __name__ == "__main__":
    print("<<" + report(sys.argv[1], *json.loads(sys.argv[2])) + ">>", flush=True)
