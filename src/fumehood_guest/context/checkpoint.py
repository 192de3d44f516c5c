"""Checkpoints: forks of a context that wait, from each of which the host can have contexts forked any number of times.

A checkpoint is a process of the guest, forked by the context between two cells: all it holds is in its memory, and the
kernel copies only pages that one of them changes. It has a socket of its own to the host, closes everything that it
shares with the context (see `open_resources`), and sleeps. On request it forks again: that fork takes over a new
channel and continues where the context was; the checkpoint stays. It must never run user code, and it exits when the
host closes the socket.
"""

from __future__ import annotations

import os
import random
import select
import socket
import threading
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Tuple

from fumehood_guest.context import thread_pools
from fumehood_guest.context.channel import CHANNEL_FD, FrameSocket
from fumehood_guest.context.idle_wait import IdleWait
from fumehood_guest.context.interpreter_hooks import InterpreterHooks
from fumehood_guest.context.migration import move, report
from fumehood_guest.context.open_resources import OpenResources
from fumehood_guest.context.randomness import reseed
from fumehood_guest.shared import fork_hooks, process_usage
from fumehood_jail import syscalls
from fumehood_wire.frames import Decoder, encode
from fumehood_wire.messages import MAX_LEFT_BEHIND, MAX_LEFT_BEHIND_CHARS

_RECEIVE_BYTES = 1 << 16
_MAX_FDS = 3
# EX_SOFTWARE of sysexits.h: the exit status of a checkpoint that could not be made.
_DAMAGED = 70
_ZOMBIE = "Z"
# include/uapi/linux/wait.h: __WALL
_ALL_KINDS = 0x40000000


# Describes all variables, or the one with a name, with or without marks; returns their number and the description.
Look = Callable[[str, bool], Tuple[int, bytes]]


class Apart(NamedTuple):
    """The helper processes of a context's language, which a fork does not inherit and has to start again.

    Attributes:
        pids: The processes.
        leave: Called in a fork: closes its descriptors.
    """

    pids: Tuple[int, ...] = ()
    leave: Callable[[], None] = lambda: None


class Checkpoints:
    """Makes the checkpoints of a context. It keeps references to all it needs, since user code may damage modules."""

    def __init__(self, channel: FrameSocket, background: IdleWait) -> None:
        self._channel = channel
        self._background = background
        self._fork = os.fork
        self._clone = syscalls.clone
        self._be_forked = syscalls.be_forked
        self._waitpid = os.waitpid
        self._exit = os._exit
        self.hooks = InterpreterHooks()
        # A pidfd of each child, by its pid.
        self._children: Dict[int, int] = {}
        # True while a fork is made that user code did not request.
        self.is_forking = False

    def make(self, line_fd: int, apart: Apart, look: Look) -> bool:
        """Makes a checkpoint of the calling process.

        Before: no user code runs in this thread, signals are blocked, all output is sent.

        Args:
            line_fd: The socket to the host, owned by the checkpoint from now on.
            apart: The processes of the language, which forks start again.
            look: Describes the variables of this process, without running code of the user.

        Returns:
            False in the context itself; True, later and any number of times, in each context made from the checkpoint.
            Such a context has its channel, its files and its state again, and has not reported that it is ready.
        """
        self.reap()
        beside = _other_threads() + _children_of(os.getpid(), {*self._children, *apart.pids})
        beside += [child for pid in apart.pids for child in _children_of(pid, ())]
        # libc's fork takes the locks that other threads may hold. With a single thread, a raw clone is possible, whose
        # child user code cannot wait for: a wait for all children must not find one that never ends.
        is_alone = _is_alone()

        if not is_alone:
            thread_pools.end_idle()
            beside += thread_pools.lasting()
            is_alone = _is_alone()

        # Before the fork: afterwards there is no moment at which the fork could not run user code.
        try:
            self.hooks.turn_off()
            pid = self._fork_quietly(self._fork_unseen if is_alone else self._fork, is_alone=is_alone)
        except BaseException:
            self.hooks.turn_on()
            os.close(line_fd)
            raise

        if pid:
            self.hooks.turn_on()
            os.close(line_fd)
            self._children[pid] = watch = os.pidfd_open(pid)
            self._background.heed(watch)
            return False

        try:
            self.hooks.turn_off()

            # Otherwise fork twice, so that init becomes the parent.
            if not is_alone and self._fork_quietly(self._fork):
                self._exit(0)

            self._let_go_of_children()
            apart.leave()
            _Checkpoint(self, line_fd, beside, look).wait()
        except BaseException:
            self._exit(_DAMAGED)

        return True

    def reap(self) -> None:
        """Reaps checkpoints that have ended, and intermediate processes of a double fork."""
        for pid, watch in list(self._children.items()):
            try:
                ended, _ = self._waitpid(pid, os.WNOHANG | _ALL_KINDS)
            except ChildProcessError:
                ended = pid  # user code has waited for it

            if ended:
                del self._children[pid]
                self._background.forget(watch)
                _close_all([watch])

    def _let_go_of_children(self) -> None:
        """Forgets, in a fork, the children of its parent."""
        for watch in self._children.values():
            self._background.forget(watch)

        _close_all(self._children.values())
        self._children = {}

    def fork(self) -> int:
        """Forks this process, itself a fork, without running user code's at-fork hooks."""
        return self._fork_quietly(self._fork)

    def be_forked(self) -> int:
        """Waits until the host makes this process, itself a fork, fork; runs no at-fork hooks of user code."""
        return self._fork_quietly(self._be_forked)

    def _fork_unseen(self) -> int:
        """Forks with exit signal 0, so that no wait of user code finds the child."""
        return self._clone(0, exit_signal=0)

    def _fork_quietly(self, fork: Callable[[], int], *, is_alone: bool = True) -> int:
        """Forks without changing the program's random state, and without the shell's at-fork handler.

        Args:
            fork: Forks.
            is_alone: Whether this process has one thread, as all forks have: then Python's hooks have nothing to do.
        """
        state = None if is_alone and fork_hooks.leave_out_once() else random.getstate()
        self.is_forking = True
        try:
            pid = fork()
        finally:
            self.is_forking = False
            fork_hooks.do_all()

        if pid == 0 and state is not None:
            random.setstate(state)

        return pid

    def take_over(self, fds: List[int]) -> None:
        """In a fork of a checkpoint: installs the channel and the outputs that the host has sent."""
        channel, stdout, stderr = fds
        os.setsid()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.dup2(channel, CHANNEL_FD, inheritable=False)

        for fd in fds:
            os.close(fd)

        self._channel.renew()

    def wait_for_leave(self) -> None:
        """Blocks until the host lets this context proceed."""
        while True:
            frame = self._channel.receive()

            if frame is not None and frame[0]["type"] == "proceed":
                return

            if frame is not None and frame[0]["type"] == "shutdown_request":
                self._exit(0)

    def take_up(self, open_resources: OpenResources, cwd: Optional[str]) -> None:
        """Reopens the files of a context made from a checkpoint, after init has restored their content."""
        if cwd is not None:
            try:
                os.chdir(cwd)
            except OSError as error:
                open_resources.lost.append(f"the working directory {cwd}: {error.strerror}")

        open_resources.resume()
        self._background.renew()
        thread_pools.renew()


class _Checkpoint:
    """The waiting process."""

    def __init__(self, maker: Checkpoints, line_fd: int, beside: List[str], look: Look) -> None:
        self._maker = maker
        self._look = look
        self._line = socket.socket(fileno=line_fd)
        self._decoder = Decoder()
        self._fds: List[int] = []
        self._poller = select.poll()
        # The contexts made from it: number by pid, and pid by pidfd.
        self._numbers: Dict[int, int] = {}
        self._watched: Dict[int, int] = {}
        self._cwd = _working_directory()
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)

        # The host detects the context's end by its channel and pipes: no other process may hold them.
        for fd in (1, 2, CHANNEL_FD):
            os.dup2(null, fd)

        os.close(null)
        own = {0, 1, 2, CHANNEL_FD, line_fd, *maker._background.fds()}
        self._open_resources = OpenResources(own)
        self._open_resources.release()
        # Messages: what the checkpoint does not carry over, and what of it this process could not keep.
        self._lost = beside + self._open_resources.lost

    def wait(self) -> None:
        """Serves the host's requests; returns in each context that is made."""
        self._send({"type": "kept", "pid": os.getpid(), "left_behind": _bounded(self._lost)})
        self._poller.register(self._line, select.POLLIN)

        while True:
            for fd, _ in self._poller.poll():
                if fd in self._watched:
                    self._note_end(fd)
                elif self._is_context_after_request():
                    return

    def _is_context_after_request(self) -> bool:
        """Handles a request of the host; returns True in a child that was forked to be a context."""
        data, fds, _, _ = socket.recv_fds(self._line, _RECEIVE_BYTES, _MAX_FDS)

        if not data:
            os._exit(0)

        self._fds.extend(fds)
        return any(self._carry_out(header, payload) for header, payload in self._decoder.feed(data))

    def _carry_out(self, header: Dict[str, Any], payload: bytes) -> bool:
        if header["type"] == "move":
            return self._send_migrator(header["reseed"], header["last"])

        if header["type"] == "look":
            return self._show(payload.decode("utf-8", "replace"), header["marks"])

        return self._revive(header["number"])

    def _show(self, name: str, marks: bool) -> bool:
        """Describes the variables of this state; returns False.

        It does this in the checkpoint process itself: a fork would run at-fork handlers of user code.
        """
        sock = socket.socket(fileno=self._fds.pop(0))
        try:
            count, payload = self._look(name, marks)
            sock.sendall(encode({"type": "variables", "count": count}, payload), socket.MSG_NOSIGNAL)
        except Exception:  # noqa: S110
            # Without memory or a reader there is no answer; the end of the socket tells the host.
            pass
        finally:
            sock.close()

        return False

    def _send_migrator(self, reseeds: bool, is_last: bool) -> bool:
        """Forks a process that migrates into a forked sandbox and reports to the host; returns True in it.

        The last migration uses the checkpoint process itself, which is not needed any more.
        """
        sock = socket.socket(fileno=self._fds.pop(0))
        try:
            pid = 0 if is_last else self._maker.fork()
        except OSError as error:
            report(sock, error)
            sock.close()
            return False

        if pid == 0:
            self._line.close()
            _close_all(list(self._watched))
            self._maker.take_over(move(sock, self._maker.be_forked))
            self._go_on()

            if reseeds:
                reseed()

            return True

        sock.close()
        self._watch(pid)
        return False

    def _revive(self, number: int) -> bool:
        fds, self._fds = self._fds[:_MAX_FDS], self._fds[_MAX_FDS:]
        try:
            pid = self._maker.fork()
        except OSError as error:
            _close_all(fds)
            self._send({"type": "revival_failed", "number": number, "errno": error.errno or 0})
            return False

        if pid == 0:
            self._line.close()
            _close_all(list(self._watched))
            self._maker.take_over(fds)
            self._go_on()
            return True

        _close_all(fds)
        self._numbers[pid] = number
        self._watch(pid)
        self._send({"type": "revived", "number": number, "pid": pid})
        return False

    def _go_on(self) -> None:
        """Continues, in a new context, where the checkpoint was made, once the host allows it."""
        self._maker.wait_for_leave()
        self._maker.take_up(self._open_resources, self._cwd)
        self._maker.hooks.turn_on()

    def _watch(self, pid: int) -> None:
        watch = os.pidfd_open(pid)
        self._watched[watch] = pid
        self._poller.register(watch, select.POLLIN)

    def _note_end(self, watch: int) -> None:
        pid = self._watched.pop(watch)
        self._poller.unregister(watch)
        os.close(watch)
        _, status = os.waitpid(pid, 0)

        if pid not in self._numbers:
            return  # a migrator, which has reported to the host itself

        code = os.waitstatus_to_exitcode(status)
        outcome = {"exit_code": code} if code >= 0 else {"signal": -code}
        self._send({"type": "ended", "number": self._numbers.pop(pid), **outcome})

    def _send(self, header: Dict[str, Any]) -> None:
        try:
            self._line.sendall(encode(header))
        except OSError:
            self._leave()

    def _leave(self) -> NoReturn:
        os._exit(0)
        raise AssertionError("unreachable")


def _working_directory() -> Optional[str]:
    try:
        return os.getcwd()
    except OSError:
        return None  # it was removed


def _is_alone() -> bool:
    """Whether this process has only one thread, also counting threads that Python does not know."""
    return len(os.listdir("/proc/self/task")) == 1


def _other_threads() -> List[str]:
    """Returns the names of the other threads, which the threading module forgets after a fork."""
    main = threading.main_thread()
    return [f"thread {one.name!r}" for one in threading.enumerate() if one is not main and one.is_alive()]


def _children_of(parent: int, known: Iterable[int]) -> List[str]:
    found = []

    for pid in process_usage.processes():
        fields = process_usage.stat_fields(pid)

        if pid not in known and len(fields) > 1 and int(fields[1]) == parent and fields[0] != _ZOMBIE:
            found.append(f"child process {pid}")

    return found


def _bounded(lines: List[str]) -> List[str]:
    """Returns as many of the lines as the wire takes."""
    kept = [line[:MAX_LEFT_BEHIND_CHARS] for line in lines[:MAX_LEFT_BEHIND]]

    if len(lines) > MAX_LEFT_BEHIND:
        kept[-1] = f"and {len(lines) - MAX_LEFT_BEHIND + 1} more"

    return kept


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            continue
