"""R01, R10: memory of the kernel that no control group is charged for is bounded by counting what it is held for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fumehood import Limits, SandboxClosedError
from fumehood.runtimes.linux import usage as linux_uncharged

MIB = 1 << 20

# Connections that are never accepted, each with some bytes, by clients that have gone.
QUEUES = """
import socket
def listen():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    listeners.append(listener)
listeners, made = [], 0
listen()
while made < MOST:
    client = socket.socket()
    client.settimeout(0.05)
    try:
        client.connect(listeners[-1].getsockname())
        client.send(bytes(4096))
        made += 1
    except TimeoutError:
        listen()
    client.close()
print(made)
"""
_QUEUED = 2000

LOCKS = """
import fcntl, itertools, os
files = [os.open(f"locked{number}", os.O_RDWR | os.O_CREAT) for number in range(400)]
made = 0
for place in range(1 << 40, 0, -2):
    for file in files: fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
    made += len(files)
    if made >= MOST: break
print(made)
"""
_LOCKED = 40_000


def machine_locks() -> int:
    """How many record locks all processes of the machine have."""
    with open("/proc/locks", "rb") as file:
        return sum(b" POSIX " in row for row in file)


def run_outside(code: str, most: int, folder: Path) -> int:
    """Runs an attack without a sandbox, as far as the machine can well bear; returns how far it came."""
    words = [sys.executable, "-I", "-S", "-c", code.replace("MOST", str(most))]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_r01_connections_that_are_not_accepted_are_bounded(make, tmp_path):
    """A sandbox that queues them without end is ended with a reason, before they take a multiple of its limit."""
    mine = make(limits=Limits(memory_bytes=64 * MIB, wall_seconds=60))
    before = linux_uncharged.machine_sockets() or 0

    with pytest.raises(SandboxClosedError, match="too many connections waited") as caught:
        mine.sandbox.run_code(QUEUES.replace("MOST", str(_QUEUED)))

    assert caught.value.reason == "excess"
    assert (linux_uncharged.machine_sockets() or 0) - before < _QUEUED

    assert run_outside(QUEUES, _QUEUED, tmp_path) == _QUEUED


def test_r01_as_many_connections_as_a_server_has_are_fine(make):
    """The other side of the bound: what is accepted may be much more."""
    code = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0), backlog=16)\n"
        "pairs = []\n"
        "for _ in range(800):\n"
        "    client = socket.create_connection(server.getsockname())\n"
        "    pairs.append((client, server.accept()[0]))\n"
        "    client.send(bytes(2000))\n"
        "import time; time.sleep(0.6)\n"
        "print(sum(len(end.recv(4000)) for _, end in pairs))\n"
    )
    assert make(limits=Limits(open_files=4096)).run(code) == "1600000\n"


def test_r01_a_queue_of_connections_is_short(attacked):
    """However long a program wants it: 128, and a buffer begins with 32 KiB and is not made larger by asking."""
    said = attacked.run(
        "import socket\n"
        "listener = socket.socket()\n"
        "listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)\n"
        "listener.bind(('127.0.0.1', 0)); listener.listen(4096)\n"
        "clients = []\n"
        "try:\n"
        "    while len(clients) < 200:\n"
        "        clients.append(socket.create_connection(listener.getsockname(), timeout=0.2))\n"
        "except TimeoutError: pass\n"
        "print(len(clients), listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))\n"
        "try: listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 20)\n"
        "except OSError as error: print(error.errno)\n"
    ).split()
    # The kernel lets one more in than it says.
    assert said == ["129", "32768", "92"]


def test_r10_record_locks_are_bounded(make, needs_cgroups, tmp_path):
    """A sandbox that takes them without end is ended with a reason; the control takes as many as it wants."""
    mine = make(limits=Limits(wall_seconds=60))

    with pytest.raises(SandboxClosedError, match="too many locks") as caught:
        mine.sandbox.run_code(LOCKS.replace("MOST", "10 ** 9"), timeout=60)

    assert caught.value.reason == "excess"
    assert machine_locks() < _LOCKED
    assert run_outside(LOCKS, _LOCKED, tmp_path) == _LOCKED


def test_r10_unchargeable_locks_are_refused(attacked):
    """Those of an open file, and open files in common with a process that may end; locks of a process work."""
    said = attacked.run(
        "import ctypes, fcntl, os, struct\n"
        "file = os.open('locked', os.O_RDWR | os.O_CREAT)\n"
        "whole = struct.pack('hhlli', fcntl.F_WRLCK, 0, 0, 1, 0)\n"
        "for command in (37, 38):\n"
        "    try: fcntl.fcntl(file, command, whole)\n"
        "    except OSError as error: print(error.errno)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "number = {'x86_64': 56}.get(os.uname().machine, 220)\n"
        "print(libc.syscall(number, 0x400 | 17, 0, 0, 0, 0), ctypes.get_errno())\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0); print('locked')\n"
    ).split()
    assert said == ["22", "22", "-1", "1", "locked"]


def test_r10_no_groups_of_multicast(attacked):
    """The kernel keeps a record of each for as long as the socket lives; no sandbox has one to join."""
    said = attacked.run(
        "import socket, struct\n"
        "four, six = (socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_INET6))\n"
        "lo = socket.inet_aton('127.0.0.1')\n"
        "group6 = socket.inet_pton(socket.AF_INET6, 'ff15::1') + struct.pack('=I', 1)\n"
        "for join in (lambda: four.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, b'\\xe0\\1\\1\\1' + lo),\n"
        "             lambda: six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group6)):\n"
        "    try: join(); print('joined')\n"
        "    except OSError as error: print(error.errno)\n"
    ).split()
    assert said == ["19", "19"]


def test_r10_no_keys_of_signed_connections(attacked):
    """A socket could have a thousand of them, of which nothing counts; the control may have some."""
    code = (
        "import socket, struct\n"
        "taken, signed = 0, socket.socket()\n"
        "for number in range(200):\n"
        "    address = struct.pack('=HH4s8x', 2, 0, struct.pack('!I', 10 << 24 | number)) + bytes(112)\n"
        "    try: signed.setsockopt(6, 14, address + struct.pack('=BBHi', 0, 0, 8, 0) + b'k' * 80)\n"
        "    except OSError: break\n"
        "    taken += 1\n"
        "print(taken)\n"
    )
    assert attacked.run(code) == "0\n"
    control = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)

    if control.stdout == "0\n":
        pytest.skip("needs a kernel with signed connections, for the control")
