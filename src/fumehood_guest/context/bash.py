"""The language "bash": one live bash whose directory, variables and functions persist from cell to cell.

It is an interactive bash without a terminal, because only such a bash abandons the whole cell at an interrupt and
continues with the next. It reads each cell from a memory file, writes to fds 1 and 2 itself, and reports the exit
status on a pipe.

A cell that ends bash (`exit`, a failure under `set -e`) ends with that status, and a new bash is started. Before the
old one exits it writes its variables, functions, aliases and directory into a memory file, which the new one reads;
options such as `set -e`, traps and jobs are not carried over. A bash that is killed by a signal takes the context with
it, so that the host detects an out-of-memory kill. For a checkpoint it writes down options and traps too: the fork has
no bash, and starts one from that text.
"""

from __future__ import annotations

import errno
import os
import re
import select
import shlex
import signal
import subprocess
import threading
from typing import Any, Dict, Optional, Tuple

from fumehood_guest.context.checkpoint import Apart
from fumehood_guest.context.introspection import Answerer, BashAnswerer
from fumehood_guest.context.outlet import GuestExecution, Outlet
from fumehood_guest.context.signals import SignalGate

_BASH = ("bash", "--norc", "--noprofile", "--noediting", "+H", "-i")
# Before its first line, bash complains on fd 2 that it has no terminal; then fd 2 is restored.
_START = (
    "exec 2>&{stderr} {stderr}>&-; PS1= PS2= PROMPT_COMMAND=; set +o history; unset HISTFILE;"
    ' __fumehood_status() {{ return "$1"; }}; __fumehood_last=0'
)
# The last line distinguishes a complete file from one that was cut off, for example when memory ran out.
_KEPT = b": fumehood-kept\n"
_KEEP = (
    "__fumehood_keep() {{ {{ declare -p; declare -f; declare -F; alias -p;"
    " printf 'builtin cd -- %q\\n: fumehood-kept\\n' \"$PWD\"; }} >|/proc/self/fd/{state}; }} 2>/dev/null"
)
# An interactive bash prints "exit" on fd 2 before it exits. A trap of the user may have replaced ours.
_EXIT = (
    'exit() {{ set -- "${{@-$?}}"; [[ $BASHPID != $$ ]] || __fumehood_keep;'
    ' case $# in 1) case $1 in *[!0-9]*|"") ;; *) builtin exit "$1" 2>/dev/null ;; esac ;; esac;'
    ' builtin exit "$@"; }}'
)
_TRAP = "trap __fumehood_keep EXIT"
# For a checkpoint: all state that can be written as text. Options that change how functions are parsed come first,
# those that may end or stop the shell that reads it come last.
_WRITE_DOWN = (
    "{{ shopt -p; declare -p; declare -f; declare -F; alias -p; umask -p; trap -p;"
    " printf 'builtin cd -- %q\\n' \"$PWD\"; set +o;"
    " printf ': fumehood-kept\\n'; }} >|/proc/self/fd/{state} 2>/dev/null"
)
_RESTORE = ". /proc/self/fd/{state} >/dev/null 2>&1"
# Short lines without open quotes: an interrupt while bash reads a line loses only that line. None of them may fail
# where `set -e` would end bash.
_LOAD = "IFS= read -r -d '' __fumehood_code </proc/self/fd/{code} || :"
_RUN = '__fumehood_status "$__fumehood_last" && :; eval "$__fumehood_code" <{stdin}'
_TELL = "__fumehood_last=$?{restore}; printf '%s %s\\0' {number} \"$__fumehood_last\" >&{status}"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READ_BYTES = 4096
# How long bash may take to react to an interrupt before it is interrupted and asked again.
_PATIENCE_MS = 300
_SIGNAL_BASE = 128
# An interrupt may hit a bash that is being set up.
_START_ATTEMPTS = 3
_KEPT_WORDS = (
    "a new one goes on with its directory, variables and functions, without its options, traps and jobs"
)
_LOST_WORDS = "a new one was started; directory, variables and functions of the one before are gone"


def _watch_end(process: "subprocess.Popen[bytes]") -> int:
    """Returns a descriptor that becomes readable when a child has ended; the caller closes it."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        # Without namespaces pidfd_open is refused, because it could open every process of the host.
        read_end, write_end = os.pipe2(os.O_CLOEXEC)

    def wait() -> None:
        process.wait()
        os.close(write_end)

    threading.Thread(target=wait, daemon=True).start()
    return read_end


class _ShellEndedError(Exception):
    """Bash has exited by itself."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class BashShell:
    """A running bash."""

    def __init__(self, outlet: Outlet, gate: SignalGate) -> None:
        self._outlet = outlet
        self._gate = gate
        self.answerer: Answerer = BashAnswerer()
        self._count = 0
        self._number = 0
        self._failed_status = 0
        self._cleanup = ""
        self._unsaid = ""
        self._written = b""
        self._code = os.memfd_create("cell")
        self._input = os.memfd_create("stdin")
        self._state = os.memfd_create("state")
        self._status_read, self._status = os.pipe2(os.O_CLOEXEC)
        self._pidfd = -1
        try:
            self._start()
        except _ShellEndedError as ended:
            os._exit(ended.status)

    def _start(self) -> None:
        """Starts a bash, in place of the previous one if there is one."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

        stderr = os.dup(2)
        try:
            self._process = subprocess.Popen(
                _BASH,
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(self._code, self._input, self._state, self._status, stderr),
                bufsize=0,
            )
        finally:
            os.close(stderr)

        self._poller = select.poll()
        self._poller.register(self._status_read, select.POLLIN)
        self._pidfd = _watch_end(self._process)
        self._poller.register(self._pidfd, select.POLLIN)
        lines = (_START.format(stderr=stderr), _KEEP.format(state=self._state), _EXIT.format(), _TRAP)
        self._run("\n".join(lines), restore="")

    def _start_anew(self, status: int, restore: str) -> bool:
        """Starts a new bash in place of one that has exited; returns whether the old one had saved its state.

        Raises:
            KeyboardInterrupt: The cell was interrupted meanwhile. The new bash runs.
        """
        is_kept = _end_of(self._state, len(_KEPT)) == _KEPT
        interrupt: Optional[KeyboardInterrupt] = None

        for _ in range(_START_ATTEMPTS):
            try:
                self._start()
                load = _RESTORE.format(state=self._state) if is_kept else ":"
                lines = f'{load}; __fumehood_status "{status}"'
                self._run(lines, restore=restore)
                break
            except KeyboardInterrupt as error:
                # One of its set-up lines may have been lost.
                interrupt = error
                self._process.kill()
                self._process.wait()
        else:
            os._exit(status)

        os.ftruncate(self._state, 0)

        if interrupt is not None:
            raise interrupt

        return is_kept

    @property
    def reply_count(self) -> int:
        """The number of the last cell with a history number."""
        return self._count

    def run_source(self, source: str, execution: GuestExecution) -> None:
        """Runs one cell to its end.

        Raises:
            KeyboardInterrupt: The cell was interrupted, and bash has abandoned it.
        """
        self._count += execution.store_history
        self._failed_status = 0
        self._cleanup = ""

        if self._unsaid:
            _say(self._unsaid)
            self._unsaid = ""

        with self._gate.closed():
            _fill(self._code, source.replace("\0", "").encode("utf-8", "surrogateescape"))
            _fill(self._input, execution.stdin or b"")

        self._wait_ready()
        save, restore = _borrow(execution.envs)
        # Reopened, so that each cell reads from the beginning.
        run = _RUN.format(stdin=f"/proc/self/fd/{self._input}" if execution.stdin else "/dev/null")
        lines = f"{save}{_LOAD.format(code=self._code)}\n{run}"
        try:
            self._failed_status = self._run(lines, restore=restore)
        except _ShellEndedError as ended:
            self._failed_status = ended.status
            is_kept = self._start_anew(ended.status, restore)
            self._cleanup = _KEPT_WORDS if is_kept else _LOST_WORDS

            # No error reports it, so it is printed with the next cell, where it matters.
            if ended.status == 0 and not is_kept:
                self._unsaid = _LOST_WORDS

    def write_down(self) -> Apart:
        """Saves the state of bash for a checkpoint; returns its processes, which a fork does not keep.

        Raises:
            OSError: Bash has not written it.
        """
        self._wait_ready()
        os.ftruncate(self._state, 0)
        try:
            self._run(_WRITE_DOWN.format(state=self._state), restore="")
        except _ShellEndedError as ended:
            self._start_anew(ended.status, "")
            raise OSError(errno.ECHILD, os.strerror(errno.ECHILD)) from None

        self._written = os.pread(self._state, os.fstat(self._state).st_size, 0)
        # Emptied: a bash that exits later writes its own state there.
        os.ftruncate(self._state, 0)

        if not self._written.endswith(_KEPT):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return Apart((self._process.pid,), self._leave)

    def go_on(self) -> None:
        """Starts a bash with the state that was written down, in a context made from a checkpoint."""
        self._status_read, self._status = os.pipe2(os.O_CLOEXEC)
        _fill(self._state, self._written)
        self._start_anew(0, "")

    def _leave(self) -> None:
        """Closes, in a fork, the descriptors that lead to the bash of its parent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        # It is no child of this process.
        self._process.returncode = 0

        for fd in (self._status_read, self._status, self._pidfd):
            os.close(fd)

        self._pidfd = -1

    def run_comm(self, _header: Dict[str, Any], _payload: bytes) -> None:
        """Does nothing: bash has no widgets."""
        self._failed_status = 0

    def report(self, error: Optional[BaseException] = None) -> None:
        """Sends the error of the cell: an interrupt, or an exit status that is not zero."""
        status, self._failed_status = self._failed_status, 0

        if error is not None:
            name = type(error).__name__
            self._outlet.error(name, str(error), [f"{name}: {error}" if str(error) else name])
        elif status != 0:
            words = (
                f"bash has exited with status {status}; {self._cleanup}"
                if self._cleanup
                else _describe(status)
            )
            self._outlet.error("ExitCode", str(status), [f"ExitCode: {words}"])

    def _wait_ready(self) -> None:
        """Waits until bash can take a cell; starts a new one if it has ended by itself between two cells."""
        try:
            self._synchronize()
        except _ShellEndedError as ended:
            if not self._start_anew(ended.status, ""):
                _say(_LOST_WORDS)

    def _run(self, lines: str, *, restore: str) -> int:
        self._number += 1
        tell = _TELL.format(restore=restore, number=self._number, status=self._status)
        try:
            self._write(f"{lines}\n{tell}\n")
            status = self._wait()
        except KeyboardInterrupt:
            self._wait_interrupted(tell)
            raise

        assert status is not None
        return status

    def _synchronize(self) -> None:
        """Waits until bash has handled every signal sent to it: a late one would cost it lines of the cell."""
        self._number += 1
        line = f"printf '%s 0\\0' {self._number} >&{self._status}\n"
        self._write(line)

        while self._wait(_PATIENCE_MS) is None:
            self._write(line)

    def _wait_interrupted(self, tell: str) -> None:
        """Waits until bash has abandoned the cell; the host decides how long that may take."""
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if self._wait(_PATIENCE_MS) is not None:
                return

            # A command that was just being started has missed the signal.
            os.killpg(0, signal.SIGINT)

            # An interrupt discards the line that bash was reading; reporting the status twice is harmless.
            while self._wait(_PATIENCE_MS) is None:
                self._write(f"{tell}\n")
        finally:
            signal.signal(signal.SIGINT, handler)

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        view = memoryview(text.encode("utf-8", "surrogateescape"))
        try:
            with self._gate.closed():
                while view:
                    view = view[self._process.stdin.write(view) :]
        except BrokenPipeError:
            raise self._ended() from None

    def _wait(self, timeout_ms: Optional[int] = None) -> Optional[int]:
        """Waits for the status of the current cell.

        Raises:
            _ShellEndedError: Bash has exited.
        """
        while True:
            ready = {fd for fd, _ in self._poller.poll(timeout_ms)}

            if not ready:
                return None

            if self._status_read not in ready:
                raise self._ended()

            for record in os.read(self._status_read, _READ_BYTES).split(b"\0"):
                number, _, status = record.partition(b" ")

                if number == b"%d" % self._number and status.isdigit():
                    return int(status)

    def _ended(self) -> _ShellEndedError:
        """Returns the error for a bash that has exited; if a signal ended it, ends this process by the same signal."""
        status = self._process.wait()

        if status < 0:
            os.kill(os.getpid(), -status)
            os._exit(_SIGNAL_BASE - status)

        return _ShellEndedError(status & 0xFF)


def _fill(fd: int, content: bytes) -> None:
    """Replaces the content of a memory file."""
    os.ftruncate(fd, 0)
    view = memoryview(content)
    offset = 0

    while offset < len(view):
        offset += os.pwrite(fd, view[offset:], offset)


def _say(words: str) -> None:
    os.write(2, f"bash: {words}\n".encode())


def _end_of(fd: int, length: int) -> bytes:
    """Returns the last bytes of a memory file."""
    return os.pread(fd, length, max(0, os.fstat(fd).st_size - length))


def _borrow(envs: Dict[str, str]) -> Tuple[str, str]:
    """Returns commands that set variables before a cell, and commands that restore the previous values."""
    save = restore = ""

    for index, (name, value) in enumerate(envs.items()):
        if _NAME.fullmatch(name):
            kept = f"__fumehood_env_{index}"
            save += (
                f"unset {kept}; [[ ${{{name}+x}} ]] && {kept}=${name}; export {name}={shlex.quote(value)}\n"
            )
            restore += f"; if [[ ${{{kept}+x}} ]]; then {name}=${kept}; else unset {name}; fi"

    return save, restore


def _describe(status: int) -> str:
    if status > _SIGNAL_BASE:
        return f"the last command ended with status {status} (signal {status - _SIGNAL_BASE})"

    return f"the last command ended with status {status}"
