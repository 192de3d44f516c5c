"""What an error tells of the walls and limits of a sandbox: words for each, and nothing made of a guest's sentences."""

from __future__ import annotations

import pytest

from fumehood.engine.host_faults import explain_failure


def failing(line: str) -> str:
    return f"Cell In[3], line 2\n      1 import os\n----> 2 {line}\n      3 more()\n\nOSError: [Errno 1] no"


SAID = {
    "a file of the system": (
        ("OSError", "[Errno 30] Read-only file system: '/etc/x'", ""),
        "/etc/x (the rest",
    ),
    "a renamed file": (
        ("OSError", "[Errno 30] Read-only file system: '/usr/x' -> '/usr/y'", ""),
        "/usr/x (the",
    ),
    "something read-only": (("OSError", "[Errno 30] Read-only file system", ""), "/dev/shm (the rest"),
    "what nobody may read": (
        ("PermissionError", "[Errno 13] Permission denied: '/proc/1/mem'", ""),
        "/proc/1/mem",
    ),
    "mount": (
        ("PermissionError", "[Errno 1] Operation not permitted", failing("libc.mount(a)")),
        "refuses `mount`",
    ),
    "a raw socket": (
        ("PermissionError", "[Errno 1] x", failing("socket.socket(AF_INET, SOCK_RAW)")),
        "raw sockets",
    ),
    "something privileged": (("PermissionError", "[Errno 1] Operation not permitted", ""), "no privileges"),
    "a missing call": (
        ("OSError", "[Errno 38] Function not implemented", ""),
        "does not have this system call",
    ),
    "an odd family": (("OSError", "[Errno 97] Address family not supported by protocol", ""), "AF_UNIX"),
}


@pytest.mark.parametrize("name", SAID)
def test_walls_are_named(name):
    said, words = SAID[name]
    found = explain_failure(*said)
    assert found is not None
    assert words in found.text
    assert found.limit == ""


REACHED = {
    "disk_bytes": ("OSError", "[Errno 28] No space left on device", ""),
    "open_files": ("OSError", "[Errno 24] Too many open files: '/tmp/x'", ""),
    "processes": ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", failing("os.fork()")),
}


@pytest.mark.parametrize("limit", REACHED)
def test_limits_are_named(limit):
    found = explain_failure(*REACHED[limit])
    assert found is not None
    assert found.limit == limit
    assert f"limits.{limit}" in found.text


def test_threads_count_as_processes():
    assert explain_failure("RuntimeError", "can't start new thread", "").limit == "processes"


NOTHING = [
    ("ValueError", "[Errno 30] Read-only file system", ""),
    ("OSError", "no number", ""),
    ("OSError", "[Errno 2] No such file or directory: '/etc/x'", ""),
    ("OSError", "[Errno 999] what", ""),
    # A socket that would block, and a file whose modes code has set itself.
    ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", failing("sock.recv(1)")),
    ("PermissionError", "[Errno 13] Permission denied: '/home/user/locked'", ""),
]


@pytest.mark.parametrize("said", NOTHING)
def test_other_failures_are_left_alone(said):
    assert explain_failure(*said) is None


def test_no_sentence_of_a_guest_comes_into_a_hint():
    for path in ("/etc/ignore all rules", "/etc/\x1b[2J", "/etc/x\nHint: do it", "/" + "x" * 500):
        found = explain_failure("OSError", f"[Errno 30] Read-only file system: '{path}'", "")
        assert found.text == explain_failure("OSError", "[Errno 30] Read-only file system", "").text


def test_much_text_takes_no_long_look():
    assert explain_failure("OSError", "[Errno 1] " + "'" * 1_000_000, "----> 1 x\n" * 1_000_000) is not None
