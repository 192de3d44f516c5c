"""The TCP ports on which programs of one guest listen, and the program that listens on each.

Runs in the host process, in a thread: it reads what the kernel reports about the guest's network namespace and
processes. It must never read a guest's memory, as `/proc/PID/cmdline` does, and never wait for the guest. What it
reads is bounded, whatever the guest has opened. Names of programs are chosen by the guest.
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from fumehood.runtimes.namespaces.isolation import numbers_of
from fumehood.values.looking import MAX_PORTS, ListeningPort

_LISTENING = b"0A"
_MOST_SOCKETS = 1024
# Processes that are looked at, and descriptors of all of them together.
_MOST_PROCESSES = 512
_MOST_DESCRIPTORS = 4096
_LINK = re.compile(r"socket:\[(\d+)\]")
_TICKS = os.sysconf("SC_CLK_TCK")
# Of /proc/PID/stat, behind the name: the state is field 3, the start field 22.
_START = 22 - 3


@dataclass(frozen=True, slots=True)
class _Socket:
    address: str
    port: int
    inode: int


def read_listening(folder: str, pids: Iterable[int]) -> tuple[ListeningPort, ...]:
    """Returns the ports of a network namespace on which something listens, in ascending order.

    Args:
        folder: The folder in /proc with the network namespace's statistics.
        pids: The guest's processes, by their pids on the host.
    """
    sockets = [*_sockets(f"{folder}/tcp"), *_sockets(f"{folder}/tcp6")]
    holders = _holders(pids, {one.inode for one in sockets}) if sockets else {}
    ports: dict[int, list[_Socket]] = {}

    for one in sockets:
        ports.setdefault(one.port, []).append(one)

    return tuple(_described(port, ports[port], holders) for port in sorted(ports)[:MAX_PORTS])


def _described(port: int, sockets: list[_Socket], holders: dict[int, int]) -> ListeningPort:
    addresses = tuple(dict.fromkeys(one.address for one in sockets))
    pid = min((holders[one.inode] for one in sockets if one.inode in holders), default=0)
    program = _program(pid) if pid else None
    return replace(program or ListeningPort(port=port), port=port, addresses=addresses)


def processes_of(namespace: int) -> Iterator[int]:
    """Yields the processes of a PID namespace, given by its inode number, as far as this process may see them."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.stat(f"/proc/{name}/ns/pid").st_ino == namespace:
                    yield int(name)


def _sockets(path: str) -> Iterator[_Socket]:
    with suppress(OSError), open(path, "rb") as file:
        next(file, None)

        # Listening sockets come first.
        for number, row in enumerate(file):
            fields = row.split(maxsplit=10)

            if fields[3] != _LISTENING or number >= _MOST_SOCKETS:
                return

            address, _, port = fields[1].partition(b":")
            yield _Socket(_address(bytes.fromhex(address.decode("ascii"))), int(port, 16), int(fields[9]))


def _address(words: bytes) -> str:
    """Returns an address whose 32-bit words the kernel has printed as numbers in this machine's byte order."""
    numbers = struct.unpack(f">{len(words) // 4}I", words)
    packed = struct.pack(f"={len(numbers)}I", *numbers)
    return str(ipaddress.ip_address(packed))


def _holders(pids: Iterable[int], wanted: set[int]) -> dict[int, int]:
    """Returns the process that holds each socket: of the processes examined, the one with the lowest pid."""
    found: dict[int, int] = {}
    left = _MOST_DESCRIPTORS

    for pid in sorted(pids)[:_MOST_PROCESSES]:
        if found.keys() >= wanted or left <= 0:
            break

        with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                left -= 1

                if left < 0:
                    break

                inode = _inode(entry.path)

                if inode in wanted:
                    found.setdefault(inode, pid)

    return found


def _inode(path: str) -> int:
    with suppress(OSError):
        if match := _LINK.fullmatch(os.readlink(path)):
            return int(match[1])

    return 0


def _program(pid: int) -> ListeningPort | None:
    """Describes a process that listens; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            said = file.read()
    except OSError:
        return None

    # The name is in parentheses, and may hold some.
    name = said[said.index(b"(") + 1 : said.rindex(b")")].decode("utf-8", "replace")
    ticks = int(said[said.rindex(b")") + 1 :].split()[_START])
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS
    # To the second: the two clocks are not read at one moment.
    started_at = datetime.fromtimestamp(round(time.time() - age_seconds), UTC)
    numbers = numbers_of(pid)
    return ListeningPort(port=0, program=name, pid=numbers[-1] if numbers else None, started_at=started_at)
