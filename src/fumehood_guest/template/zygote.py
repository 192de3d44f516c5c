"""The zygote: imports once what every context of a template needs, then forks contexts into sandboxes on request.

Runs in the base jail, forked by the jail init at its start. It has one thread and one socket to the host, and never
runs user code. It imports code of the template and not ours, which is why it lives in a jail itself. Contexts of
Python are forks of it (`context_forks`), those of other languages come from a branch that it forks before it imports
anything (`branches`). The zygote must never read data of one sandbox: all later contexts are copies of its memory.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Dict, List, NoReturn, Optional

from fumehood_guest.shared import fork_hooks, heap_layout
from fumehood_guest.shared.packets import Packets
from fumehood_guest.shared.preloads import Preloading, quiet_libraries, running_threads
from fumehood_guest.template.branches import ALL, OF_TEMPLATES, Preparation, ZygoteBranch, grow
from fumehood_guest.template.context_forks import ContextForks, rehearse_launch
from fumehood_guest.template.service_loop import Service
from fumehood_jail import huge_pages, syscalls

# Estimates of the memory for small objects: of a shell, of a module of the preload list with its imports, and the
# bound.
_BARE_BYTES = 8 << 20
_MODULE_BYTES = 12 << 20
_MOST_BYTES = 64 << 20
# The largest object that counts as small, and how many fit into the smallest unit in which the interpreter allocates
# memory for them: 256 KiB (Objects/obmalloc.c).
_SMALL_OBJECT_BYTES = 512
_OBJECTS_PER_PART = 512


class Zygote:
    """Forks contexts until the host is gone."""

    def __init__(self, host: Packets) -> None:
        self._host = host
        self._programs: Dict[str, bytes] = {}
        self._shell: Any = None
        self._placeholders: List[bytes] = []
        self._branch: Optional[ZygoteBranch] = None
        self._runs_programs = False
        self._has_one_sandbox = False
        self._service = Service(host, self._obey, self._note_end)
        self._forks = ContextForks(host, self._programs, self._service.leave)

    def run(self) -> NoReturn:
        """Imports, reports, serves the host; exits when the host closes the socket."""
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        config, _ = self._host.receive()
        self._programs.update({name: bytes.fromhex(config[name]) for name in ("seccomp", "seccomp_untold")})
        self._runs_programs = config["runs_programs"]
        self._has_one_sandbox = config["has_one_sandbox"]
        # Now, while this process is small.
        self._other_languages()
        self._prepare(config["preload"])
        self._forks.shell = self._shell
        self._service.run()

    def _prepare(self, names: List[str]) -> None:
        """Imports the installed ones of `names`, prepares the shell, and reports."""
        # Imported late: they bring IPython along, of which branches have nothing.
        from fumehood_guest.context.late_imports import import_ipython

        import_ipython()
        from fumehood_guest.context.rehearsal import prepare_shell

        with quiet_libraries():
            preload = Preloading(names, lambda name: self._host.send({"type": "importing", "module": name}))

            # What is only won by many forks takes longer than the first cell of one sandbox.
            if not self._has_one_sandbox:
                self._placeholders = _take_memory_in_one_piece(
                    min(_BARE_BYTES + _MODULE_BYTES * len(preload.found), _MOST_BYTES)
                )

            self._shell = prepare_shell(preload)
            fork_hooks.do_once()
            # Sandboxes see the same files through other inodes.
            syscalls.name_libraries_by_real_path()
            rehearse_launch(self._shell)

        for name in OF_TEMPLATES:
            os.environ.pop(name, None)

        if self._has_one_sandbox:
            heap_layout.freeze_as_it_is()
        else:
            heap_layout.freeze()
            huge_pages.collapse()

        report = {"missing": preload.missing, "unfit": preload.unfit, "threads": running_threads()}
        self._host.send({"type": "ready", **report})

    def _obey(self, request: Dict[str, Any], fds: List[int]) -> None:
        if request["type"] == "start_context" and "branch" in request:
            self._other_languages().pass_on(request, fds)
        elif request["type"] == "start_context":
            self._forks.start(request["number"], fds)
        elif request["type"] == "kill_context":
            self._forks.kill(request["number"])

            if self._branch is not None:
                self._branch.pass_on(request, fds)

    def _other_languages(self) -> ZygoteBranch:
        """Returns the branch for other languages; replaces one that has ended, by a branch that takes more memory."""
        if self._branch is None:
            preparation = Preparation() if self._runs_programs else None
            self._branch = grow(self._host, self._programs, preparation)

        return self._branch

    def _note_end(self, pid: int, status: int) -> None:
        if self._branch is not None and pid == self._branch.pid:
            branch, self._branch = self._branch, None
            branch.close()
            self._host.send({"type": "branch_ended", "branch": ALL})
        else:
            self._forks.note_end(pid, status)


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
