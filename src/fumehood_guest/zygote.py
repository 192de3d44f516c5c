"""The zygote: imports once what every sandbox of a template needs, then clones ready sandboxes on request.

Runs as PID 1 of a base jail, started by the keeper in the template's own interpreter. It has one thread, one socket to
the host (fd 3, one JSON message a packet) and never runs user code: a clone of it becomes the init of a sandbox and
never comes back. What it imports is the template's and not ours, which is why it lives in a jail itself. It must never read
what belongs to one sandbox: all later ones are copies of its memory.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from typing import Any, Dict, List, NoReturn, Tuple

from fumehood_guest import init
from fumehood_guest.shell import PythonShell
from fumehood_jail import mounts, namespaces, syscalls
from fumehood_jail.launch import CONTROL_FD

MAX_PACKET_BYTES = 1 << 18
# What an init is given: see `init.main`.
_MAX_FDS = 16

# While packages are imported they may start no threads: a clone copies only one.
_SINGLE_THREADED = {
    name: "1"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "BLIS_NUM_THREADS")
}


class Zygote:
    """Clones sandboxes for the host until the host is gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._program = b""
        self._shell: Any = None
        self._sandboxes: Dict[int, int] = {}
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> NoReturn:
        """Serves the host; leaves the process when the host closes the socket."""
        config, _ = self._receive()
        self._program = bytes.fromhex(config["seccomp"])
        os.environ.update(_SINGLE_THREADED)
        missing: List[str] = []
        self._shell = PythonShell.prepare(preload=_importable(config["preload"], missing))

        for name in (*_SINGLE_THREADED, "MPLCONFIGDIR"):
            os.environ.pop(name, None)

        mounts.find_maskable()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        # What is alive now is shared by all clones: without the freeze, a collection in one would copy all of it.
        gc.collect()
        gc.freeze()
        syscalls.collapse_into_huge_pages()
        version = ".".join(str(part) for part in sys.version_info[:3])
        self._send({"type": "ready", "python": version, "missing": missing, "threads": len(os.listdir("/proc/self/task"))})
        self._serve()

    def _serve(self) -> NoReturn:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wakeup_read, select.POLLIN)

        while True:
            ready = {fd for fd, _ in poller.poll()}

            if self._wakeup_read in ready:
                os.read(self._wakeup_read, 4096)
                self._reap()

            if self._control.fileno() in ready:
                self._obey(*self._receive())

    def _obey(self, request: Dict[str, Any], fds: List[int]) -> None:
        if request["type"] == "spawn":
            self._spawn(request, fds)
        elif request["type"] == "kill":
            self._kill(request["sandbox"])

    def _spawn(self, request: Dict[str, Any], fds: List[int]) -> None:
        gate = namespaces.Gate()
        try:
            pid = syscalls.clone(namespaces.JAIL_FLAGS)
        except OSError as error:
            gate.close()
            _close_all(fds)
            self._send({"type": "failed", "sandbox": request["sandbox"], "errno": error.errno, "detail": str(error)})
            return

        if pid == 0:
            self._be_init(gate, fds)

        _close_all(fds)
        self._sandboxes[pid] = request["sandbox"]
        try:
            namespaces.write_single_map(pid, inside=init.GUEST_UID, outside=request["slot"])
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            gate.close()
            self._send({"type": "failed", "sandbox": request["sandbox"], "errno": 0, "detail": str(error)})
            return

        gate.open()

    def _be_init(self, gate: namespaces.Gate, fds: List[int]) -> NoReturn:
        signal.set_wakeup_fd(-1)
        try:
            gate.wait()
            os.close(CONTROL_FD)
            os.close(self._wakeup_read)
            os.close(self._wakeup_write)
            init.main(fds, self._program, self._shell)
        except BaseException as error:
            init.report_failure(fds[0], error)

        os._exit(1)

    def _kill(self, sandbox: int) -> None:
        for pid, number in self._sandboxes.items():
            if number == sandbox:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return

            if pid == 0:
                return

            sandbox = self._sandboxes.pop(pid, None)

            if sandbox is not None:
                self._send({"type": "exited", "sandbox": sandbox, "status": os.waitstatus_to_exitcode(status)})

    def _receive(self) -> Tuple[Dict[str, Any], List[int]]:
        data, fds, _, _ = socket.recv_fds(self._control, MAX_PACKET_BYTES, _MAX_FDS)

        if not data:
            os._exit(0)

        return json.loads(data), fds

    def _send(self, message: Dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)


def _close_all(fds: List[int]) -> None:
    for fd in fds:
        os.close(fd)


def _importable(names: List[str], missing: List[str]) -> List[str]:
    """Returns the names that the template has; the others are listed in `missing`, and reported to the host."""
    import importlib.util

    found = []

    for name in names:
        (found if importlib.util.find_spec(name.partition(".")[0]) else missing).append(name)

    return found


def main() -> NoReturn:
    """Entry point: `python -c 'from fumehood_guest.zygote import main; main()'` in the base jail."""
    os.environ.pop("PYTHONPATH", None)
    Zygote(socket.socket(fileno=CONTROL_FD)).run()
