"""The zygote: imports once what every context of a template needs, then forks contexts into sandboxes on request.

Runs in the base jail, forked by the jail init at its start. It has one thread and one socket to the host, and never
runs user code. It imports code of the template and not ours, which is why it lives in a jail itself. A fork of it
enters a sandbox's namespaces, confines itself there as the sandbox's init has done, and becomes a context; it never
returns. The zygote must never read data of one sandbox: all later contexts are copies of its memory.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any, Dict, List, NoReturn

from fumehood_guest.context.channel import Channel
from fumehood_guest.context.context import Context, run_context
from fumehood_guest.context.outlet import Outlet
from fumehood_guest.context.randomness import reseed
from fumehood_guest.context.rehearsal import prepare_shell
from fumehood_guest.context.shell import PythonShell
from fumehood_guest.shared import fork_hooks, heap_layout, process_usage
from fumehood_guest.shared.folders import HOME
from fumehood_guest.shared.packets import Packets, close_all, parse
from fumehood_guest.shared.preloads import Preloading, quiet_libraries, running_threads
from fumehood_guest.template.service_loop import Service
from fumehood_jail import huge_pages, launch, seccomp, syscalls
from fumehood_jail.errors import JailError

_PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_USER_SITE = f"{HOME}/.local/lib/{_PYTHON}/site-packages"
_SECCOMP_FILTER = 2
# Twice the number of calls after which the interpreter specializes a function.
_REHEARSALS = 16
# Estimates of the memory for small objects: of a shell, of a module of the preload list with its imports, and the
# bound.
_BARE_BYTES = 8 << 20
_MODULE_BYTES = 12 << 20
_MOST_BYTES = 64 << 20
# The largest object that counts as small, and how many fit into the smallest unit in which the interpreter allocates
# memory for them: 256 KiB (Objects/obmalloc.c).
_SMALL_OBJECT_BYTES = 512
_OBJECTS_PER_PART = 512
# The descriptors of a context: a file with its options, the sandbox's init as a pidfd, a gate that opens when the
# sandbox is set up, channel, standard output, standard error, a socket for the listener of its filter; all further ones
# belong to its control groups.
_GIVEN_FDS = 7
_INIT_PIDFD = 1


class Zygote:
    """Forks contexts until the host is gone."""

    def __init__(self, host: Packets) -> None:
        self._host = host
        self._program = b""
        self._plain_program = b""
        self._shell: Any = None
        self._placeholders: List[bytes] = []
        self._contexts: Dict[int, int] = {}
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._service = Service(host, self._obey, self._note_end)

    def run(self) -> NoReturn:
        """Imports, reports, serves the host; exits when the host closes the socket."""
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        config, _ = self._host.receive()
        self._program = bytes.fromhex(config["seccomp"])
        self._plain_program = bytes.fromhex(config["seccomp_untold"])
        self._prepare(config["preload"])
        self._service.run()

    def _prepare(self, names: List[str]) -> None:
        """Imports the installed ones of `names`, prepares the shell, and reports."""
        with quiet_libraries():
            preload = Preloading(names, lambda name: self._host.send({"type": "importing", "module": name}))
            self._placeholders = _take_memory_in_one_piece(
                min(_BARE_BYTES + _MODULE_BYTES * len(preload.found), _MOST_BYTES)
            )
            self._shell = prepare_shell(preload)
            fork_hooks.do_once()
            # Sandboxes see the same files through other inodes.
            syscalls.name_libraries_by_real_path()
            _rehearse_launch(self._shell)

        os.environ.pop("MPLCONFIGDIR", None)
        heap_layout.freeze()
        huge_pages.collapse()
        report = {"missing": preload.missing, "unfit": preload.unfit, "threads": running_threads()}
        self._host.send({"type": "ready", **report})

    def _obey(self, request: Dict[str, Any], fds: List[int]) -> None:
        if request["type"] == "start_context":
            self._start(request["number"], fds)
        elif request["type"] == "kill_context":
            self._kill(request["number"])

    def _start(self, number: int, fds: List[int]) -> None:
        try:
            # Only later children are started there; the zygote itself stays in its namespace.
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

    def _be_context(self, fds: List[int]) -> NoReturn:
        """In the fork: enters the sandbox, confines itself, and becomes the context."""
        launch_fd, init_pidfd, gate, channel, stdout_fd, stderr_fd, listener_fd = fds[:_GIVEN_FDS]
        try:
            self._service.leave()
            os.setsid()
            launching = parse(os.pread(launch_fd, os.fstat(launch_fd).st_size, 0))
            launch.enter_sandbox(init_pidfd, gate, fds[_GIVEN_FDS:])
            launch.confine(
                launching["options"],
                self._program,
                is_context=True,
                load_filter=lambda program: self._load_notifying(program, listener_fd),
            )
            _check_confined()
            _add_user_site()
            run_context(self._shell, channel, stdout_fd, stderr_fd, **launching["context"])
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
            # A filter around the host has a listener already.
            seccomp.load(self._plain_program)
            return

        with socket.socket(fileno=listener_fd) as sock:
            socket.send_fds(sock, [b"!"], [listener])

        os.close(listener)

    def _kill(self, number: int) -> None:
        for pid, known in self._contexts.items():
            if known == number:
                os.kill(pid, signal.SIGKILL)

    def _note_end(self, pid: int, status: int) -> None:
        number = self._contexts.pop(pid, None)

        if number is not None:
            self._host.tell("context_exited", number=number, status=status)


def _rehearse_launch(shell: PythonShell) -> None:
    """Repeats the steps of a start that leave no trace, until the interpreter has specialized them.

    Otherwise each context would specialize them again, and write to memory that is copied for that.
    """
    near, far = socket.socketpair()

    with near, far:
        for _ in range(_REHEARSALS):
            parse(b"{}")
            process_usage.applied_restrictions()
            os.environ.get("PATH")
            reseed()
            channel = Channel(near)
            Context(channel, shell, "python")
            Outlet(channel).ready()


def _take_memory_in_one_piece(size_bytes: int) -> List[bytes]:
    """Makes the interpreter allocate memory for small objects before libraries are mapped in between.

    Only aligned blocks of two megabytes become huge pages. Returns objects that keep a slot in each unit of this
    memory, so that the interpreter does not free it.
    """
    count = size_bytes // _SMALL_OBJECT_BYTES
    # A list that grew would be moved, and leave gaps.
    objects = [b""] * count

    for place in range(count):
        objects[place] = bytes(_SMALL_OBJECT_BYTES - sys.getsizeof(b""))

    return objects[::_OBJECTS_PER_PART]


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
