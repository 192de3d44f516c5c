"""A step of a build: one program of an image, run in that image by the image's user.

Runs in an image jail (`image.jail`) that has the image's own root. The first process of the jail stays between the
program and the host: it relays connections to the proxy, reaps, and ends when the program has ended, which ends
everything else. What the program writes goes straight to the host's pipe.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import Any, Dict, List, NoReturn, Optional

from fumehood_jail import rlimits

EXIT_NOT_STARTED = 127
# The same as in every sandbox, so that the same environment variables hold.
_PROXY_PORT = 3128
_RELAY_BYTES = 1 << 16
_MOST_RELAYS = 64


def run(order: Dict[str, Any], proxy: Optional[socket.socket]) -> NoReturn:
    """Runs a program to its end, and exits with its status, or with 128 and the number of the signal that ended it.

    Args:
        order: `argv`, `envs`, `cwd`, `uid`, `gid` and `groups` of the program, and its `rlimits`.
        proxy: The socket from which each connection gets a stream of the host; without it there is no network.
    """
    wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    listener = _listen() if proxy is not None else None
    program = os.fork()

    if program == 0:
        _be_program(order)

    poller = select.poll()
    poller.register(wake, select.POLLIN)

    if listener is not None:
        poller.register(listener, select.POLLIN)

    while True:
        for fd, _ in poller.poll():
            if listener is not None and fd == listener.fileno():
                _relay(listener, proxy)
            else:
                os.read(wake, 512)

        status = _reaped(program)

        if status is not None:
            os._exit(status)


def _be_program(order: Dict[str, Any]) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.setsid()
        os.umask(0o022)
        rlimits.apply(order["rlimits"])
        os.setgroups(order["groups"])
        os.setgid(order["gid"])
        os.setuid(order["uid"])
        os.chdir(order["cwd"])
        os.execvpe(order["argv"][0], order["argv"], order["envs"])  # noqa: S606 - the program of the step
    except BaseException as error:
        os.write(2, f"fumehood: cannot start {order['argv'][0]!r}: {error}\n".encode())
    finally:
        os._exit(EXIT_NOT_STARTED)


def _reaped(program: int) -> Optional[int]:
    """Reaps ended processes; returns the exit status of the program if it has ended, else None."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return EXIT_NOT_STARTED

        if pid == 0:
            return None

        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _listen() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", _PROXY_PORT))
    listener.listen(_MOST_RELAYS)
    return listener


def _relay(listener: socket.socket, proxy: Optional[socket.socket]) -> None:
    """Forks a process that copies data between a connection and the host's stream for it."""
    connection, _ = listener.accept()

    with connection:
        assert proxy is not None
        proxy.send(b"?")
        word, fds, _, _ = socket.recv_fds(proxy, 1, 1)

        if not word or not fds:
            return

        with socket.socket(fileno=fds[0]) as stream:
            if os.fork() == 0:
                try:
                    signal.set_wakeup_fd(-1)
                    listener.close()
                    _carry(connection, stream)
                finally:
                    os._exit(0)


def _carry(one: socket.socket, other: socket.socket) -> None:
    """Copies bytes both ways until both directions are at their end."""
    ways: List[Any] = [(one, other), (other, one)]

    while ways:
        ready, _, _ = select.select([source for source, _ in ways], [], [])

        for source, target in list(ways):
            if source not in ready:
                continue

            try:
                data = source.recv(_RELAY_BYTES)
                target.sendall(data)
            except OSError:
                return

            if not data:
                ways.remove((source, target))
                target.shutdown(socket.SHUT_WR)
