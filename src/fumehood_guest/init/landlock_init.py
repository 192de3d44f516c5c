"""Init without namespaces: serves the host, and forks contexts itself; it never runs user code.

A fork of the reaper, restricted to its sandbox. It works as the init of other sandboxes with three differences: its
contexts are its own children, the folders of the sandbox lie in one private folder of the host, and each process that
it starts enters a Landlock domain of its own before it becomes guest code. Operations that are impossible here (ports,
egress, snapshots) are refused by name.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
from typing import Any, Callable, Dict, Iterable, List, NoReturn, Optional

from fumehood_guest.context.context import run_context
from fumehood_guest.init import files
from fumehood_guest.init.init import Init, Reply, RequestError, report_failure
from fumehood_guest.init.processes import Processes
from fumehood_guest.shared import memory, process_usage
from fumehood_guest.shared.folders import DATA, HOME
from fumehood_guest.shared.memory import MemoryWatcher
from fumehood_guest.shared.packets import Packets, close_all, parse
from fumehood_jail import landlock, landlock_launch, namespaces
from fumehood_jail.errors import JailError
from fumehood_wire.frames import encode

_SECCOMP_FILTER = 2
# The subfolders of the private folder, by the paths that callers use.
_FOLDERS = {HOME: "home", "/tmp": "tmp", "/var/tmp": "tmp", DATA: "data", "/dev/shm": "shm"}  # noqa: S108
# Variables whose value is a folder of the sandbox.
_NAMING = ("HOME", "TMPDIR")
_BETWEEN_SANDBOXES = ("send_snapshot", "receive_files", "reduce_to_init")
_PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
# In addition to the guest's allowance: threads of the host's user that come and go meanwhile.
_SPARE_PROCESSES = 8


class LandlockInit(Init):
    """The server loop of init in a sandbox without namespaces.

    Args:
        sock: The socket to the host's engine.
        orders: The socket to the host's runtime.
        options: The settings of this one sandbox.
        program: The system call filter of guest code.
        shell: The prepared interpreter.
    """

    def __init__(
        self, sock: socket.socket, orders: Packets, options: Dict[str, Any], program: bytes, shell: Any
    ) -> None:
        limit = options["watch_memory_bytes"]
        watcher = _Watcher(limit, process_usage.processes) if limit else None
        # There is no port to listen on: the other end of this is never used.
        listener, self._never = socket.socketpair()
        super().__init__(sock, listener, watcher, options["rlimits"]["nofile"])
        self._orders = orders
        self._options = options
        self._program = program
        self._shell = shell
        self._contexts: Dict[int, int] = {}
        self._processes = _Processes(self, options["rlimits"]["nofile"])
        self._verbs.update(self._processes.verbs())

        # These need namespaces.
        needing = (self._snapshots, self._relays, self._served_ports)

        for verb in (*(verb for part in needing for verb in part.verbs()), *_BETWEEN_SANDBOXES):
            self._verbs[verb] = _refuse_verb(verb)

    def run(self) -> NoReturn:
        """Serves until the host closes the socket."""
        self.add_reader(self._orders.fileno(), self._obey)
        super().run()

    def confine(self) -> None:
        """In a fork: enters the Landlock domain of guest code."""
        landlock_launch.enter_guest(self._options, self._program, self._processes_allowed())
        _check_confined()

    def _processes_allowed(self) -> int:
        """Returns the process limit of the user: as many as there are now, plus the sandbox's allowance."""
        allowed: int = self._options["processes"]
        return _tasks_of_user() + allowed + _SPARE_PROCESSES

    # -- contexts

    def _obey(self, _events: int) -> None:
        request, fds = self._orders.receive()

        if request["type"] == "start_context":
            self._start(request["number"], fds)
        elif request["type"] == "kill_context":
            self._end(request["number"])

    def _start(self, number: int, fds: List[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            close_all(fds)
            self._orders.send({"type": "context_failed", "number": number, "detail": str(error)})
            return

        if pid == 0:
            self._be_context(fds)

        close_all(fds)
        self._contexts[pid] = number

    def _be_context(self, fds: List[int]) -> NoReturn:
        launch_fd, channel, stdout_fd, stderr_fd = fds
        try:
            for number in (signal.SIGCHLD, signal.SIGIO):
                signal.signal(number, signal.SIG_DFL)

            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.setsid()
            launching = parse(os.pread(launch_fd, os.fstat(launch_fd).st_size, 0))
            self.confine()
            home = self._places()[HOME]
            _add_user_site(home)
            launching["cwd"] = files.absolute(launching["cwd"])
            launching["envs"] = self.moved(launching["envs"])
            run_context(self._shell, channel, stdout_fd, stderr_fd, **launching)
        except BaseException as error:
            os.write(
                stderr_fd,
                f"fumehood: the context could not start: {type(error).__name__}: {error}\n".encode(),
            )
        finally:
            os._exit(1)

    def _end(self, number: int) -> None:
        for pid, known in self._contexts.items():
            if known == number:
                process_usage.kill(pid)

    def note_end(self, pid: int, code: int) -> bool:
        """Reports the end of a context to the runtime; returns False if the process was not a context."""
        number = self._contexts.pop(pid, None)

        if number is None:
            return False

        self._orders.tell("context_exited", number=number, status=code)
        return True

    # -- paths

    def _places(self) -> Dict[str, str]:
        return _places(self._options["folder"])

    def moved(self, envs: Dict[str, str]) -> Dict[str, str]:
        """Replaces paths in the environment variables that name a folder.

        Other variables may belong to the template.
        """
        return {
            name: files.absolute(value) if name in _NAMING and value in _FOLDERS else value
            for name, value in envs.items()
        }


class _Processes(Processes):
    """Commands in Landlock domains of their own."""

    def start(
        self, payload: bytes, cwd: str, envs: Dict[str, str], pty: Optional[Dict[str, int]] = None
    ) -> Reply:
        """Starts a command in the private folder."""
        return super().start(payload, files.absolute(cwd), self._init.moved(envs), pty)

    def ended(self, pid: int, code: int) -> bool:
        """Handles a reaped pid, which may be a context's; returns whether it was a command's."""
        return not self._init.note_end(pid, code) and super().ended(pid, code)

    def _take_limits(self) -> None:
        """In the child: enters the restrictions, which include the limits."""
        self._init.confine()


class _Watcher(MemoryWatcher):
    """Bounds the memory without a thread: init may read the usage of guests, whose domains are nested in its own."""

    def start(self) -> None:
        """Does nothing: there is no thread."""

    def weigh(self, pids: Iterable[int]) -> Dict[int, int]:
        """Returns how many bytes of memory each of these processes holds, by pid."""
        return memory.weigh(pids)


def main(sock_fd: int, orders_fd: int, options: Dict[str, Any], program: bytes, shell: Any) -> NoReturn:
    """Becomes the init of a sandbox, greets the host, and serves it.

    Args:
        sock_fd: The socket to the host's engine.
        orders_fd: The socket to the host's runtime.
        options: The settings of this one sandbox.
        program: The system call filter of guest code.
        shell: The prepared interpreter.
    """
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        landlock_launch.enter_init(options)
        places = _places(options["folder"])
        _set_up(places, options)
        files.set_places(places)
        process_usage.live_among_others(options["folder"])
        os.chdir(places[HOME])
        sock = socket.socket(fileno=sock_fd)
        greeting = {
            "type": "hello",
            "landlock_abi": landlock.available_abi(),
            **_applied(),
            "namespaces": namespaces.own_numbers(),
        }
        sock.sendall(encode(greeting))
        LandlockInit(sock, Packets(orders_fd), options, program, shell).run()
    except BaseException as error:
        report_failure(sock_fd, error)

    os._exit(1)


def _places(folder: str) -> Dict[str, str]:
    return {name: f"{folder}/{inside}" for name, inside in _FOLDERS.items()}


def _set_up(places: Dict[str, str], options: Dict[str, Any]) -> None:
    for place in places.values():
        os.makedirs(place, 0o700, exist_ok=True)

    home = places[HOME]
    os.makedirs(f"{home}/.local/lib/{_PYTHON}/site-packages", exist_ok=True)

    # A login shell reads the host's profile first, which sets another PATH.
    with open(f"{home}/.bash_profile", "w", encoding="utf-8") as file:
        file.write(f"export PATH={shlex.quote(f'{home}/.local/bin:' + options['path'])}\n")

    if options["files"] is not None:
        _copy(options["files"], home)


def _copy(source: str, target: str) -> None:
    """Copies the files of a template; of their modes only the executable bit is kept."""
    for entry in os.scandir(source):
        copy = f"{target}/{entry.name}"

        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy)
        elif entry.is_dir():
            os.makedirs(copy, exist_ok=True)
            _copy(entry.path, copy)
        elif entry.is_file():
            _copy_file(entry.path, copy, 0o755 if entry.stat().st_mode & 0o100 else 0o644)


def _copy_file(source: str, target: str, mode: int) -> None:
    made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    with open(source, "rb") as given, open(made, "wb") as file:
        while data := given.read(files.MAX_CHUNK_BYTES):
            file.write(data)


def _add_user_site(home: str) -> None:
    """Inserts the user's packages before the template's and behind the standard library, as Python itself does."""
    places = (place for place, entry in enumerate(sys.path) if entry.endswith("site-packages"))
    sys.path.insert(next(places, len(sys.path)), f"{home}/.local/lib/{_PYTHON}/site-packages")


def _applied() -> Dict[str, Any]:
    """Returns the restrictions in force by the kernel's account, without the bounding set, which has no effect here."""
    found = process_usage.applied_restrictions()

    with open("/proc/self/status", "rb") as file:
        lines = [line.split() for line in file]

    held = [int(line[1], 16) for line in lines if line[0] in (b"CapInh:", b"CapPrm:", b"CapEff:", b"CapAmb:")]
    return {**found, "capabilities": max(held)}


def _check_confined() -> None:
    """Checks, before guest code runs, that the kernel reports the restrictions as applied."""
    applied = _applied()

    if (
        applied["capabilities"]
        or not applied["no_new_privileges"]
        or applied["seccomp_mode"] != _SECCOMP_FILTER
    ):
        raise JailError("confine guest code", 0, f"the kernel says {applied}")


def _tasks_of_user() -> int:
    """Returns how many processes and threads this user has, all of which count against its limit."""
    own = os.getuid()
    count = 0

    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == own:
                count += int(process_usage.stat_fields(int(name))[17])
        except (OSError, IndexError):
            continue  # it has ended

    return count


def _refuse_verb(verb: str) -> Callable[..., Reply]:
    def refuse(**_fields: Any) -> Reply:
        raise RequestError("unsupported", f"{verb} needs namespaces, and this sandbox has none")

    return refuse
