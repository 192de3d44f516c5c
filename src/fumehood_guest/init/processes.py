"""Processes: commands and terminals that init starts for the host.

The output of a command goes straight to the host through pipes that the host made; only the bytes of a terminal pass
through here, because its master end must never leave the sandbox. A process is a session of its own, so that a signal
reaches all of it.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import struct
import subprocess
import termios
from typing import Any, Callable, Dict, List, Optional, Tuple

from fumehood_guest.init import lease_breaks
from fumehood_guest.shared import process_usage

Reply = Tuple[Any, bytes]

_RELAY_BYTES = 1 << 16
_KILL = int(signal.SIGKILL)
_BASH = "/bin/bash"
_SH = "/bin/sh"


class Processes:
    """The commands and terminals of this sandbox, by pid.

    Args:
        init: Provides the loop and the channel.
        open_files: How many files a process may have open; init itself may have more.
    """

    def __init__(self, init: Any, open_files: int) -> None:
        self._init = init
        self._open_files = open_files
        self._running: Dict[int, _Process] = {}

    def verbs(self) -> Dict[str, Callable[..., Reply]]:
        """Returns the request handlers by their names on the wire."""
        return {
            "start_process": self.start,
            "signal_process": self.send_signal,
            "resize": self.resize,
        }

    def start(
        self, payload: bytes, cwd: str, envs: Dict[str, str], pty: Optional[Dict[str, int]] = None
    ) -> Reply:
        """Starts a command on three descriptors, or on a terminal relayed over one; the payload is its arguments."""
        fds = self._init.take_fds(1 if pty else 3)
        try:
            argv = _with_shell(payload.decode().split("\0"))
            process = (
                self._start_on_terminal(argv, cwd, envs, pty, fds[0])
                if pty
                else self._start_on_pipes(argv, cwd, envs, fds)
            )
        finally:
            if not pty:
                for fd in fds:
                    os.close(fd)

        self._running[process.popen.pid] = process
        return {"pid": process.popen.pid}, b""

    def send_signal(self, pid: int, signal: int) -> Reply:
        """Signals a command with all that it started; returns whether it exists."""
        if pid not in self._running:
            return {"found": False}, b""

        try:
            if signal == _KILL:
                process_usage.kill_tree(pid)
            else:
                os.killpg(pid, signal)
        except ProcessLookupError:
            return {"found": False}, b""

        return {"found": True}, b""

    def resize(self, pid: int, cols: int, rows: int) -> Reply:
        """Sets the size of a terminal."""
        relay = self._running[pid].relay

        if relay is None:
            raise ValueError(f"process {pid} has no terminal")

        _set_size(relay.master, cols, rows)
        return None, b""

    def ended(self, pid: int, code: int) -> bool:
        """Handles a reaped pid; returns whether it was a command's."""
        process = self._running.pop(pid, None)

        if process is None:
            return False

        # The loop has reaped it; without this, subprocess would wait for it again.
        process.popen.returncode = code

        if process.relay is not None:
            process.relay.finish()

        return True

    def _start_on_terminal(
        self, argv: List[str], cwd: str, envs: Dict[str, str], size: Dict[str, int], sock: int
    ) -> _Process:
        try:
            master, slave = os.openpty()
        except OSError:
            os.close(sock)
            raise

        _set_size(master, **size)
        try:
            popen = subprocess.Popen(
                argv,
                cwd=cwd,
                env=envs,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
                preexec_fn=self._become_terminal_user,
            )
        except (OSError, subprocess.SubprocessError):
            os.close(master)
            os.close(sock)
            raise
        finally:
            os.close(slave)

        return _Process(popen, _Relay(self._init, master, sock))

    def _start_on_pipes(self, argv: List[str], cwd: str, envs: Dict[str, str], fds: List[int]) -> _Process:
        stdin_fd, stdout_fd, stderr_fd = fds
        popen = subprocess.Popen(
            argv,
            cwd=cwd,
            env=envs,
            stdin=stdin_fd,
            stdout=stdout_fd,
            stderr=stderr_fd,
            start_new_session=True,
            preexec_fn=self._take_limits,
        )
        return _Process(popen, None)

    def _take_limits(self) -> None:
        """In the child: lowers the limit of open files, which is higher for init, and takes all signals."""
        lease_breaks.unblock()
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._open_files, self._open_files))

    def _become_terminal_user(self) -> None:
        """In the child, after setsid: makes the terminal on fd 0 the controlling one."""
        self._take_limits()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class _Process:
    """One running command."""

    __slots__ = ("popen", "relay")

    def __init__(self, popen: subprocess.Popen[bytes], relay: Optional[_Relay]) -> None:
        self.popen = popen
        self.relay = relay


class _Relay:
    """Copies bytes between a terminal and the host's socket, holding at most one chunk each way."""

    def __init__(self, init: Any, master: int, sock: int) -> None:
        self.master = master
        self._sock = sock
        self._init = init
        self._to_host = b""
        self._to_terminal = b""
        self._ending = False
        os.set_blocking(master, False)
        os.set_blocking(sock, False)
        self._arrange()

    def finish(self) -> None:
        """Sends the remaining output after the command has ended, then closes the socket."""
        self._ending = True
        self._move(0)

    def _arrange(self) -> None:
        """Watches only what can make progress: while one side is full the other is not read, and the guest blocks."""
        master_events = (0 if self._to_host else select.POLLIN) | (select.POLLOUT if self._to_terminal else 0)
        sock_events = (0 if self._to_terminal else select.POLLIN) | (select.POLLOUT if self._to_host else 0)
        self._init.remove_reader(self.master)
        self._init.remove_reader(self._sock)
        self._init.add_reader(self.master, self._move, master_events)
        self._init.add_reader(self._sock, self._move, sock_events)

    def _move(self, _events: int) -> None:
        terminal_open = self._carry_out()
        host_open = self._carry_in()

        if not host_open or (not terminal_open and not self._to_host) or (self._ending and not self._to_host):
            self._close()
            return

        self._arrange()

    def _carry_out(self) -> bool:
        """Copies from the terminal to the host; returns False when the terminal has ended."""
        while True:
            if not self._to_host:
                try:
                    self._to_host = os.read(self.master, _RELAY_BYTES)
                except BlockingIOError:
                    return True
                except OSError:
                    return False

                if not self._to_host:
                    return False

            try:
                self._to_host = self._to_host[os.write(self._sock, self._to_host) :]
            except BlockingIOError:
                return True
            except OSError:
                self._to_host = b""
                return False

    def _carry_in(self) -> bool:
        """Copies from the host to the terminal; returns False when the host has closed its end."""
        if not self._to_terminal:
            try:
                self._to_terminal = os.read(self._sock, _RELAY_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False

            if not self._to_terminal:
                return False

        try:
            self._to_terminal = self._to_terminal[os.write(self.master, self._to_terminal) :]
        except BlockingIOError:
            return True
        except OSError:
            self._to_terminal = b""

        return True

    def _close(self) -> None:
        self._init.remove_reader(self.master)
        self._init.remove_reader(self._sock)
        os.close(self.master)
        os.close(self._sock)
        # Closing again is no error: `finish` may come after the host has hung up.
        self._move = self._ignore  # type: ignore[method-assign]

    def _ignore(self, _events: int) -> None:
        return


def _with_shell(argv: List[str]) -> List[str]:
    """Returns a command with the shell that there is: an image may have no bash."""
    if argv[0] == _BASH and not os.access(_BASH, os.X_OK):
        return [_SH, *argv[1:]]

    return argv


def _set_size(master: int, cols: int, rows: int) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
