"""A process that moves into a fork is held by the host, which lends it an id and capabilities: what it does with them.

The attacker is that process, and others of its kind that share its memory, descriptors and signals with it.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.attacks.test_fork_migration import HEAD, run
from tests.integration.census import descendants_of, excess
from tests.waiting import until

from fumehood import Sandbox
from fumehood.assemble import local_backend
from fumehood.errors import ForkError
from fumehood.portal import call
from fumehood.runtimes.namespaces import migration as linux_entering
from fumehood.runtimes.namespaces import migration as linux_moves
from fumehood_jail import call_numbers, notify
from fumehood_jail.tracing import HeldProcess

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for sandboxes with ids of their own")
needs_x86 = pytest.mark.skipif(call_numbers.MACHINE != "x86_64", reason="needs x86-64: this is machine code")


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A sandbox that can be forked, and in which what moves can be replaced."""
    monkeypatch.setattr(linux_moves, "_MOVE_SECONDS", 2.0)

    with Sandbox() as sandbox:
        run(sandbox, HEAD)
        yield sandbox


def groups_within(pid: int) -> dict[int, str]:
    """The control groups of all processes that descend from one."""
    found = {}

    for one in descendants_of(pid):
        with suppress(OSError):
            found[one] = Path(f"/proc/{one}/cgroup").read_text()

    return found


# Where the process waits, somebody who shares the page writes a jump in place of the system call. It leads to that
# call, and on to a fork: whoever is started tells its effective user.
REWRITES_ITS_CODE = r"""
import mmap
SYSCALL = b"\x0f\x05"
FORKS_AND_TELLS = (
    SYSCALL + b"\xb8\x39\x00\x00\x00" + SYSCALL  # mov eax, fork
    + b"\x85\xc0\x74\x02\xeb\xfe"  # test eax, eax; the parent stays here
    + b"\xb8\x6b\x00\x00\x00" + SYSCALL  # mov eax, geteuid
)
def lay(page):
    told_at = 64 + len(FORKS_AND_TELLS) + 6
    exit_ = b"\xb8\x3c\x00\x00\x00\x31\xff" + SYSCALL
    code = FORKS_AND_TELLS + b"\x89\x05" + struct.pack("<i", 1024 - told_at) + exit_
    page[:8] = b"\xb8\x34\x01\x00\x00" + SYSCALL + b"\xc3"  # mov eax, setns; ret
    page[64 : 64 + len(code)] = code
    return ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long)(
        ctypes.addressof(ctypes.c_char.from_buffer(page))
    )
def rewrite(page):
    os.setsid()
    page[2049] = 1
    while not page[2048]:
        pass
    # Until it waits in the kernel: else it would go where nobody holds it. Whoever is not to be seen has gone further.
    try:
        while b") S " not in open(f"/proc/{os.getppid()}/stat", "rb").read():
            pass
    except OSError:
        pass
    page[5:7] = b"\xeb" + bytes([64 - 7])
    end = time.monotonic() + patience
    while time.monotonic() < end and page[1024:1028] == bytes(4):
        pass
    with open("/tmp/told", "a") as told:
        told.write("%d " % struct.unpack("i", page[1024:1028]))
    os._exit(0)
patience = 30
def with_rewriter():
    page = mmap.mmap(-1, 4096, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, prot=7)
    setns = lay(page)
    rewriter = os.fork()
    if rewriter == 0:
        rewrite(page)
    # Before that it would end together with whoever has made it.
    while not page[2049]:
        pass
    return page, setns, rewriter
def move(sock, fork):
    page, setns, _ = with_rewriter()
    begin(sock)
    page[2048] = 1
    setns(-1, 0)
    os._exit(0)
"""
# The control: whoever is not held goes through all of it, as the user that it is.
REWRITES_IT_UNHELD = """
page, setns, rewriter = with_rewriter()
jumper = os.fork()
if jumper == 0:
    jump = ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)) + 64 + 2)
    page[2048] = 1
    jump()
os.waitpid(rewriter, 0)
os.kill(jumper, signal.SIGKILL)
print(open("/tmp/told").read())
"""


@needs_x86
def test_t01_rewriting_the_code_of_a_held_process_gains_no_second_instruction(parent: Sandbox) -> None:
    """What it jumps to would be run with the id that owns forks, and what it forks would keep that."""
    run(parent, REWRITES_ITS_CODE)
    assert run(parent, REWRITES_IT_UNHELD).split() == ["1000"]
    run(parent, "checkpoint.move = move; patience = 0.2")

    for _ in range(3):
        with pytest.raises(ForkError):
            parent.fork()

    # Each that waits to be told something says so in the end.
    look = "while len(open('/tmp/told').read().split()) < 4: time.sleep(0.01)"
    told = run(parent, f"{look}\nprint(open('/tmp/told').read())").split()

    assert told[1:] == ["0", "0", "0"]


# It has all that it was given write the processes that it sees into the control groups of its fork.
BRINGS_OTHERS = """
def move(sock, fork):
    fds = begin(sock)
    for fd in fds:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                os.set_blocking(fd, False)
                os.write(fd, name.encode())
            except OSError:
                continue
    if child := fork():
        leave(child)
    return fds
checkpoint.move = move
"""


def test_t01_a_migrator_brings_no_process_into_the_control_groups_of_its_fork(parent: Sandbox) -> None:
    """It sees the processes of earlier forks; whoever brought them in could starve and end them together with it."""
    layers = {layer.name: layer.state for layer in parent.get_info().isolation.layers}

    if layers.get("cgroup pids") != "on":
        pytest.skip("needs cgroup v1 or v2 that can be written")

    # Those that are kept ready are there, and stay.
    call(local_backend().wait_warm)
    count = len(groups_within(os.getpid()))

    with parent.fork() as earlier:
        # Of a fork stay its init and its context.
        until(lambda: len(groups_within(os.getpid())) == count + 2)
        before = groups_within(os.getpid())
        run(parent, BRINGS_OTHERS)

        # What it writes is said to the host, which may understand it.
        with suppress(ForkError):
            parent.fork().kill()

        run(parent, "checkpoint.move = honest")
        assert {pid: groups for pid, groups in groups_within(os.getpid()).items() if pid in before} == before

        # The control: whoever moves as asked is where it belongs, with its init.
        with parent.fork() as later:
            assert run(later, "print(6 * 7)") == "42\n"
            until(lambda: len(groups_within(os.getpid())) == count + 4)
            added = [groups for pid, groups in groups_within(os.getpid()).items() if pid not in before]
            assert added[0] == added[1]
            assert added[0] not in before.values()

        assert run(earlier, "print(6 * 7)") == "42\n"


def test_no_process_outside_is_asked_to_take_leave_of_a_fork(parent: Sandbox) -> None:
    """A fork ends though its parent sleeps, or though code there has named itself for all orphans and never waits."""
    while_paused = parent.fork()
    run(parent, "libc.prctl(36, 1, 0, 0, 0)")  # PR_SET_CHILD_SUBREAPER
    of_a_reaper = parent.fork()
    of_a_reaper.kill()
    parent.pause()
    while_paused.kill()
    parent.resume()
    # The control: an orphan of the parent's own is left to that code.
    assert run(parent, LEAVES_AN_ORPHAN) == "True\n"


LEAVES_AN_ORPHAN = """
read, write = os.pipe()
if os.fork() == 0:
    middle = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == middle:
        pass
    os.write(write, b"%d" % os.getppid())
    os._exit(0)
os.wait()
print(int(os.read(read, 16)) == os.getpid())
os.wait()
"""

# What is forked so belongs to whoever traces the one that forks it, and the host would never hear of its end.
FORKS_TRACED = """
import platform
NUMBER = {"x86_64": 56, "aarch64": 220}[platform.machine()]
def clone(flags):
    pid = libc.syscall(NUMBER, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)[1] if pid > 0 else "refused"
print(clone(0), clone(0x2000))
"""


def test_t01_no_process_starts_with_the_tracer_of_its_maker(parent: Sandbox) -> None:
    """The host traces who moves, and runs for a moment what it has not found waiting; the control is a plain fork."""
    assert run(parent, FORKS_TRACED) == "0 refused\n"


def open_resources() -> dict[str, int]:
    """How many descriptors this process has, and how many descend from it."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "processes": len(descendants_of(os.getpid())),
    }


# It says that it is there, and takes no answer, or ends when it has one; it ends where it is to wait.
HALF_WAY = (
    "sock.shutdown(socket.SHUT_RD)\n    sock.send(b'!')\n    time.sleep(1000)",
    "sock.send(b'!')\n    libc.poll(struct.pack('ihh', sock.fileno(), 1, 0), 1, -1)\n    os._exit(0)",
    "begin(sock)\n    os._exit(0)",
)


def test_a_migrator_that_stops_half_way_fails_at_once_and_leaves_nothing(
    parent: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails is told as what it is, and nobody waits for whoever has ended."""
    monkeypatch.setattr(linux_moves, "_MOVE_SECONDS", 1000.0)
    parent.fork().kill()
    # Those that are kept ready are there, and stay.
    call(local_backend().wait_warm)
    before = open_resources()

    for steps in HALF_WAY:
        run(parent, f"def move(sock, fork):\n    {steps}\ncheckpoint.move = move")

        with pytest.raises(ForkError):
            parent.fork()

        assert excess(open_resources, before) == {}


# The same process answers for two that are to be forked: those who are made for it hand it their sockets.
MOVES_TWICE = """
PLACE = "\\0movers"
def move(sock, fork):
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.bind(PLACE)
    except OSError:
        server.connect(PLACE)
        socket.send_fds(server, [b"!"], [sock.fileno()])
        os._exit(0)
    server.listen()
    line, _ = server.accept()
    (other,) = socket.recv_fds(line, 1, 1)[1]
    fds = begin(sock)
    with socket.socket(fileno=other) as second:
        second.send(b"!")
        second.recv(1)
    if child := fork():
        leave(child)
    return fds
checkpoint.move = move
"""


def test_who_says_that_it_moves_to_two_forks_moves_to_one(parent: Sandbox) -> None:
    """What is lent for the one is nothing to the other; no fork is left, and the parent goes on."""
    run(parent, MOVES_TWICE)

    with pytest.raises(ForkError, match="it moves to another one"):
        parent.forks(2)

    run(parent, "checkpoint.move = honest")
    parent.fork().kill()


# Code of the parent's has named itself for all orphans, and waits for none; the migrator leaves it one of the fork.
LEAVES_A_ZOMBIE = """
def move(sock, fork):
    fds = begin(sock)
    if child := fork():
        if os.fork() == 0:
            os._exit(0)
        leave(child)
    return fds
checkpoint.move = move
libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
"""


def test_no_process_outside_keeps_a_fork_from_ending(parent: Sandbox) -> None:
    """Whoever does not take leave of its dead ends itself; the control is a fork that is left alone."""
    with parent.fork() as earlier:
        run(parent, LEAVES_A_ZOMBIE)
        parent.fork().kill()
        assert run(earlier, "print(6 * 7)") == "42\n"

    assert parent.run_code("6 * 7").text == "42"


# A thread shares the descriptors of the process that moves, and looks at them all the while.
SHARES_DESCRIPTORS = """
import threading
def move(sock, fork):
    fds = begin(sock)
    record = os.open("/tmp/seen", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.open("/tmp/shown", os.O_CREAT | os.O_WRONLY)
    has_looked = threading.Event()
    def look():
        seen = set()
        while True:
            for folder in ("/proc/thread-self/fd", "/proc/self/fd"):
                for name in os.listdir(folder):
                    try:
                        link = os.readlink(f"{folder}/{name}")
                    except OSError:
                        continue
                    if link not in seen:
                        os.write(record, f"{link}\\n".encode())
                        seen.add(link)
            has_looked.set()
    threading.Thread(target=look, daemon=True).start()
    has_looked.wait()
    if child := fork():
        leave(child)
    return fds
checkpoint.move = move
"""


@needs_x86
def test_t01_no_process_sees_the_descriptors_that_a_held_process_is_given(parent: Sandbox) -> None:
    """They lead into the fork and its control groups; the control is one that it has opened itself."""
    run(parent, SHARES_DESCRIPTORS)

    # The kernel lets no process with threads enter a user namespace.
    with suppress(ForkError):
        parent.fork().kill()

    until(lambda: parent.files.exists("/tmp/seen"))
    seen = parent.files.read("/tmp/seen").splitlines()
    assert "/tmp/shown" in seen
    assert not any(word in link for word in LENT for link in seen), seen


# What tells of the lent ones, by its links.
LENT = ("user:[", "mnt:[", "net:[", "ipc:[", "uts:[", "pid:[", "cgroup", "tasks", "zeros")
SHARES_WITH_A_PROCESS = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
pid = libc.syscall(56, 0x400 | signal.SIGCHLD, 0, 0, 0, 0)  # clone with CLONE_FILES
if pid == 0: os._exit(0)
print(pid > 0 or ctypes.get_errno())
"""


@needs_x86
def test_t01_no_process_shares_its_descriptors_with_another(parent: Sandbox) -> None:
    """One that moves to a fork is lent descriptors: another that shares them would have them too."""
    assert run(parent, SHARES_WITH_A_PROCESS) == f"{errno.EPERM}\n"
    outside = subprocess.run(
        [sys.executable, "-c", SHARES_WITH_A_PROCESS], capture_output=True, text=True, check=True
    )
    assert outside.stdout == "True\n"


WHAT_IT_HAS = """
for name in os.listdir("/proc/self/fd"):
    if os.path.lexists(f"/proc/self/fd/{name}"):
        print(os.readlink(f"/proc/self/fd/{name}"))
"""


def test_t01_a_migrator_that_is_interrupted_keeps_nothing_of_what_it_is_given(
    parent: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is of its session may send SIGCONT, and its call begins anew; here in the midst of it."""
    give, given = notify.give, []

    def interrupt(listener: int, call: notify.NotifiedCall, gift: int) -> int:
        if len(given) == 3:
            os.kill(call.pid, signal.SIGCONT)

        given.append(gift)
        return give(listener, call, gift)

    monkeypatch.setattr(notify, "give", interrupt)

    with parent.fork() as fork:
        # The control: some were given twice.
        assert len(given) > len(set(given))
        links = run(fork, WHAT_IT_HAS)
        assert "/dev/null" in links
        assert not any(word in links for word in LENT), links


def test_t01_a_fork_whose_context_is_not_in_its_control_groups_is_none(
    parent: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SIGCONT interrupts behind a call makes that again: it enters one group twice, and another one never."""
    make, entered = linux_entering._Tracee.make, []

    def make_twice(puppet: linux_entering._Tracee, name: str, *some: int, gifts: Sequence[int] = ()) -> int:
        if name == "sendfile" and not entered:
            entered.append(make(puppet, name, *some))

        return make(puppet, name, *some, gifts=gifts)

    monkeypatch.setattr(linux_entering._Tracee, "make", make_twice)
    before = groups_within(os.getpid())

    # Where there is one for all, nothing has failed.
    with suppress(ForkError), parent.fork():
        assert len({groups for pid, groups in groups_within(os.getpid()).items() if pid not in before}) == 1

    # The control: it was in one of them.
    assert entered == [1]


def test_a_migrator_that_ends_when_it_is_let_go_leaves_nothing(
    parent: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends it then: the one that was to go on, or the one that made it."""
    parent.fork().kill()
    call(local_backend().wait_warm)
    before = len(os.listdir("/proc/self/fd"))
    let_go = HeldProcess.let_go

    for last in (1, 2):
        held = []

        def end_first(self: HeldProcess, result: int, held: list[int] = held, last: int = last) -> None:
            held.append(self.pid)

            if len(held) == last:
                os.kill(self.pid, signal.SIGKILL)

            let_go(self, result)

        monkeypatch.setattr(HeldProcess, "let_go", end_first)

        with pytest.raises(ForkError):
            parent.fork()

        while len(os.listdir("/proc/self/fd")) > before:
            pass
