"""System calls by name and number, and their results, for the attacker's programs.

Runs in a sandbox, in every kind of process, and outside, as a part of the program `attack`; needs the standard library
of Python 3.9 only. An error of the kernel is a result and is never raised.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
from collections.abc import Callable
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
BAD_POINTER = 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_numbers: dict[str, int] = {}


def numbers() -> dict[str, int]:
    """Return the numbers of the system calls of this machine, by name."""
    if not _numbers:
        with open(f"{HERE}/numbers.json", encoding="ascii") as file:
            _numbers.update(json.load(file))

    return _numbers


def call(name: str, *arguments: Any) -> str:
    """Make a system call by name; return "ok" or the name of the errno."""
    if name not in numbers():
        return "ENOSYS"

    return number(numbers()[name], *arguments)


def number(number: int, *arguments: Any) -> str:
    """Make a system call by number."""
    words = [argument if isinstance(argument, bytes) else ctypes.c_long(argument) for argument in arguments]
    result = _libc.syscall(ctypes.c_long(number), *words)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else "ok"


def clone(flags: int) -> str:
    """Make a raw clone whose child exits at once."""
    nothing = [ctypes.c_long(0)] * 4
    pid = _libc.syscall(ctypes.c_long(numbers()["clone"]), ctypes.c_long(flags), *nothing)

    if pid == 0:
        _libc._exit(0)

    if pid == -1:
        return errno.errorcode[ctypes.get_errno()]

    if not flags & 0x8000:  # CLONE_PARENT: this process cannot wait for it
        os.waitpid(pid, 0)

    return "ok"


def run_machine_code(code: bytes) -> int:
    """Run machine code in this process, and return its result."""
    import mmap

    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return int(function())


def buffer(content: bytes, size: int) -> tuple[Any, int]:
    """Return memory with this content, and its address; it lives as long as the first of them."""
    kept = ctypes.create_string_buffer(content, size)
    return kept, ctypes.addressof(kept)


def descriptor(name: str, *arguments: Any) -> int:
    """Call a function of libc that returns a descriptor, or -1."""
    return int(getattr(_libc, name)(*arguments))


def outcome(attempt: Callable[..., object], *arguments: Any) -> str:
    """Return "ok", or the name of the errno that the attempt raised."""
    try:
        attempt(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))

    return "ok"


def open_and_close(path: str, flags: int) -> None:
    """Open a path, without reading from it."""
    os.close(os.open(path, flags))


def apart(function: Callable[..., object], *arguments: Any) -> Any:
    """Run a function in a forked child, as its effect cannot be undone; a death becomes "signal N"."""
    read_end, write_end = os.pipe()
    pid = os.fork()

    if pid == 0:
        try:
            os.write(write_end, json.dumps(function(*arguments)).encode())
        finally:
            os._exit(0)

    os.close(write_end)
    with open(read_end, "rb") as file:
        answer = file.read()

    _, status = os.waitpid(pid, 0)
    return json.loads(answer) if answer else f"signal {os.WTERMSIG(status)}"
