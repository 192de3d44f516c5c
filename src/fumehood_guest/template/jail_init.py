"""The jail init: makes sandboxes for the host: namespaces, and in them the process that becomes init.

Runs as PID 1 of a base jail, started by the launcher in the template's own interpreter. It stays small, so that cloning
it costs little: modules of the template are imported only by the zygote, which it forks at its start. It has one
thread, never runs user code, and when it ends the kernel ends everything in the base jail. It must never read data of
one sandbox: all later inits are copies of its memory.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Any, Dict, List, NoReturn

from fumehood_guest.init import home, init
from fumehood_guest.shared import heap_layout, process_usage
from fumehood_guest.shared.packets import Packets, close_all
from fumehood_guest.template.service_loop import Service
from fumehood_jail import launch, mounts, namespaces, syscalls
from fumehood_jail.launch import GUEST_UID, JAIL_INIT_FD, ZYGOTE_FD
from fumehood_wire.frames import encode

# Time limit for the helper processes that make a fork.
_WITHIN_SECONDS = 30
_NUMBER_BYTES = 16
# As in the zygote.
_REHEARSALS = 16


class JailInit:
    """Clones inits until the host is gone.

    Args:
        host: The socket to the host.
        zygote_pid: The zygote; when it ends, this process ends too.
    """

    def __init__(self, host: Packets, zygote_pid: int) -> None:
        self._host = host
        self._zygote_pid = zygote_pid
        self._program = b""
        self._sandboxes: Dict[int, int] = {}
        self._service = Service(host, self._obey, self._note_end)

    def run(self) -> NoReturn:
        """Serves the host; exits when the host closes the socket."""
        config, _ = self._host.receive()
        self._program = bytes.fromhex(config["seccomp"])
        mounts.look_around()
        home.find_given()

        # As in the zygote.
        if config["has_one_sandbox"]:
            heap_layout.freeze_as_it_is()
        else:
            heap_layout.forget_lookups()
            _rehearse_launch()
            heap_layout.freeze()

        self._service.run()

    def _obey(self, request: Dict[str, Any], fds: List[int]) -> None:
        if request["type"] == "spawn":
            self._spawn(request, fds)
        elif request["type"] == "spawn_within":
            self._spawn_within(request, fds)
        elif request["type"] == "kill":
            self._kill(request["sandbox"])
        elif request["type"] == "kill_held":
            self._kill_held(fds)

    def _spawn(self, request: Dict[str, Any], fds: List[int]) -> None:
        gate = namespaces.Gate()
        try:
            pid = syscalls.clone(namespaces.JAIL_FLAGS)
        except OSError as error:
            gate.close()
            close_all(fds)
            self._failed(request["sandbox"], error)
            return

        if pid == 0:
            self._be_init(gate, fds, request["options"])

        close_all(fds)
        self._sandboxes[pid] = request["sandbox"]
        try:
            namespaces.write_map(pid, GUEST_UID, request["slot"], request["spare"])
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            gate.close()
            self._failed(request["sandbox"], error)
            return

        gate.open()

    def _spawn_within(self, request: Dict[str, Any], fds: List[int]) -> None:
        """Makes the init of a forked sandbox, in namespaces nested in those of the parent.

        A forked process, the map writer, enters the parent's namespaces. This process does not wait for it: the new
        init's socket reports the outcome to the host.
        """
        sock, gate, pids, mount_namespace, *users = fds
        try:
            is_map_writer = os.fork() == 0
        except OSError as error:
            init.report_failure(sock, error)
            is_map_writer = False

        if is_map_writer:
            self._service.leave()
            # Guest code of that sandbox may interfere with the processes that are started there.
            signal.alarm(_WITHIN_SECONDS)
            try:
                namespaces.enter_ancestors(users, pids)
                close_all([pids, *users])
                self._write_maps_outside(sock, gate, mount_namespace, request)
            except BaseException as error:
                init.report_failure(sock, error)

            os._exit(0)

        close_all(fds)

    def _write_maps_outside(
        self, sock: int, gate: int, mount_namespace: int, request: Dict[str, Any]
    ) -> None:
        """Has the new init cloned by a process of its own, and writes the id maps of the new init's user namespace.

        Runs in the map writer, outside that user namespace: with the base jail's user id, and with every capability in
        the parent sandbox. The process that it forks starts in the PID namespace of the parent, so that it can clone
        into a nested one.
        """
        maps_gate = namespaces.Gate()
        read_end, write_end = os.pipe()

        if os.fork() == 0:
            try:
                self._be_parent_within([sock, gate], mount_namespace, request, maps_gate, write_end)
            except BaseException as error:
                init.report_failure(sock, error)

            os._exit(0)

        os.close(write_end)
        number = os.read(read_end, _NUMBER_BYTES)

        if number:
            namespaces.write_map(int(number), GUEST_UID, request["slot"], request["spare"])
            maps_gate.open()

    def _be_parent_within(
        self,
        fds: List[int],
        mount_namespace: int,
        request: Dict[str, Any],
        maps_gate: namespaces.Gate,
        write_end: int,
    ) -> None:
        """Clones the new init within the parent sandbox's namespaces, as the user that owns the new namespaces."""
        signal.alarm(_WITHIN_SECONDS)
        mounts.leave_sandbox(mount_namespace)
        os.close(mount_namespace)
        launch.become_owner_of_fork(request["options"]["has_migrators"])
        pid = syscalls.clone(namespaces.JAIL_FLAGS)

        if pid == 0:
            os.close(write_end)
            maps_gate.wait()
            init.main(fds, request["options"], self._program)

        os.write(write_end, str(namespaces.number_outside(pid)).encode("ascii"))

    def _kill_held(self, fds: List[int]) -> None:
        """Kills processes that the host refers to by pidfds and may not signal itself."""
        for fd in fds:
            try:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            except ProcessLookupError:
                continue

        close_all(fds)

    def _failed(self, sandbox: int, error: OSError) -> None:
        self._host.send({"type": "failed", "sandbox": sandbox, "errno": error.errno, "detail": str(error)})

    def _be_init(self, gate: namespaces.Gate, fds: List[int], options: Dict[str, Any]) -> NoReturn:
        self._service.leave()
        try:
            gate.wait()
            init.main(fds, options, self._program)
        except BaseException as error:
            init.report_failure(fds[0], error)

        os._exit(1)

    def _kill(self, sandbox: int) -> None:
        for pid, number in self._sandboxes.items():
            if number == sandbox:
                os.kill(pid, signal.SIGKILL)

    def _note_end(self, pid: int, status: int) -> None:
        if pid == self._zygote_pid:
            os._exit(status & 0xFF)

        sandbox = self._sandboxes.pop(pid, None)

        if sandbox is not None:
            self._host.tell("exited", sandbox=sandbox, status=status)


def _rehearse_launch() -> None:
    """Runs the steps of an init's start that leave no trace, as the zygote does for contexts."""
    for _ in range(_REHEARSALS):
        near, far = socket.socketpair()

        with near, far:
            near.send(init.STARTED)
            socket.recv_fds(far, len(init.STARTED), 1)

        syscalls.prctl(syscalls.PR_GET_DUMPABLE)
        applied = {**process_usage.applied_restrictions(), "namespaces": namespaces.own_numbers()}
        encode({"type": "hello", "landlock_abi": 1, **applied})


def main() -> NoReturn:
    """Entry point of the interpreter that the launcher starts in the base jail."""
    for name in ("PYTHONPATH", "LD_BIND_NOW"):
        os.environ.pop(name, None)

    pid = os.fork()

    if pid == 0:
        from fumehood_guest.template import zygote

        os.close(JAIL_INIT_FD)
        zygote.Zygote(Packets(ZYGOTE_FD)).run()

    os.close(ZYGOTE_FD)
    JailInit(Packets(JAIL_INIT_FD), pid).run()
