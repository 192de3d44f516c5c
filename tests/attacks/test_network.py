"""N01, N09, N10: a sandbox without network reaches nothing, at once, and no name leaves it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from fumehood.scorecard.probes import ELSEWHERE, METADATA
from fumehood.scorecard.scene import CountingListener

# Less than the probe waits for.
FAST_SECONDS = 4.0


@pytest.fixture
def listener() -> Iterator[CountingListener]:
    listener = CountingListener()
    yield listener
    listener.close()


def test_n01_off_means_off(inside):
    """TCP, UDP, multicast and broadcast, IPv4 and IPv6: no route, told at once."""
    said = inside("go_out", ELSEWHERE)
    assert {answer for answer, _ in said.values()} <= {"ENETUNREACH", "EADDRNOTAVAIL", "EACCES"}, said
    assert all(seconds < FAST_SECONDS for _, seconds in said.values())


def test_n01_there_is_a_loopback_and_nothing_else(inside, outside):
    """One interface; no route but its own; raw sockets are refused, as is asking the kernel for routes."""
    found = inside("interfaces")
    assert found["names"] == ["lo"]
    assert found["routes"] == []
    assert found["netlink"] == "ENOTSUP"

    control = outside("interfaces")
    assert control["netlink"] == "ok"


def test_n01_the_loopback_works_inside(attacked):
    """What talks to itself may: servers and clients of one sandbox."""
    said = attacked.run(
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "client.send(b'here'); print(server.accept()[0].recv(4))\n"
    )
    assert said == "b'here'\n"


def test_n09_metadata_services_are_out_of_reach(inside):
    """The addresses where clouds hand out credentials."""
    said = inside("go_out", METADATA)
    assert {answer for answer, _ in said.values()} <= {"ENETUNREACH", "EADDRNOTAVAIL"}, said
    assert all(seconds < FAST_SECONDS for _, seconds in said.values())


def test_n09_services_on_the_loopback_of_the_host_are_out_of_reach(inside, outside, listener):
    """The same address inside is the sandbox's own: refused there, while the host's server sees nobody."""
    targets = [("tcp", "127.0.0.1", listener.port), ("udp", "127.0.0.1", listener.port)]
    targets += [("tcp", "::ffff:127.0.0.1", listener.port), ("tcp", "0.0.0.0", listener.port)]
    said = inside("go_out", targets)
    assert {answer for name, (answer, _) in said.items() if name.startswith("tcp")} == {"ECONNREFUSED"}
    assert listener.visits() == 0

    control = outside("go_out", targets[:2])
    assert {answer for answer, _ in control.values()} == {"ok"}
    assert listener.visits() == 2


def test_n10_no_name_leaves(attacked, listener, canary):
    """No resolver is configured, and labels asked of any address reach no server."""
    said = attacked.run(
        f"import socket, time\n"
        f"started = time.monotonic()\n"
        f"failed = 0\n"
        f"for number in range(200):\n"
        f"    try: socket.getaddrinfo(f'{{number}}.{canary}.example.com', 80)\n"
        f"    except socket.gaierror: failed += 1\n"
        f"for server in ('127.0.0.1', '127.0.0.53', '192.0.2.53'):\n"
        f"    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:\n"
        f"        try: query.sendto(b'{canary}', (server, {listener.port}))\n"
        f"        except OSError: pass\n"
        f"print(failed, time.monotonic() - started < 5, open('/etc/resolv.conf').read().count('nameserver'))\n"
    )
    assert said.split() == ["200", "True", "0"]
    assert listener.visits() == 0


def test_n10_outside_a_query_would_arrive(listener):
    """The control: the very datagram reaches the server from the host."""
    arrived = threading.Event()

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        query.sendto(b"query", ("127.0.0.1", listener.port))

    if listener.visits() == 1:
        arrived.set()

    assert arrived.is_set()
