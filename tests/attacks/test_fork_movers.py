"""The process that moves into a fork is user code's own: here it does not do what it was forked for.

The attacker replaces, in the context that is forked, what moves. The control of all: left alone, the same sandbox can
be forked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.census import descendants_of

from fumehood import Sandbox
from fumehood.fork_errors import ForkError
from fumehood.runtimes import linux_moves

HEAD = """
import fumehood_guest.checkpoint as checkpoint, os, socket, time
from fumehood_jail import launch, syscalls
honest = checkpoint.move
def begin(sock):
    sock.send(b"!")
    return socket.recv_fds(sock, 1, 32)[1]
def enter(fds, become):
    user, *others = fds[3:10]
    has_movers = launch.take_movers_id()
    syscalls.setns(user)
    become(has_movers)
    for fd in others:
        syscalls.setns(fd)
def finish(sock, fds):
    launch.settle(fds[10:])
    sock.send(b"!")
    sock.close()
    return fds[:3]
"""
# It says that it has moved, and is where it was.
STAYS = """
def move(sock, fork):
    fds = begin(sock)
    if fork():
        os._exit(0)
    for fd in fds[3:]:
        os.close(fd)
    sock.send(b"!")
    return fds[:3]
"""
# It has the id that owns the namespaces of forks, there and for good.
KEEPS_THE_ID = """
def move(sock, fork):
    fds = begin(sock)
    enter(fds, lambda _: os.setresuid(2000, 2000, 2000))
    if fork():
        os._exit(0)
    return finish(sock, fds)
"""
# A fork is made, and who entered first stays in the parent with every capability over it. As it does not wait for its
# child, the fork could not end.
STAYS_BESIDE = """
def move(sock, fork):
    fds = begin(sock)
    enter(fds, launch.become_guest_of_fork)
    if fork():
        sock.close()
        time.sleep(1000)
    return finish(sock, fds)
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


@pytest.mark.parametrize("attack", [STAYS, KEEPS_THE_ID, STAYS_BESIDE, SAYS_TOO_MUCH])
def test_who_does_not_move_as_asked_is_no_context(parent, attack, monkeypatch):
    """The host asks the kernel where and what it is; the parent goes on, and nobody stays in it."""
    monkeypatch.setattr(linux_moves, "_MOVE_SECONDS", 1.5)
    run(parent, f"{attack}\ncheckpoint.move = move")

    with pytest.raises(ForkError):
        parent.fork()

    while int(run(parent, LOOK)):
        pass

    run(parent, "checkpoint.move = honest")
    (child,) = parent.fork()
    assert run(child, "print(os.getresuid()[:2])") == "(1000, 1000)\n"
    child.kill()


def test_a_fork_that_floods_does_not_keep_its_parent_from_forking(parent):
    """All that descends from one context has one listener for its refused calls; who moves is answered at once."""
    (flooding,) = parent.fork()
    run(
        flooding,
        "import ctypes, threading\nlibc = ctypes.CDLL(None)\n"
        "def flood():\n    while True:\n        libc.setns(-1, 0)\n"
        "for _ in range(100):\n    threading.Thread(target=flood, daemon=True).start()",
    )
    (child,) = parent.fork()
    assert run(child, "print(1)") == "1\n"
    child.kill()
    flooding.kill()


# It moves as asked, and leaves one behind that has every capability in the fork, and the fork's user, and lies in the
# parent, whose init may not signal it.
LEAVES_ONE = """
def move(sock, fork):
    fds = begin(sock)
    user, *others = fds[3:10]
    has_movers = launch.take_movers_id()
    syscalls.setns(user)
    launch.become_guest_of_fork(has_movers)
    if fork() == 0:
        sock.close()
        for fd in fds:
            os.close(fd)
        time.sleep(1000)
    for fd in others:
        syscalls.setns(fd)
    if fork():
        os._exit(0)
    return finish(sock, fds)
"""


def test_who_stays_behind_ends_with_the_sandbox_and_takes_no_fork_along():
    """The parent's end is the end of all that is in it, whatever it has become, and of nothing else."""
    with Sandbox() as parent:
        (earlier,) = parent.fork()
        run(parent, f"{HEAD}{LEAVES_ONE}\ncheckpoint.move = move")
        (later,) = parent.fork()
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


# What it has forked on its way stays in the parent: once with the id that owns the namespaces of forks, once with every
# capability in the new one.
LEAVES_THE_ID = """
def move(sock, fork):
    fds = begin(sock)
    user, *others = fds[3:10]
    launch.take_movers_id()
    if os.fork() == 0:
        time.sleep(1000)
    syscalls.setns(user)
    launch.become_guest_of_fork(True)
    for fd in others:
        syscalls.setns(fd)
    if fork():
        os._exit(0)
    return finish(sock, fds)
"""
LEAVES_CAPABILITIES = """
def move(sock, fork):
    fds = begin(sock)
    user, *others = fds[3:10]
    has_movers = launch.take_movers_id()
    syscalls.setns(user)
    launch.become_guest_of_fork(has_movers)
    if os.fork() == 0:
        time.sleep(1000)
    for fd in others:
        syscalls.setns(fd)
    if fork():
        os._exit(0)
    return finish(sock, fds)
"""
WHO_IS_LEFT = """
import os
def of(pid):
    lines = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status") if ":" in line)
    return lines["Uid"].split()[:2], lines["CapEff"].strip(), len(lines["NSpid"].split())
print([found for found in map(of, filter(str.isdigit, os.listdir("/proc")))
       if found[2] == 1 and (found[0] != ["1000", "1000"] or int(found[1], 16))])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for sandboxes with ids of their own")
@pytest.mark.parametrize("poison", [LEAVES_THE_ID, LEAVES_CAPABILITIES])
def test_t01_a_mover_leaves_nobody_behind(poison: str) -> None:
    """Who keeps what the mover was lent could reach forks later; the fork itself is made, and is none the wiser."""
    with Sandbox() as parent:
        assert parent.run_code(f"{HEAD}\n{poison}\ncheckpoint.move = move").error is None

        for child in parent.fork(2):
            with child:
                assert child.run_code("6 * 7").text == "42"

        assert "".join(parent.run_code(WHO_IS_LEFT).logs.stdout).strip() == "[]"
