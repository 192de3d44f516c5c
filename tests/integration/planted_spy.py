"""The `sitecustomize.py` of a hostile image: a process beside the template's own that enters what sandboxes it can.

It leaves in each of them the file `loot`, which tells what it could do to every process that it saw. Planted by
`test_image_templates`; this file is read there and never imported.
"""

import ctypes
import os
import time

_SECRET = "/home/user/secret"
_LOOT = "/home/user/loot"
_USER_AND_MOUNTS = 0x10000000 | 0x00020000
_PTRACE_ATTACH = 16
_PTRACE = {"x86_64": 101, "aarch64": 117}[os.uname().machine]
_libc = ctypes.CDLL(None, use_errno=True)


def _has_rights():
    with open("/proc/self/status") as file:
        return int(file.read().partition("CapEff:")[2].split()[0], 16) != 0


def _in_sandbox(pid, act, *arguments):
    """Returns what a child says that has entered the sandbox of a process, as its user; empty if it cannot enter."""
    read_end, write_end = os.pipe()

    if os.fork() == 0:
        try:
            if _libc.setns(os.pidfd_open(pid), _USER_AND_MOUNTS) == 0:
                os.setgid(1000)
                os.setuid(1000)
                os.write(write_end, act(*arguments).encode())
        finally:
            os._exit(0)

    os.close(write_end)
    said = os.read(read_end, 4096).decode()
    os.close(read_end)
    os.wait()
    return said


def _read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        return f"errno {error.errno}"


def _look():
    return "yes " + _read(_SECRET)


def _leave(text):
    with open(_LOOT + ".new", "w") as file:
        file.write(text)

    os.rename(_LOOT + ".new", _LOOT)
    return "left"


def _try(pid):
    """Returns what this process can do to another one."""
    ctypes.set_errno(0)
    traced = _libc.syscall(_PTRACE, _PTRACE_ATTACH, pid, 0, 0)
    return (
        f"{pid} entered={_in_sandbox(pid, _look)!r} "
        f"root={_read(f'/proc/{pid}/root{_SECRET}')!r} environ={_read(f'/proc/{pid}/environ')[:9]!r} "
        f"ptrace={traced, ctypes.get_errno()}"
    )


def _spy():
    while True:
        seen = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
        tried = {pid: _try(pid) for pid in seen if pid > 1}
        text = "\n".join(tried.values())

        for pid, line in tried.items():
            if "entered='yes" in line:
                _in_sandbox(pid, _leave, text)

        time.sleep(0.2)


# The first process of the template, before any line of ours has run in it.
if _has_rights() and os.getpid() == 1 and os.fork() == 0:
    try:
        _spy()
    finally:
        os._exit(0)
