"""Children for the tests of the jail: what is tried is irreversible, so each trial has its own process."""

import ctypes
import json
import os
import traceback

import pytest

from fumehood_jail import call_numbers, seccomp, syscalls, users

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def raw_syscall(number, *arguments):
    """Makes a system call by number; returns its result, or minus the errno."""
    padded = [ctypes.c_ulong(argument % 2**64) for argument in arguments + (0,) * (6 - len(arguments))]
    result = _libc.syscall(ctypes.c_long(number), *padded)
    return -ctypes.get_errno() if result == -1 else result


class Died(Exception):
    """The child was killed before it could answer."""

    def __init__(self, status):
        super().__init__(f"the child ended with status {status}")
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def _answer(write_fd, function):
    try:
        answer = {"value": function()}
    except BaseException:
        answer = {"raised": traceback.format_exc()}

    os.write(write_fd, json.dumps(answer).encode())
    os._exit(0)


def _hear(pid, read_fd):
    with open(read_fd, "rb") as file:
        answer = file.read()

    _, status = os.waitpid(pid, 0)
    if not answer:
        raise Died(status)

    fields = json.loads(answer)
    if "raised" in fields:
        pytest.fail(f"in the child:\n{fields['raised']}")

    return fields["value"]


def _in_child(function):
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        _answer(write_fd, function)

    os.close(write_fd)
    return _hear(pid, read_fd)


@pytest.fixture
def in_child():
    """Runs a function in a forked child and returns its (JSON-able) value."""
    return _in_child


@pytest.fixture
def in_namespaces():
    """Runs a function as root of new namespaces and returns its (JSON-able) value."""

    def run(flags, function):
        gate_read, gate_write = os.pipe()
        read_fd, write_fd = os.pipe()

        def wait_and_run():
            os.close(gate_write)
            os.read(gate_read, 1)
            return function()

        pid = syscalls.clone(syscalls.CLONE_NEWUSER | flags)
        if pid == 0:
            os.close(read_fd)
            _answer(write_fd, wait_and_run)

        os.close(write_fd)
        os.close(gate_read)
        users.write_maps(
            pid, users.IdPlan("single", [(0, os.geteuid(), 1)], [(0, os.getegid(), 1)], 0, 1, notes=[])
        )
        os.write(gate_write, b"!")
        os.close(gate_write)
        return _hear(pid, read_fd)

    return run


@pytest.fixture(scope="session")
def policies():
    """The shipped policies by name, as read."""
    return {
        name: seccomp.read_policy(os.path.join(seccomp.POLICIES, f"{name}.toml"))
        for name in ("sandbox", "zygote")
    }


@pytest.fixture(scope="session")
def programs(policies):
    """The shipped policies by name, compiled for this machine."""
    return {name: seccomp.compile_policy(policy) for name, policy in policies.items()}


@pytest.fixture
def in_filter(programs):
    """Runs a function in a child behind a shipped filter and returns its (JSON-able) value."""

    def run(function, policy="sandbox"):
        def filtered():
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
            seccomp.load(programs[policy])
            return function()

        return _in_child(filtered)

    return run


@pytest.fixture
def syscall():
    """The function that makes a system call by number."""
    return raw_syscall


@pytest.fixture
def numbers():
    """The system call numbers of this machine by name."""
    with open(
        os.path.join(seccomp.POLICIES, f"syscalls_{call_numbers.MACHINE}.json"), encoding="ascii"
    ) as file:
        return json.load(file)


@pytest.fixture
def died():
    """The exception that says that a child was killed."""
    return Died
