"""Branches of the zygote: processes forked before it imported anything, from which contexts of other languages come.

A context of a language beside Python needs none of the template's Python packages, and must not pay for a copy of them:
the zygote forks one branch while it is bare. That branch forks another one for a language with something to prepare,
when the first context of it is asked for: R is loaded, and the driver of Java compiled. They run in the base jail as
the zygote does, have one thread each, get their orders from the process that has forked them, and report to the host on
its socket. They run no user code, must never read data of one sandbox, and end with their parent.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress
from typing import Any, Callable, Dict, List, NoReturn, Optional

from fumehood_guest.context.bare_shell import BareShell
from fumehood_guest.shared import heap_layout
from fumehood_guest.shared.packets import Packets, close_all
from fumehood_guest.shared.preloads import quiet_libraries
from fumehood_guest.template.context_forks import ContextForks, rehearse_launch
from fumehood_guest.template.service_loop import Service
from fumehood_jail import syscalls

# The name of the branch from which all others are forked.
ALL = ""
# Environment variables that only the template's own processes have: their forks, the contexts, must not inherit them.
OF_TEMPLATES = ("MPLCONFIGDIR", "OPENSSL_CONF")


class Preparation:
    """What a branch prepares before it forks contexts; this base class serves languages that need no preparation."""

    def load(self) -> None:
        """Called once, before the first context: imports what every context would otherwise import by itself."""
        # Imported late: the zygote needs none of it.
        from fumehood_guest.languages import node

        node.preload()

    def go_on(self) -> Optional[int]:
        """Called once, after the first context; returns the pid of a child that prepares more, or None."""
        return None

    def finish(self) -> None:
        """Called when that child has ended."""


class RPreparation(Preparation):
    """Loads R, so that each context is a fork of a running R."""

    def load(self) -> None:
        """Loads R, and what every cell needs."""
        # Imported late: only this branch needs it.
        from fumehood_guest.context import r

        r.preload()


class JavaPreparation(Preparation):
    """Compiles the driver of Java, and later makes an archive of the classes that it loads."""

    def load(self) -> None:
        """Compiles the driver."""
        # Imported late: only this branch needs it.
        from fumehood_guest.languages import java

        self._java = java
        java.preload()

    def go_on(self) -> Optional[int]:
        """Starts to write the archive, once no context waits for the compiler."""
        self._writer = self._java.start_archive()
        return None if self._writer is None else self._writer.pid

    def finish(self) -> None:
        """Keeps the archive."""
        self._java.keep_archive()


# The languages with a branch of their own.
PREPARED: Dict[str, Callable[[], Preparation]] = {"r": RPreparation, "java": JavaPreparation}


class ZygoteBranch:
    """A branch of the zygote, for the process that has forked it.

    Args:
        pid: The branch.
        orders: The socket on which it gets its orders.
    """

    def __init__(self, pid: int, orders: socket.socket) -> None:
        self.pid = pid
        self._orders = orders

    def pass_on(self, request: Dict[str, Any], fds: List[int]) -> None:
        """Passes a request on, with its descriptors, which are closed here."""
        # A branch that has just ended is reported soon, and its requests fail then.
        with suppress(OSError):
            socket.send_fds(self._orders, [json.dumps(request).encode()], fds)

        close_all(fds)

    def close(self) -> None:
        """Closes the socket for orders, in a forked process that must not hold it."""
        self._orders.close()


def grow(host: Packets, programs: Dict[str, bytes], preparation: Optional[Preparation]) -> ZygoteBranch:
    """Forks a branch.

    Args:
        host: The socket to the host.
        programs: See `ContextForks`.
        preparation: What the branch prepares for its language; None where no program of the root may run outside of
            sandboxes: then it prepares nothing, and has no branches for single languages.
    """
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()

    if pid == 0:
        near.close()

        for name in OF_TEMPLATES:
            os.environ.pop(name, None)

        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        LanguageBranch(Packets(far.detach()), host, programs, preparation).run()

    far.close()
    return ZygoteBranch(pid, near)


class LanguageBranch:
    """The process of a branch.

    Args:
        orders: The socket to its parent.
        host: The socket to the host; it only writes there.
        programs: See `ContextForks`.
        preparation: See `grow`.
    """

    def __init__(
        self, orders: Packets, host: Packets, programs: Dict[str, bytes], preparation: Optional[Preparation]
    ) -> None:
        self._host = host
        self._programs = programs
        self._preparation = preparation
        self._going_on: Optional[int] = None
        self._service = Service(orders, self._obey, self._note_end)
        self._forks = ContextForks(host, programs, self._service.leave)
        self._branches: Dict[str, ZygoteBranch] = {}

    def run(self) -> NoReturn:
        """Serves its parent; exits when the parent closes the socket."""
        self._service.run()

    def _obey(self, request: Dict[str, Any], fds: List[int]) -> None:
        name = request.pop("branch", "")

        if request["type"] == "kill_context":
            self._forks.kill(request["number"])

            for branch in self._branches.values():
                branch.pass_on(request, fds)
        elif name in PREPARED and self._preparation is not None:
            if name not in self._branches:
                self._branches[name] = grow(self._host, self._programs, PREPARED[name]())

            self._branches[name].pass_on(request, fds)
        elif request["type"] == "start_context":
            self._start(request["number"], fds)

    def _start(self, number: int, fds: List[int]) -> None:
        is_first = self._forks.shell is None

        if is_first:
            with quiet_libraries():
                self._forks.shell = BareShell()

                if self._preparation is not None:
                    self._preparation.load()

                syscalls.name_libraries_by_real_path()
                rehearse_launch(self._forks.shell)

            heap_layout.freeze()

        self._forks.start(number, fds)

        if is_first and self._preparation is not None:
            self._going_on = self._preparation.go_on()

    def _note_end(self, pid: int, status: int) -> None:
        if pid == self._going_on and self._preparation is not None:
            self._preparation.finish()
            return

        for name, branch in list(self._branches.items()):
            if pid == branch.pid:
                del self._branches[name]
                branch.close()
                self._host.send({"type": "branch_ended", "branch": name})
                return

        self._forks.note_end(pid, status)
