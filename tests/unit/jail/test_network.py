"""The network namespace: loopback and nothing else."""

import errno
import socket

from fumehood_jail import network, syscalls
from fumehood_jail.errors import JailError


def test_loopback_works_and_nothing_else(in_namespaces):
    """After `loopback_up` TCP works inside over both families; before it, and beyond, nothing does."""

    def try_network():
        def talk(family, address):
            with socket.socket(family) as server, socket.socket(family) as client:
                server.bind((address, 0))
                server.listen()
                client.connect((address, server.getsockname()[1]))
                return True

        try:
            talk(socket.AF_INET, "127.0.0.1")
            before = 0
        except OSError as error:
            before = error.errno

        network.loopback_up()
        talked = [talk(socket.AF_INET, "127.0.0.1"), not socket.has_ipv6 or talk(socket.AF_INET6, "::1")]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as beyond:
            outside = beyond.connect_ex(("192.0.2.1", 53))

        return [before != 0, talked, outside, [name for _, name in socket.if_nameindex()]]

    worked, talked, outside, devices = in_namespaces(syscalls.CLONE_NEWNET, try_network)
    assert (worked, talked, outside) == (True, [True, True], errno.ENETUNREACH)
    assert devices[0] == "lo"


def test_without_the_right_it_is_an_error(in_child):
    """Somebody who may not configure the network gets the step and the errno."""

    def bring_up():
        syscalls.capset(0, 0, 0)
        try:
            network.loopback_up()
        except JailError as error:
            return [error.step, error.errno]

        return None

    assert in_child(bring_up) == ["network", errno.EPERM]
