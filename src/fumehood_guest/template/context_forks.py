"""Forks of a prepared process that become contexts: in the sandbox's namespaces, confined like its init.

Runs in the zygote and in its branches, which have one thread each. The fork enters a sandbox's namespaces, confines
itself there, and becomes a context; it never returns. The process that is forked must never read data of one sandbox:
all later contexts are copies of its memory.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any, Callable, Dict, List, NoReturn

from fumehood_guest.context.channel import FrameSocket
from fumehood_guest.context.context import Context, Shell, run_context
from fumehood_guest.context.outlet import Outlet
from fumehood_guest.context.randomness import reseed
from fumehood_guest.shared import heap_layout, process_usage
from fumehood_guest.shared.folders import HOME
from fumehood_guest.shared.packets import Packets, close_all, parse
from fumehood_jail import launch, seccomp, syscalls
from fumehood_jail.errors import JailError

_PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_USER_SITE = f"{HOME}/.local/lib/{_PYTHON}/site-packages"
_SECCOMP_FILTER = 2
# Twice the number of calls after which the interpreter specializes a function.
_REHEARSALS = 16
# The descriptors of a context: a file with its options, the sandbox's init as a pidfd, a gate that opens when the
# sandbox is set up, channel, standard output, standard error, a socket for the listener of its filter; all further ones
# belong to its control groups.
_GIVEN_FDS = 7
_INIT_PIDFD = 1


class ContextForks:
    """The contexts that are children of this process.

    Args:
        host: The socket on which their ends are reported.
        programs: The system call filter with a listener, and the one without, for when the kernel allows no other
            listener.
        leave: Called first in a fork: releases what belongs to this process alone.

    Attributes:
        shell: The prepared shell, of which each context has a copy.
    """

    def __init__(self, host: Packets, programs: Dict[str, bytes], leave: Callable[[], None]) -> None:
        self.shell: Any = None
        self._host = host
        self._programs = programs
        self._leave = leave
        self._contexts: Dict[int, int] = {}
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def start(self, number: int, fds: List[int]) -> None:
        """Forks a context; the descriptors are closed here."""
        try:
            # Only later children are started there; this process itself stays in its namespace.
            syscalls.setns(fds[_INIT_PIDFD], syscalls.CLONE_NEWPID)
            pid = os.fork()
        except OSError as error:
            syscalls.setns(self._own_pid_namespace, syscalls.CLONE_NEWPID)
            close_all(fds)
            self._host.send(
                {"type": "context_failed", "number": number, "errno": error.errno, "detail": str(error)}
            )
            return

        if pid == 0:
            self._be_context(fds)

        syscalls.setns(self._own_pid_namespace, syscalls.CLONE_NEWPID)
        close_all(fds)
        self._contexts[pid] = number

    def kill(self, number: int) -> None:
        """Kills a context, if it is a child of this process."""
        for pid, known in self._contexts.items():
            if known == number:
                os.kill(pid, signal.SIGKILL)

    def note_end(self, pid: int, status: int) -> None:
        """Reports the end of a child, if it was a context."""
        number = self._contexts.pop(pid, None)

        if number is not None:
            self._host.tell("context_exited", number=number, status=status)

    def _be_context(self, fds: List[int]) -> NoReturn:
        """In the fork: enters the sandbox, confines itself, and becomes the context."""
        launch_fd, init_pidfd, gate, channel, stdout_fd, stderr_fd, listener_fd = fds[:_GIVEN_FDS]
        try:
            self._leave()
            os.setsid()
            launching = parse(os.pread(launch_fd, os.fstat(launch_fd).st_size, 0))
            launch.enter_sandbox(init_pidfd, gate, fds[_GIVEN_FDS:])
            launch.confine(
                launching["options"],
                self._programs["seccomp"],
                is_context=True,
                load_filter=lambda program: self._load_notifying(program, listener_fd),
            )
            _check_confined()
            _add_user_site()
            run_context(self.shell, channel, stdout_fd, stderr_fd, **launching["context"])
        except BaseException as error:
            os.write(
                stderr_fd,
                f"fumehood: the context could not start: {type(error).__name__}: {error}\n".encode(),
            )
        finally:
            os._exit(1)

    def _load_notifying(self, program: bytes, listener_fd: int) -> None:
        """Loads the filter, and hands its listener over to the host."""
        try:
            listener = seccomp.load_notifying(program)
        except OSError:
            # The host itself runs under a filter with a listener, and the kernel allows only one.
            seccomp.load(self._programs["seccomp_untold"])
            return

        with socket.socket(fileno=listener_fd) as sock:
            socket.send_fds(sock, [b"!"], [listener])

        os.close(listener)


def rehearse_launch(shell: Shell) -> None:
    """Repeats the steps of a start that leave no trace, until the interpreter has specialized them.

    Otherwise each context would specialize them again, and write to memory that is copied for that. Attributes are
    looked up again afterwards, since a fork that replaces a lookup writes to the page of a name that it never uses.
    """
    near, far = socket.socketpair()

    with near, far:
        for _ in range(_REHEARSALS):
            parse(b"{}")
            process_usage.applied_restrictions()
            os.environ.get("PATH")
            reseed()
            channel = FrameSocket(near)
            Context(channel, shell, "python")
            Outlet(channel).ready()

    heap_layout.forget_lookups()


def _add_user_site() -> None:
    """Inserts the user's packages before the template's and behind the standard library, as Python itself does."""
    places = (place for place, entry in enumerate(sys.path) if entry.endswith("site-packages"))
    sys.path.insert(next(places, len(sys.path)), _USER_SITE)


def _check_confined() -> None:
    """Checks, before user code runs, that the kernel reports the restrictions as applied."""
    applied = process_usage.applied_restrictions()

    if (
        applied["capabilities"]
        or not applied["no_new_privileges"]
        or applied["seccomp_mode"] != _SECCOMP_FILTER
    ):
        raise JailError("confine the context", 0, f"the kernel says {applied}")
