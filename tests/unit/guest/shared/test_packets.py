"""Jail init and zygote read what the host has sent, with its descriptors, and answer in JSON."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from fumehood_guest.shared.packets import Packets, close_all, parse


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Packets]]:
    host, guest = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with host:
        packets = Packets(guest.detach())
        yield host, packets
        os.close(packets.fileno())
        packets._sock.detach()


def test_a_request_comes_with_its_descriptors_which_no_program_inherits(pair):
    host, packets = pair
    request = {"type": "spawn", "spare": [[1, 2, 3]], "name": 'é"\\', "is_fork": False, "memory": None}
    pipe = os.pipe()
    socket.send_fds(host, [json.dumps(request).encode()], list(pipe))
    host.send(b"{}")

    got, fds = packets.receive()
    rest = packets.receive()

    assert got == request
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(fd).st_ino for fd in pipe]
    assert not any(os.get_inheritable(fd) for fd in fds)
    assert rest == ({}, [])
    close_all([*fds, *pipe])


def test_only_the_first_packet_may_be_large(pair):
    host, packets = pair
    configuration = {"seccomp": "0" * 200_000}
    host.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    host.send(json.dumps(configuration).encode())

    assert packets.receive() == (configuration, [])


def test_numbers_are_reported_as_json(pair):
    host, packets = pair
    packets.tell("exited", sandbox=7, status=-9)

    assert json.loads(host.recv(100)) == {"type": "exited", "sandbox": 7, "status": -9}


def test_what_is_not_json_is_refused():
    with pytest.raises((ValueError, StopIteration)):
        parse(b"[1, ")
