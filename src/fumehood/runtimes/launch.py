"""Starts the launcher of a template's processes, and reads the report on its launch.

Shared by the Linux runtimes. The launcher is a bare interpreter that gets its plan in a memory file and its sockets by
inheritance, and nothing else of this process. A failed step means either a missing layer, which is permanent, or
exhausted resources, which are temporary; the two must not be confused.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import fumehood_jail
from fumehood.errors import IsolationUnavailableError, SandboxStartError
from fumehood.runtimes.packets import until_readable
from fumehood.text import errno_text
from fumehood_wire.frames import ProtocolError, parse_json

_PROGRAM = "import sys; sys.path.insert(0, {folder!r}); from {module} import main; main(int(sys.argv[1]))"
_MAX_REPORT_BYTES = 1 << 16
# ENOSPC is not one of them: it is what the kernel returns where user namespaces are forbidden.
_PASSING = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EINTR)


class LauncherStart:
    """A started launcher that has not reported its launch yet.

    Args:
        module: The module of `fumehood_jail` whose `main` it runs.
        plan: What it reads from its plan, without descriptors.
        ends: The sockets that it inherits, by the name that its plan has for each; closed here in any case.
        cgroup_fds: Files of control groups that it inherits; closed here in any case.

    Attributes:
        process: The launcher.
    """

    def __init__(
        self,
        module: str,
        plan: Mapping[str, Any],
        ends: Mapping[str, socket.socket],
        cgroup_fds: Sequence[int] = (),
    ) -> None:
        # What is passed on is closed here in any case; the rest only if no launcher could be started.
        with ExitStack() as passed, ExitStack() as kept:
            for end in ends.values():
                passed.callback(end.close)

            for fd in cgroup_fds:
                passed.callback(os.close, fd)

            self._report_fd, report_write = os.pipe()
            kept.callback(os.close, self._report_fd)
            passed.callback(os.close, report_write)
            host_pidfd = os.pidfd_open(os.getpid())
            passed.callback(os.close, host_pidfd)
            self._stderr = os.memfd_create("fumehood-template-stderr")
            kept.callback(os.close, self._stderr)
            plan_fd = os.memfd_create("fumehood-plan")
            passed.callback(os.close, plan_fd)
            fds = {name: end.fileno() for name, end in ends.items()}
            fds |= {"report_fd": report_write, "host_pidfd": host_pidfd}
            os.write(plan_fd, json.dumps({**plan, **fds, "cgroup_fds": list(cgroup_fds)}).encode())
            os.lseek(plan_fd, 0, os.SEEK_SET)
            folder = os.path.dirname(os.path.dirname(os.path.abspath(fumehood_jail.__file__ or "")))
            program = _PROGRAM.format(folder=folder, module=module)
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", program, str(plan_fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                cwd="/",
                env={},
                pass_fds=(plan_fd, *fds.values(), *cgroup_fds),
                start_new_session=True,
            )
            kept.pop_all()

    async def launched(self) -> None:
        """Waits until the interpreter of the template's first process has been started.

        Raises:
            IsolationUnavailableError: A step of the launch failed; the error names it and the remedy.
            SandboxStartError: The machine lacks resources for now, or the report cannot be read.
        """
        report = await _read_report(self._report_fd)

        if not report:
            return

        try:
            fields: Any = parse_json(report)
            step, number, detail, hint = (fields[name] for name in ("step", "errno", "detail", "hint"))
        except (ProtocolError, KeyError, TypeError):
            raise SandboxStartError(
                step="launch", reason=repr(report[:200]), logged="its report cannot be read"
            ) from None

        raise launch_fault(str(step), int(number), str(detail), str(hint))

    def last_words(self) -> str:
        """The last output of the launcher and the template's processes to standard error."""
        size = os.fstat(self._stderr).st_size
        return os.pread(self._stderr, 4096, max(0, size - 4096)).decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Closes the report pipe and the file for standard error."""
        os.close(self._report_fd)
        os.close(self._stderr)


def launch_fault(step: str, number: int, detail: str, hint: str) -> SandboxStartError:
    """Returns the error for a failed step of the launch.

    Args:
        step: Its name.
        number: The errno; 0 when no system call failed.
        detail: The operation that failed.
        hint: The remedy, if one is known.
    """
    reason = detail

    if number and os.strerror(number) not in detail:
        reason += f": {errno_text(number)}"

    if number in _PASSING:
        return SandboxStartError(
            step=step, reason=reason, hint="it has nothing left for now: try again later"
        )

    hint = hint or "run `fumehood doctor` to see what this machine allows"
    return IsolationUnavailableError(layer=step, reason=reason, how_to_get_it=hint)


async def _read_report(fd: int) -> bytes:
    """Reads a launcher's report: empty if the launch succeeded.

    Uses no thread, so that a cancelled caller leaves no reader behind.
    """
    report = b""

    while len(report) < _MAX_REPORT_BYTES:
        await until_readable(fd)
        part = os.read(fd, _MAX_REPORT_BYTES)

        if not part:
            break

        report += part

    return report
