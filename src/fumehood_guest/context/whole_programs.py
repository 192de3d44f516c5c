"""The languages that keep no state: each cell is a whole program, which is compiled if need be, and run once.

How a language is compiled and run comes from the host as data: the names of the file and of the programs. Source and
program are written to a folder that is removed after the cell, unless the host has named the folder. The program has a
session of its own, the cell's standard input, and fds 1 and 2; processes that it leaves running in the session are
killed when it ends. The descendants of a judged program are killed wherever they are, and their memory counts.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import Any, List, Mapping, Optional

from fumehood_guest.context.child_language import (
    SIGNAL_BASE,
    ChildLanguage,
    NothingKnown,
    end_as,
    end_unavailable,
)
from fumehood_guest.context.introspection import Answerer
from fumehood_guest.context.outlet import GuestExecution, Outlet
from fumehood_guest.context.signals import SignalGate
from fumehood_guest.languages.node import find_node
from fumehood_guest.languages.programs import MissingProgramError
from fumehood_guest.shared import process_usage
from fumehood_jail import syscalls

# How long a program may take to end by an interrupt before it is killed.
_PATIENCE_SECONDS = 0.1
_FOLDERS = "/tmp"  # noqa: S108 - of the sandbox
# The exit status of a shell for a program that it cannot start.
_CANNOT_START = 126
# A program may take more memory than it is judged by, so that the peak can be measured at its end; but not without
# bound, because others run at the same time.
_MARGIN_FACTOR = 2
_MARGIN_BYTES = 64 << 20
_KIB = 1024
# One round ends a tree of any depth; more are needed only for processes that fork meanwhile.
_MOST_ROUNDS = 50
_MOST_REAPED_A_ROUND = 10_000


class WholeProgramShell(ChildLanguage):
    """Compiles and runs programs.

    Args:
        steps: The commands, as `ProgramSteps.as_message` of the host gives them.
        outlet: Takes errors.
        gate: Blocks signals while a program is started.
    """

    def __init__(self, steps: Mapping[str, Any], outlet: Outlet, gate: SignalGate) -> None:
        super().__init__(outlet, gate)
        self.answerer: Answerer = NothingKnown()
        self._steps = steps
        self._orphans = Orphans() if steps["memory_bytes"] is not None else None
        self._stdin = os.memfd_create("stdin")

        for words in (steps["compile"], steps["run"]):
            if words and words[0] == "node":
                words[0] = _own_node()
            elif words and "{" not in words[0] and shutil.which(words[0]) is None:
                end_unavailable(f"no program `{words[0]}` is there")

    def run_source(self, source: str, execution: GuestExecution) -> None:
        """Runs one program to its end.

        Raises:
            KeyboardInterrupt: The cell was interrupted, and its program has ended.
        """
        self._begin(execution)
        named: str = self._steps["folder"]
        folder = named or tempfile.mkdtemp(prefix=".program-", dir=_FOLDERS)
        try:
            self._run_in(folder, source, execution)
        finally:
            if not named:
                with self._gate.closed():
                    shutil.rmtree(folder, ignore_errors=True)

    def _run_in(self, folder: str, source: str, execution: GuestExecution) -> None:
        name: str = self._steps["filename"]

        with self._gate.closed():
            os.makedirs(folder, exist_ok=True)

            # A program that is compiled already reads no source.
            if self._steps["compile"] or "{program}" not in self._steps["run"]:
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(source.encode("utf-8", "surrogatepass"))

            os.ftruncate(self._stdin, 0)
            os.pwrite(self._stdin, execution.stdin or b"", 0)
            os.lseek(self._stdin, 0, os.SEEK_SET)

        if self._steps["compile"]:
            # By its bare name, so that messages of the compiler have no folder that changes.
            words = self._filled(self._steps["compile"], folder, name)
            status = self._run(words, folder, subprocess.DEVNULL, None)

            if status != 0:
                value = f"{words[0]} ended with status {status}"
                self._error = ("CompilationError", value, [f"CompilationError: {value}"])
                return

        if self._steps["run"]:
            words = self._filled(self._steps["run"], folder, os.path.join(folder, name))
            status = self._run(words, None, self._stdin, self._steps["memory_bytes"])

            # It may be set already: a program that has taken too much may still have ended well.
            if status != 0 and self._error is None:
                self._error = ("ExitCode", str(status), [f"ExitCode: {_words(status)}"])

    def _filled(self, words: List[str], folder: str, source: str) -> List[str]:
        program = os.path.join(folder, "program")
        return [word.format(source=source, program=program, folder=folder) for word in words]

    def _run(self, words: List[str], cwd: Optional[str], stdin: int, memory_bytes: Optional[int]) -> int:
        """Runs a program to its end and returns its exit status, as a shell counts it."""

        def begin() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.setsid()

            if memory_bytes is not None:
                most = _MARGIN_FACTOR * memory_bytes + _MARGIN_BYTES
                resource.setrlimit(resource.RLIMIT_DATA, (most, most))

        # An interrupt between its start and its name would leave it running.
        with self._gate.closed():
            try:
                process = subprocess.Popen(
                    words,
                    cwd=cwd,
                    stdin=stdin,
                    env={**self._steps["envs"], **os.environ},
                    preexec_fn=begin,
                )
            except OSError as error:
                os.write(2, f"{words[0]}: {error.strerror}\n".encode())
                return _CANNOT_START

        try:
            if self._orphans is not None:
                self._orphans.reap_until(process.pid)

            # It stays a zombie, so that its number still names its session.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        except KeyboardInterrupt:
            self._abandon(process)
            raise

        with self._gate.closed():
            _kill(process)

            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = returncode = os.waitstatus_to_exitcode(status)

            if returncode == -signal.SIGKILL:
                end_as(process)

            taken_kib = usage.ru_maxrss

            if self._orphans is not None:
                taken_kib = max(taken_kib, self._orphans.end())

            if memory_bytes is not None:
                self._judge_memory(taken_kib * _KIB, memory_bytes)

            return returncode if returncode >= 0 else SIGNAL_BASE - returncode

    def _judge_memory(self, taken_bytes: int, memory_bytes: int) -> None:
        """Notes an error if a program has used more memory than allowed."""
        # The kernel counts this process too, of which the program was a copy until it was executed.
        least = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB

        if taken_bytes > max(memory_bytes, least):
            value = f"took {taken_bytes:,} bytes of memory, and {memory_bytes:,} are allowed"
            self._error = ("MemoryError", value, [f"MemoryError: {value}"])

    def _abandon(self, process: "subprocess.Popen[bytes]") -> None:
        """Ends a program at an interrupt."""
        with self._gate.closed():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)

            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_SECONDS)

            _kill(process)
            process.wait()

            if self._orphans is not None:
                self._orphans.end()


def _own_node() -> str:
    """Returns the Node executable for JavaScript cells; if there is none, writes the reason to fd 2 and exits."""
    try:
        return find_node()
    except MissingProgramError as error:
        end_unavailable(str(error))


class Orphans:
    """The descendants that a program has detached by a double fork, which become children of this process."""

    def __init__(self) -> None:
        self._peak_kib = 0
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)

    def reap_until(self, leader: int) -> None:
        """Waits for the end of a child, which stays a zombie; reaps every other one that ends before it."""
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)

            if ended is None or ended.si_pid == leader:
                return

            self._reap(ended.si_pid)

    def end(self) -> int:
        """Kills and reaps all descendants; returns the peak of the largest one since the last call, in KiB.

        A process that forks and exits before it is found may survive; it ends with the sandbox.
        """
        for _ in range(_MOST_ROUNDS):
            if not self._reap_ended():
                break

            # Listing /proc is the costly part: done once a round, and not for each child.
            killed = list(process_usage.descendants(os.getpid()))

            for pid in killed:
                process_usage.kill(pid)

            # A parent comes before its children, which are children of this process when it has been reaped.
            for pid in killed:
                with suppress(ChildProcessError):
                    self._reap(pid)

        peak_kib, self._peak_kib = self._peak_kib, 0
        return peak_kib

    def _reap_ended(self) -> bool:
        """Reaps the children that have ended; returns whether any child is left."""
        with suppress(ChildProcessError):
            for _ in range(_MOST_REAPED_A_ROUND):
                if self._reap(-1, os.WNOHANG) == 0:
                    break

            return True

        return False

    def _reap(self, pid: int, options: int = 0) -> int:
        """Reaps a child and returns its pid; 0 if none has ended and the options say not to wait."""
        reaped, _, usage = os.wait4(pid, options)

        if reaped:
            self._peak_kib = max(self._peak_kib, usage.ru_maxrss)

        return reaped


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kills the session of a program."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _words(status: int) -> str:
    if status <= SIGNAL_BASE:
        return f"the program ended with status {status}"

    try:
        name = signal.Signals(status - SIGNAL_BASE).name
    except ValueError:
        name = f"signal {status - SIGNAL_BASE}"

    return f"the program was ended by {name}"
