"""Listening sockets as the kernel lists them, read from namespaces and processes of this test."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from fumehood.runtimes.namespaces.listening import processes_of, read_listening

_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
_ROW = (
    "{n:4}: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1\n"
)


def test_a_socket_has_its_address_and_its_holder() -> None:
    """Those of this process: IPv4 and IPv6, and none that was closed."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.socket(socket.AF_INET6) as six:
        six.bind(("::1", 0))
        six.listen()
        wanted = {one.getsockname()[1]: ("127.0.0.1",), six.getsockname()[1]: ("::1",)}
        found = {each.port: each for each in read_listening("/proc/self/net", [os.getpid()])}
        assert {port: found[port].addresses for port in wanted} == wanted
        assert {found[port].pid for port in wanted} == {os.getpid()}
        # Without a process that holds it the port is listed alone.
        alone = {each.port: each for each in read_listening("/proc/self/net", [])}
        assert [(alone[port].program, alone[port].pid) for port in wanted] == [("", None)] * 2

    assert not wanted.keys() & {each.port for each in read_listening("/proc/self/net", [])}


def test_a_list_is_bounded_and_ends_where_connections_begin(tmp_path: Path) -> None:
    """The kernel lists the listening ones first; a guest may have opened any number of both."""
    rows = [
        _ROW.format(n=number, local=f"0100007F:{number + 1:04X}", state="0A", inode=number)
        for number in range(3000)
    ]
    (tmp_path / "tcp").write_text(_HEAD + "".join(rows))
    assert len(read_listening(str(tmp_path), [])) == 256
    (tmp_path / "tcp").write_text(
        _HEAD + rows[7] + _ROW.format(n=1, local="0100007F:1F40", state="01", inode=9) + rows[8]
    )
    assert [(each.port, each.addresses) for each in read_listening(str(tmp_path), [])] == [
        (8, ("127.0.0.1",))
    ]
    assert read_listening(str(tmp_path / "gone"), [os.getpid()]) == ()


@pytest.mark.parametrize("name", [") S 1 (", "a\n\x1b[31m", "(((", "é" * 7])
def test_a_name_that_a_program_chose_misleads_no_field(name: str) -> None:
    """The name stands in parentheses before the fields, and the guest writes it."""
    comm = Path("/proc/self/comm")
    earlier = comm.read_text()

    with socket.create_server(("127.0.0.1", 0)) as one:
        try:
            comm.write_text(name)
            found = {each.port: each for each in read_listening("/proc/self/net", [os.getpid()])}
        finally:
            comm.write_text(earlier.rstrip("\n"))

        here = found[one.getsockname()[1]]
        assert here.program == name.encode()[:15].decode("utf-8", "replace")
        assert (here.pid, here.started_at is not None) == (os.getpid(), True)


def test_a_look_ends_after_4096_descriptors() -> None:
    """A guest may open many more; the port behind them is listed without its program. In the control it has one."""
    earlier = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(earlier[0], 8192), earlier[1]))

    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as before:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, earlier)
        descriptors = [os.dup(0) for _ in range(4096)]
        stack.callback(lambda: [os.close(one) for one in descriptors])
        behind = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        found = {each.port: each.pid for each in read_listening("/proc/self/net", [os.getpid()])}
        assert [found[one.getsockname()[1]] for one in (before, behind)] == [os.getpid(), None]


def test_processes_of_a_namespace_are_found_without_a_control_group() -> None:
    """Where no cgroup lists them."""
    assert os.getpid() in set(processes_of(os.stat("/proc/self/ns/pid").st_ino))
    assert list(processes_of(1)) == []
