"""The zygote without namespaces: imports once, then forks a reaper for each sandbox.

Runs as the launcher's child in the template's own interpreter, restricted since its first instruction. It has one
thread and one socket to the host, and never runs user code. Unlike the other zygote it forks whole sandboxes: the
reaper forks init, and init forks contexts, so that every process of a sandbox descends from one that the guest cannot
reach. It must never read data of one sandbox: all later ones are copies of its memory.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, NoReturn

from fumehood_guest.init import landlock_reaper
from fumehood_guest.shared.packets import Packets, close_all
from fumehood_guest.template.zygote import Zygote
from fumehood_jail.landlock_launch import ZYGOTE_FD


class LandlockZygote(Zygote):
    """Forks sandboxes until the host is gone."""

    def __init__(self, host: Packets) -> None:
        super().__init__(host)
        self._program = b""
        self._sandboxes: Dict[int, int] = {}

    def run(self) -> NoReturn:
        """Imports, reports, serves the host; exits when the host closes the socket."""
        config, _ = self._host.receive()
        self._program = bytes.fromhex(config["seccomp"])
        self._prepare(config["preload"])
        self._service.run()

    def _obey(self, request: Dict[str, Any], fds: List[int]) -> None:
        if request["type"] != "spawn":
            return

        try:
            pid = os.fork()
        except OSError as error:
            close_all(fds)
            self._host.send({"type": "failed", "sandbox": request["sandbox"], "detail": str(error)})
            return

        if pid == 0:
            self._service.leave()
            landlock_reaper.main(fds, request["options"], self._program, self._shell)

        close_all(fds)
        self._sandboxes[pid] = request["sandbox"]

    def _note_end(self, pid: int, status: int) -> None:
        sandbox = self._sandboxes.pop(pid, None)

        if sandbox is not None:
            self._host.tell("exited", sandbox=sandbox, status=status)


def main() -> NoReturn:
    """Entry point of the interpreter that the launcher starts."""
    for name in ("PYTHONPATH", "LD_BIND_NOW"):
        os.environ.pop(name, None)

    LandlockZygote(Packets(ZYGOTE_FD)).run()
