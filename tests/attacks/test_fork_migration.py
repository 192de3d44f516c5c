"""The process that moves into a fork is user code's own: here it does not do what it was forked for.

The attacker replaces, in the context that is forked, what moves. The control of all: left alone, the same sandbox can
be forked.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.census import descendants_of

from fumehood import Sandbox
from fumehood.errors import ForkError
from fumehood.runtimes.namespaces import migration as linux_moves

HEAD = """
import fumehood_guest.context.checkpoint as checkpoint, ctypes, os, signal, socket, struct, threading, time
from fumehood_jail import syscalls
honest = checkpoint.move
libc = ctypes.CDLL(None)
def begin(sock):
    sock.send(b"!")
    return socket.recv_fds(sock, 1, 32)[1]
def leave(child):
    os.waitpid(child, 0)
    os._exit(0)
"""
# It is where it was, and makes as if it were the context.
STAYS = """
def move(sock, fork):
    return begin(sock)
"""
# It says that it will wait, and does not.
DOES_NOT_WAIT = """
def move(sock, fork):
    begin(sock)
    time.sleep(1000)
"""
# It takes the id that owns the namespaces of forks, or makes another of the calls of which the host is told, unheld.
ENTERS_BY_ITSELF = """
def move(sock, fork):
    fds = begin(sock)
    for attempt in (lambda: os.setresuid(-1, 2000, -1), lambda: syscalls.unshare(0)):
        try:
            attempt()
        except OSError:
            continue
        os._exit(7)
    os._exit(0)
"""
# Whom it has made is the context; it hears what the host says to that, and lies in the parent.
LISTENS_TOO = """
def move(sock, fork):
    fds = begin(sock)
    if fork():
        socket.socket(fileno=fds[0]).recv(1 << 16)
        time.sleep(1000)
    return fds
"""
# Another thread goes on while the first one is held.
HAS_A_THREAD = """
def move(sock, fork):
    fds = begin(sock)
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    if child := fork():
        leave(child)
    return fds
"""
# A fork is made, and who entered it first stays in the parent. It does not wait for its child: the fork could not end.
STAYS_BESIDE = """
def move(sock, fork):
    fds = begin(sock)
    if fork():
        sock.close()
        time.sleep(1000)
    return fds
"""
# What it says is no number of an error that there is.
SAYS_TOO_MUCH = """
def move(sock, fork):
    sock.send(b"9" * 16)
    time.sleep(1000)
"""
LOOK = """
import os
found = []
for name in filter(str.isdigit, os.listdir('/proc')):
    try:
        lines = open(f'/proc/{name}/status').read().splitlines()
    except OSError:
        continue
    fields = {line.partition(':')[0]: line.split()[1:] for line in lines}
    if name not in ('1', str(os.getpid())) and 'Z' not in fields['State']:
        found.append(name)
print(len(found))
"""


def run(sandbox: Sandbox, code: str) -> str:
    execution = sandbox.run_code(code)
    assert execution.error is None, execution.error
    return "".join(execution.logs.stdout)


@pytest.fixture(scope="module")
def parent() -> Iterator[Sandbox]:
    """A sandbox that can be forked."""
    with Sandbox() as sandbox:
        run(sandbox, HEAD)
        yield sandbox


@pytest.mark.parametrize(
    "attack",
    [
        STAYS,
        DOES_NOT_WAIT,
        ENTERS_BY_ITSELF,
        LISTENS_TOO,
        HAS_A_THREAD,
        STAYS_BESIDE,
        SAYS_TOO_MUCH,
    ],
)
def test_who_does_not_move_as_asked_is_no_context(parent, attack, monkeypatch):
    """The host asks the kernel where and what it is; the parent goes on, and nobody stays in it."""
    run(parent, f"{attack}\ncheckpoint.move = move")

    with monkeypatch.context() as patch:
        patch.setattr(linux_moves, "_MOVE_SECONDS", 1.5)

        with pytest.raises(ForkError):
            parent.fork()

    while int(run(parent, LOOK)):
        pass

    run(parent, "checkpoint.move = honest")
    child = parent.fork()
    assert run(child, "print(os.getresuid()[:2])") == "(1000, 1000)\n"
    child.kill()


def test_a_fork_that_floods_does_not_keep_its_parent_from_forking(parent):
    """All that descends from one context has one listener for its refused calls; whoever moves is answered at once."""
    flooding = parent.fork()
    run(
        flooding,
        "import ctypes, threading\nlibc = ctypes.CDLL(None)\n"
        "def flood():\n    while True:\n        libc.setns(-1, 0)\n"
        "for _ in range(100):\n    threading.Thread(target=flood, daemon=True).start()",
    )
    child = parent.fork()
    assert run(child, "print(1)") == "1\n"
    child.kill()
    flooding.kill()


# It moves as asked, and leaves one behind that is the fork's user, and of which nobody knows.
LEAVES_ONE = """
def move(sock, fork):
    fds = begin(sock)
    if child := fork():
        if os.fork() == 0:
            sock.close()
            for fd in fds:
                os.close(fd)
            time.sleep(1000)
        leave(child)
    return fds
"""


def test_who_stays_behind_ends_with_the_sandbox_and_takes_no_fork_along():
    """The parent's end is the end of all that is in it, whatever it has become, and of nothing else."""
    with Sandbox() as parent:
        earlier = parent.fork()
        run(parent, f"{HEAD}{LEAVES_ONE}\ncheckpoint.move = move")
        later = parent.fork()
        # Where there are control groups, the host has ended it before the fork went on.
        assert os.geteuid() != 0 or not _strong_ones()
        parent.kill()
        assert not _strong_ones()
        assert [run(one, "print(1)") for one in (earlier, later)] == ["1\n", "1\n"]
        earlier.kill()
        later.kill()


def _strong_ones() -> list[Path]:
    """Processes under a context's filter that have every capability somewhere."""
    found = []

    for folder in (Path(f"/proc/{pid}") for pid in descendants_of(os.getpid())):
        try:
            lines = (folder / "status").read_text(errors="replace").splitlines()
        except OSError:
            continue

        fields = {line.partition(":")[0]: line.split()[1:] for line in lines}

        if "Z" not in fields["State"] and _is_guests(fields) and int(fields["CapEff"][0], 16):
            found.append(folder)

    return found


def _is_guests(fields: dict[str, list[str]]) -> bool:
    """Whether user code has run in it: fumehood's own are under one filter less."""
    own = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if "Seccomp_filters" in line
    )
    return int(fields["Seccomp_filters"][0]) >= int(own.split()[1]) + 2


WHO_IS_LEFT = """
import os
def of(pid):
    try:
        lines = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status") if ":" in line)
    except (FileNotFoundError, ProcessLookupError):
        return None  # it ended since it was listed
    return lines["Uid"].split()[:2], lines["CapEff"].strip(), len(lines["NSpid"].split()), lines["State"].split()[0]
print([found for found in map(of, filter(str.isdigit, os.listdir("/proc")))
       if found and found[2] == 1 and found[3] != "Z" and (found[0] != ["1000", "1000"] or int(found[1], 16))])
"""


needs_ids = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for sandboxes with ids of their own")


@needs_ids
def test_t01_a_migrator_leaves_no_process_behind() -> None:
    """Whoever keeps what the migrator was lent could reach its fork; that is made, and is none the wiser."""
    with Sandbox() as parent:
        run(parent, f"{HEAD}\n{LEAVES_ONE}\ncheckpoint.move = move")

        for child in parent.forks(2):
            with child:
                assert child.run_code("6 * 7").text == "42"

        assert run(parent, WHO_IS_LEFT).strip() == "[]"


# A signal comes every 200 microseconds, and is handled at once. It tells whose process it is. The handler is of machine
# code: Python's own, run between any two instructions of an interpreter, breaks that now and then.
WATCHES_ITSELF = """
import mmap
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
ALL = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, ALL)
def move(sock, fork):
    fds = begin(sock)
    told = os.open("/tmp/told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    page[:] = (
        bytes.fromhex("4883ec18")                             # sub rsp, 24
        + bytes.fromhex("b86b000000 0f05 890424")             # [rsp] = geteuid()
        + bytes.fromhex("b866000000 0f05 89442404")           # [rsp + 4] = getuid()
        + b"\\xbf" + struct.pack("<I", told)
        + bytes.fromhex("4889e6 ba08000000 b801000000 0f05")  # write(told, rsp, 8)
        + bytes.fromhex("4883c418 c3")
    ).ljust(4096, b"\\xcc")
    libc.signal(signal.SIGALRM, ctypes.addressof(ctypes.c_char.from_buffer(page)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    if child := fork():
        signal.setitimer(signal.ITIMER_REAL, 0)
        leave(child)
    os.close(told)
    return fds
checkpoint.move = move
"""


@needs_ids
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86-64, for its machine code")
def test_t01_a_migrator_runs_nothing_of_its_own_while_it_owns_the_namespaces_of_forks() -> None:
    """Its signals are handled before it is held, which is the control, and afterwards, but never with that id."""
    with Sandbox() as parent:
        run(parent, f"{HEAD}\n{WATCHES_ITSELF}")

        for child in parent.forks(3):
            with child:
                assert run(child, "print(6 * 7)") == "42\n"

        said = parent.files.read("/tmp/told", format="bytes")
        assert set(struct.iter_unpack("<II", said)) == {(1000, 1000)}
