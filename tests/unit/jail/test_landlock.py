"""Landlock: what is not listed is out of reach, what is listed works."""

import errno
import os
import signal
import socket

import pytest

from fumehood_jail import landlock, syscalls
from fumehood_jail.errors import JailError


@pytest.fixture
def folders(tmp_path):
    """A read-only, a writable and an unlisted folder with a file each."""
    for name in ("read", "write", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text")

    return tmp_path


@pytest.fixture
def in_landlock(in_child, folders):
    """Runs a function in a child that is restricted to the folders."""
    if landlock.available_abi() == 0:
        pytest.skip("needs Landlock ABI 1")

    def run(function):
        def restricted():
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
            landlock.restrict(
                read_only=[str(folders / "read"), "/usr", "/proc"],
                read_write=[str(folders / "write")],
                devices=("/dev/null",),
            )
            return function()

        return in_child(restricted)

    return run


def attempt(function, *arguments):
    """The errno of a call, or 0."""
    try:
        result = function(*arguments)
        if isinstance(result, int) and result > 2:
            os.close(result)
    except OSError as error:
        return error.errno

    return 0


def _try_files(folders):
    def file(name):
        return str(folders / name / "file")

    return {
        "read listed": attempt(os.open, file("read"), os.O_RDONLY),
        "read writable": attempt(os.open, file("write"), os.O_RDONLY),
        "read unlisted": attempt(os.open, file("other"), os.O_RDONLY),
        "list unlisted": attempt(os.listdir, str(folders / "other")),
        "write read-only": attempt(os.open, file("read"), os.O_WRONLY),
        "write unlisted": attempt(os.open, file("other"), os.O_WRONLY),
        "truncate read-only": attempt(os.truncate, file("read"), 0),
        "make in read-only": attempt(os.mkdir, str(folders / "read" / "new")),
        "move within writable": attempt(os.rename, file("write"), file("write") + "2"),
        "truncate writable": attempt(os.truncate, file("write") + "2", 0),
        "move out of writable": attempt(os.rename, file("write") + "2", file("read") + "2"),
        "make in writable": attempt(os.mkdir, str(folders / "write" / "new")),
        "remove unlisted": attempt(os.unlink, file("other")),
        "write a device": attempt(os.open, "/dev/null", os.O_RDWR),
        "read another device": attempt(os.open, "/dev/zero", os.O_RDONLY),
    }


def test_files(in_landlock, folders):
    """Reading, writing, making and removing follow the lists; the control without Landlock can do all."""
    refused = {
        name for name, number in in_landlock(lambda: _try_files(folders)).items() if number == errno.EACCES
    }

    assert refused == {
        "read unlisted",
        "list unlisted",
        "write read-only",
        "write unlisted",
        "truncate read-only",
        "make in read-only",
        "move out of writable",
        "remove unlisted",
        "read another device",
    }


def test_files_without_landlock(in_child, folders):
    """The control: a child that is not restricted can do each of these things."""
    assert set(in_child(lambda: _try_files(folders)).values()) == {0}


def test_signals_and_abstract_sockets_stay_inside(in_child, in_landlock):
    """A process under Landlock reaches no processes and no abstract sockets outside; its own it does."""
    if landlock.available_abi() < 6:
        pytest.skip("needs Landlock ABI 6")

    outside = os.getpid()
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"\0fumehood-test-{outside}")
    server.listen()

    def reach_out():
        client = socket.socket(socket.AF_UNIX)
        own = os.fork()
        if own == 0:
            signal.pause()

        answers = [attempt(os.kill, outside, 0), attempt(client.connect, f"\0fumehood-test-{outside}")]
        os.kill(own, signal.SIGKILL)
        os.waitpid(own, 0)
        return answers

    assert in_child(reach_out) == [0, 0]
    assert in_landlock(reach_out) == [errno.EPERM, errno.EPERM]
    server.close()


def test_mounts_are_closed(in_namespaces, folders):
    """A process under Landlock cannot mount, even with every capability in its own namespaces."""
    if landlock.available_abi() == 0:
        pytest.skip("needs Landlock ABI 1")

    target = str(folders / "write")

    def mount():
        before = attempt(syscalls.mount, "none", target, "tmpfs")
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        landlock.restrict(read_only=["/"], read_write=[target])
        return [before, attempt(syscalls.mount, "none", target, "tmpfs")]

    assert in_namespaces(syscalls.CLONE_NEWNS, mount) == [0, errno.EPERM]


def test_the_enforced_version_is_returned(in_child):
    """The result is the version that is in force."""

    def restrict():
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        return landlock.restrict(read_only=["/"], read_write=[])

    assert in_child(restrict) == min(landlock.available_abi(), 7)


def test_a_missing_path_is_an_error(in_child):
    """A path that is not there ends the launch: it is not left out in silence."""
    if landlock.available_abi() == 0:
        pytest.skip("needs Landlock ABI 1")

    def restrict():
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        try:
            landlock.restrict(read_only=["/nonexistent"], read_write=[])
        except JailError as error:
            return [error.step, error.errno, "/nonexistent" in str(error)]

        return None

    assert in_child(restrict) == ["landlock", errno.ENOENT, True]
