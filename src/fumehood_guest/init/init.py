"""Init: PID 1 of a sandbox. Finishes the jail, then serves the host; it never runs user code.

A clone of the jail init, in namespaces of its own. It starts processes, reaps orphans, signals contexts, and carries
out the host's file operations inside the guest, so that no path of a guest is ever resolved outside. Requests are
answered one after the other; none may block for long. The kernel ends everything else in the sandbox when this process
ends.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from functools import partial
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Set, Tuple

from fumehood_guest.init import file_transfer, home
from fumehood_guest.init.egress import Egress, listen
from fumehood_guest.init.files import Files
from fumehood_guest.init.processes import Processes
from fumehood_guest.init.relays import Relays
from fumehood_guest.init.served_ports import GuestServedPorts
from fumehood_guest.init.sigstop_freezer import SigstopFreezer
from fumehood_guest.init.snapshots import Snapshots
from fumehood_guest.init.watches import Watches
from fumehood_guest.shared import memory, process_usage
from fumehood_guest.shared.folders import HOME
from fumehood_guest.shared.memory import MemoryWatcher
from fumehood_guest.shared.writable_files import empty_writable
from fumehood_jail import launch, namespaces, own_root, shown_limits
from fumehood_jail.errors import JailError
from fumehood_wire.frames import Decoder, ProtocolError, encode

_MAX_FDS = 8
# The first byte that an init sends, before any frame.
STARTED = b"!"
# The byte with which the host says that the first descriptor is a mount of device nodes; the others belong to control
# groups.
WITH_DEVICES = b"d"
_RECEIVE_BYTES = 1 << 18
_MAX_SENTENCE = 4096
_REDUCE_SECONDS = 3.0
_LOOK_SECONDS = 0.001

Reply = Tuple[Any, bytes]


class RequestError(Exception):
    """A refused request; sent as a reply, never ends the sandbox."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Init:
    """The server loop of a sandbox's PID 1."""

    def __init__(
        self,
        sock: socket.socket,
        listener: socket.socket,
        watcher: Optional[MemoryWatcher],
        open_files: int,
    ) -> None:
        self._sock = sock
        self._decoder = Decoder()
        self._fds: List[int] = []
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poller = select.poll()
        self._readers: Dict[int, Callable[[int], None]] = {}
        self._just_removed: Set[int] = set()
        self._is_reduced = False
        self._watcher = watcher
        self._processes = Processes(self, open_files)
        self._files = Files()
        self._watches = Watches(self)
        self._relays = Relays(self)
        self._egress = Egress(self, listener)
        self._served_ports = GuestServedPorts(self)
        self._freezer = SigstopFreezer()
        self._snapshots = Snapshots(self._freezer, self.add_reader)
        self._verbs: Dict[str, Callable[..., Reply]] = {
            "stop_all": self._freezer.stop_all,
            "continue_all": self._freezer.continue_all,
            "signal_context": self._signal_context,
            "kill_context": self._kill_context,
            "metrics": self._metrics,
            "show_memory": _show_memory,
            "expect_forks": self._expect_forks,
            "send_snapshot": self._send_snapshot,
            "receive_files": self._receive_files,
            "end_processes": partial(_end_processes, self._reap),
            "reduce_to_init": self._reduce_to_init,
            **self._files.verbs(),
            **self._processes.verbs(),
            **self._watches.verbs(),
            **self._relays.verbs(),
            **self._snapshots.verbs(),
            **self._egress.verbs(),
            **self._served_ports.verbs(),
        }

    def run(self) -> NoReturn:
        """Serves until the host closes the socket."""
        self._be_unmoved_by_signals()
        self.add_reader(self._sock.fileno(), self._receive)
        self.add_reader(self._wakeup_read, self._heed_signals)
        self._egress.begin()

        while True:
            timeout_ms = self._watcher.pause_ms() if self._watcher and not self._freezer.is_on else None

            ready = self._poller.poll(timeout_ms)
            self._just_removed.clear()

            for fd, events in ready:
                reader = self._readers.get(fd)

                # A descriptor number that was closed a moment ago may be in use again.
                if reader is not None and fd not in self._just_removed:
                    reader(events)

            if self._watcher and not self._freezer.is_on:
                self._bound_memory(self._watcher)

    def _bound_memory(self, watcher: MemoryWatcher) -> None:
        pid = watcher.over_limit()

        if pid is not None:
            # Report first, then kill: the host must know the reason before it sees the end.
            self.send_event({"event": "memory_kill", "pid": pid})
            process_usage.kill(pid)

    # -- for the parts of init

    def add_reader(self, fd: int, callback: Callable[[int], None], events: int = select.POLLIN) -> None:
        """Calls `callback(events)` whenever `fd` is ready."""
        self._readers[fd] = callback
        self._poller.register(fd, events)

    def remove_reader(self, fd: int) -> None:
        """Stops watching `fd`."""
        if self._readers.pop(fd, None) is not None:
            self._poller.unregister(fd)
            self._just_removed.add(fd)

    def send_event(self, fields: Dict[str, Any], payload: bytes = b"") -> None:
        """Sends the host an event."""
        self._send({"type": "event", **fields}, payload)

    def take_fds(self, count: int) -> List[int]:
        """Returns the next `count` descriptors that the host has sent.

        A handler must take the descriptors of its request before anything else that can fail: otherwise the next
        request would get them, and all later ones the wrong ones.
        """
        if len(self._fds) < count:
            raise RequestError("protocol", f"{count} descriptors expected, {len(self._fds)} came")

        taken, self._fds = self._fds[:count], self._fds[count:]
        return taken

    # -- the loop

    def _be_unmoved_by_signals(self) -> None:
        """Ignores signals: with the default disposition, PID 1 receives none from inside its namespace."""
        for number in (signal.SIGINT, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)

        for number in (signal.SIGCHLD, signal.SIGIO):
            signal.signal(number, lambda *_: None)

        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)

    def _receive(self, _events: int) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _RECEIVE_BYTES, _MAX_FDS)
        except ConnectionResetError:
            data, fds = b"", []  # the host has gone without reading everything

        if not data and self._is_reduced:
            self.remove_reader(self._sock.fileno())
            return

        if not data:
            os._exit(0)

        self._fds.extend(fds)

        for header, payload in self._decoder.feed(data):
            self._answer(header, payload)

    def _answer(self, header: Dict[str, Any], payload: bytes) -> None:
        number = header.pop("id")
        header.pop("type")
        verb = header.pop("verb")

        if payload:
            header["payload"] = payload

        try:
            value, data = self._verbs[verb](**header)
        except RequestError as error:
            self._refuse(number, error.code, str(error))
        except OSError as error:
            self._refuse(number, "os", error.strerror or str(error), error.errno)
        except RecursionError:
            # Guests can nest folders deeper than Python's recursion limit.
            self._refuse(number, "os", "nested too deeply", errno.ENAMETOOLONG)
        except Exception as error:
            self._refuse(number, "invalid", f"{type(error).__name__}: {error}")
        else:
            self._send({"type": "reply", "id": number, "ok": True, "value": value}, data)

    def _refuse(self, number: int, code: str, message: str, errno_value: Optional[int] = None) -> None:
        fields = {"errno": errno_value} if errno_value else {}
        header = {
            "type": "reply",
            "id": number,
            "ok": False,
            "code": code,
            "message": message[:_MAX_SENTENCE],
        }
        self._send({**header, **fields})

    def _send(self, header: Dict[str, Any], payload: bytes = b"") -> None:
        try:
            frame = encode(header, payload)
        except ProtocolError as error:
            # Only a reply can grow so large, and the host waits for it.
            refusal = {"code": "too_large", "message": f"the answer does not fit into a frame: {error.code}"}
            frame = encode({"type": "reply", "id": header["id"], "ok": False, **refusal})

        try:
            self._sock.sendall(frame)
        except OSError:
            # A reduced init has no client any more, and keeps running.
            if not self._is_reduced:
                os._exit(0)

    def _heed_signals(self, _events: int) -> None:
        if signal.SIGIO in os.read(self._wakeup_read, 4096):
            self._snapshots.copy_what_is_opened()

        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return

            if pid == 0:
                return

            code = os.waitstatus_to_exitcode(status)
            outcome = {"exit_code": code} if code >= 0 else {"signal": -code}

            if self._processes.ended(pid, code):
                self.send_event({"event": "process_exit", "pid": pid, **outcome})

    def _metrics(self, with_memory: bool = True) -> Reply:
        if not with_memory:
            return process_usage.metrics(None), b""

        return process_usage.metrics(self._watcher.weigh if self._watcher else memory.weigh), b""

    # -- forked sandboxes

    def _expect_forks(self) -> Reply:
        """Prepares for processes of forked sandboxes in /proc, before the first one exists."""
        process_usage.note_fork()
        return None, b""

    def _send_snapshot(self, snapshot: int) -> Reply:
        """Sends the files of a snapshot to the init of a forked sandbox."""
        with socket.socket(fileno=self.take_fds(1)[0]) as sock:
            self._snapshots.copy_what_is_opened()
            file_transfer.send(sock, self._snapshots.taken(snapshot))

        self._snapshots.copy_what_is_opened()
        return None, b""

    def _receive_files(self) -> Reply:
        """Receives the files of the parent sandbox."""
        with socket.socket(fileno=self.take_fds(1)[0]) as sock:
            return {"files": file_transfer.receive(sock)}, b""

    def _reduce_to_init(self) -> Reply:
        """Kills everything in this sandbox but itself: forked sandboxes, nested in its namespace, live on."""
        self._is_reduced = True
        _end_processes(self._reap)
        empty_writable()
        return None, b""

    # -- contexts

    def _signal_context(self, pid: int, signal: int) -> Reply:
        """Signals a context and its process group, as a terminal does: a child that a cell waits for gets it too."""
        os.killpg(pid, signal)
        return None, b""

    def _kill_context(self, pid: int, spare: Sequence[int] = ()) -> Reply:
        process_usage.kill_tree(pid, spare)
        return None, b""


def main(fds: List[int], options: Dict[str, Any], program: bytes) -> NoReturn:
    """Finishes the jail around this clone, greets the host, and serves it.

    Args:
        fds: The socket to the host; the gate that the first context waits for.
        options: The settings of this one sandbox.
        program: The system call filter.
    """
    fd, gate = fds
    sock = socket.socket(fileno=fd)
    # The first message carries our credentials, by which the host identifies this process and prepares the first
    # context.
    sock.send(STARTED)
    # So far fd 2 is a file of the host, inherited from the jail init, for error messages. Init reads files for the
    # host, and links to its own descriptors are files too.
    os.dup2(1, 2)
    # The host makes the control groups while this process is cloned.
    word, cgroup_fds, _, _ = socket.recv_fds(sock, 1, _MAX_FDS)

    if not word:
        raise EOFError("the host gave up")

    devices = cgroup_fds.pop(0) if word == WITH_DEVICES else None
    launch.enter_control_groups(cgroup_fds)
    launch.set_up_sandbox(options, devices)

    if devices is not None:
        os.close(devices)

    if options["is_fork"]:
        os.chdir(HOME)  # its files come from the parent sandbox
    else:
        home.set_up()

    # Before user code exists, which waits for the gate.
    listener = listen()
    _open_gate(gate)
    watcher = _watcher(options["watch_memory_bytes"])
    abi = launch.confine(
        options, program, is_context=False, before_landlock=watcher.start if watcher else None
    )
    applied = {**process_usage.applied_restrictions(), "namespaces": namespaces.own_numbers()}
    shared = own_root.shared_places()[:_MAX_SENTENCE]
    sock.sendall(
        encode(
            {
                "type": "hello",
                "landlock_abi": abi,
                "shared_places": shared,
                "own_devices": devices is not None,
                **applied,
            }
        )
    )
    Init(sock, listener, watcher, options["rlimits"]["nofile"]).run()


def _end_processes(reap: Callable[[], None]) -> Reply:
    """Kills everything in this sandbox but its init, and returns when nothing runs any more; its files stay."""
    deadline = time.monotonic() + _REDUCE_SECONDS

    while True:
        left = list(process_usage.living())

        if not left:
            shown_limits.change_boot_id()
            return None, b""

        if time.monotonic() > deadline:
            raise RequestError("os", f"{len(left)} processes do not end")

        if process_usage.has_forks():
            # The host ends a process that init may not signal: see `end_foreign_processes`.
            for pid in left:
                process_usage.kill(pid)
        else:
            # If they were killed one after the other, a process that keeps forking could escape.
            process_usage.signal_all(signal.SIGKILL)

        reap()
        time.sleep(_LOOK_SECONDS)


def _show_memory(memory_bytes: int) -> Reply:
    shown_limits.change_memory(memory_bytes)
    return None, b""


def _watcher(limit_bytes: Optional[int]) -> Optional[MemoryWatcher]:
    return MemoryWatcher(limit_bytes, process_usage.processes) if limit_bytes else None


def _open_gate(gate: int) -> None:
    try:
        os.write(gate, b"!")
    except BrokenPipeError:
        # The first context has failed, and reports the reason on its own pipe.
        pass

    os.close(gate)


def report_failure(fd: int, error: BaseException) -> None:
    """Sends the host the failed step of the launch, in place of the greeting."""
    known = (
        error if isinstance(error, JailError) else JailError("start", 0, f"{type(error).__name__}: {error}")
    )
    texts = {
        "step": known.step[:64],
        "detail": known.detail[:_MAX_SENTENCE],
        "hint": known.hint[:_MAX_SENTENCE],
    }
    os.write(fd, encode({"type": "failed", "errno": known.errno, **texts}))
