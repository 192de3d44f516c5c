"""Checkpoints: forks of a context that wait, and from each of which contexts are made as often as the host asks.

A checkpoint is a process of the guest, made by the context between two cells: all it holds is in its memory, and
the kernel copies only what one of them changes. It has a line of its own to the host, lets go of everything that
it shares with the context (see `open_resources`), and sleeps. Asked to, it forks again: that fork takes over a new
channel and goes on where the context stood; the checkpoint stays. It runs no user code, and it ends when the
host closes the line.
"""

from __future__ import annotations

import os
import random
import select
import socket
import threading
from typing import Any, Callable, Dict, Iterable, List, NoReturn, Optional

from fumehood_guest.context import thread_pools
from fumehood_guest.context.channel import CHANNEL_FD, Channel
from fumehood_guest.context.event_loop import BackgroundLoop
from fumehood_guest.context.migration import move, report
from fumehood_guest.context.open_resources import OpenResources
from fumehood_guest.context.randomness import reseed
from fumehood_guest.shared import fork_hooks, process_usage
from fumehood_jail import syscalls
from fumehood_wire.frames import Decoder, encode
from fumehood_wire.messages import MAX_LEFT_BEHIND, MAX_LEFT_BEHIND_CHARS

_RECEIVE_BYTES = 1 << 16
_MAX_FDS = 3
# EX_SOFTWARE of sysexits.h: what could not be made ends at once.
_DAMAGED = 70
_ZOMBIE = "Z"
# include/uapi/linux/wait.h: __WALL
_ALL_KINDS = 0x40000000


class Checkpoints:
    """Makes the checkpoints of a context. Holds what it needs: user code may damage modules."""

    def __init__(self, channel: Channel, background: BackgroundLoop) -> None:
        self._channel = channel
        self._background = background
        self._fork = os.fork
        self._clone = syscalls.clone
        self._be_forked = syscalls.be_forked
        self._waitpid = os.waitpid
        self._exit = os._exit
        # What tells of the end of each child, by its number.
        self._children: Dict[int, int] = {}
        # True while a fork is made that is none of the user's.
        self.is_forking = False

    def make(self, line_fd: int) -> bool:
        """Makes a checkpoint of the calling process.

        Before: nothing of the user's runs in this thread, signals are blocked, all output is sent.

        Args:
            line_fd: The line to the host, which is the checkpoint's from now on.

        Returns:
            False in the context itself, and true, later and any number of times, in each context made from the
            checkpoint; that has its channel, its files and its place again, and has not said that it is ready.
        """
        self.reap()
        beside = _other_threads() + _children_of(os.getpid(), self._children)
        # libc's own fork takes the locks that other threads may hold. Without any, one that user code cannot wait for
        # can be had at once: a wait for all children must not find one that never ends.
        is_alone = _is_alone()

        if not is_alone:
            thread_pools.end_idle()
            beside += thread_pools.lasting()
            is_alone = _is_alone()

        try:
            pid = self._fork_quietly(self._fork_unseen if is_alone else self._fork, is_alone=is_alone)
        except BaseException:
            os.close(line_fd)
            raise

        if pid:
            os.close(line_fd)
            self._children[pid] = watch = os.pidfd_open(pid)
            self._background.heed(watch)
            return False

        try:
            # Else init becomes the parent.
            if not is_alone and self._fork_quietly(self._fork):
                self._exit(0)

            self._let_go_of_children()
            _Checkpoint(self, line_fd, beside).wait()
        except BaseException:
            self._exit(_DAMAGED)

        return True

    def reap(self) -> None:
        """Takes leave of checkpoints that have ended, and of those that were only forked to fork one."""
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
        """In a fork: they are its parent's."""
        for watch in self._children.values():
            self._background.forget(watch)

        _close_all(self._children.values())
        self._children = {}

    def fork(self) -> int:
        """Forks this process, which is a fork itself; nothing of the user's hears of it."""
        return self._fork_quietly(self._fork)

    def be_forked(self) -> int:
        """Waits until the host has this process fork, which is a fork itself; nothing of the user's hears of it."""
        return self._fork_quietly(self._be_forked)

    def _fork_unseen(self) -> int:
        """Forks so that no wait of user code finds the child."""
        return self._clone(0, exit_signal=0)

    def _fork_quietly(self, fork: Callable[[], int], *, is_alone: bool = True) -> int:
        """Forks without what a fork does to a program's randomness, and unseen by the shell.

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
        """In a fork of a checkpoint: makes channel, standard output and standard error those that the host has sent."""
        channel, stdout, stderr = fds
        os.setsid()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.dup2(channel, CHANNEL_FD, inheritable=False)

        for fd in fds:
            os.close(fd)

        self._channel.renew()

    def wait_for_leave(self) -> None:
        """Blocks until the host lets this context go on."""
        while True:
            frame = self._channel.receive()

            if frame is not None and frame[0]["type"] == "proceed":
                return

            if frame is not None and frame[0]["type"] == "shutdown_request":
                self._exit(0)

    def take_up(self, open_resources: OpenResources, cwd: Optional[str]) -> None:
        """In a context made from a checkpoint, when the files are what they were: opens them anew."""
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

    def __init__(self, maker: Checkpoints, line_fd: int, beside: List[str]) -> None:
        self._maker = maker
        self._line = socket.socket(fileno=line_fd)
        self._decoder = Decoder()
        self._fds: List[int] = []
        self._poller = select.poll()
        # Contexts made from it: number by pid, and pid by the descriptor that tells of the end.
        self._numbers: Dict[int, int] = {}
        self._watched: Dict[int, int] = {}
        self._cwd = _working_directory()
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)

        # The host hears of the context's end by its channel and pipes: nobody else may hold them.
        for fd in (1, 2, CHANNEL_FD):
            os.dup2(null, fd)

        os.close(null)
        own = {0, 1, 2, CHANNEL_FD, line_fd, *maker._background.fds()}
        self._open_resources = OpenResources(own)
        self._open_resources.release()
        # In words: what stays behind of the context, and what of it this process cannot keep.
        self._lost = beside + self._open_resources.lost

    def wait(self) -> None:
        """Waits; returns in each context that is made."""
        self._send({"type": "kept", "pid": os.getpid(), "left_behind": _bounded(self._lost)})
        self._poller.register(self._line, select.POLLIN)

        while True:
            for fd, _ in self._poller.poll():
                if fd in self._watched:
                    self._note_end(fd)
                elif self._is_context_after_request():
                    return

    def _is_context_after_request(self) -> bool:
        """Carries out what the host asks; true in a context that was made for it."""
        data, fds, _, _ = socket.recv_fds(self._line, _RECEIVE_BYTES, _MAX_FDS)

        if not data:
            os._exit(0)

        self._fds.extend(fds)
        return any(self._carry_out(header) for header, _ in self._decoder.feed(data))

    def _carry_out(self, header: Dict[str, Any]) -> bool:
        if header["type"] == "move":
            return self._send_migrator(header["reseed"], header["last"])

        return self._revive(header["number"])

    def _send_migrator(self, reseeds: bool, is_last: bool) -> bool:
        """Has a fork move into a forked sandbox; true there. What becomes of it the host hears from itself.

        The last one need not be a fork: nobody wants this checkpoint any more.
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
            self._maker.wait_for_leave()
            self._maker.take_up(self._open_resources, self._cwd)

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
            self._maker.wait_for_leave()
            self._maker.take_up(self._open_resources, self._cwd)
            return True

        _close_all(fds)
        self._numbers[pid] = number
        self._watch(pid)
        self._send({"type": "revived", "number": number, "pid": pid})
        return False

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
            return  # one that has moved, and told the host

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
    """Whether this process has one thread."""
    return len(os.listdir("/proc/self/task")) == 1


def _other_threads() -> List[str]:
    """Names the threads beside this one; after a fork threading has forgotten them."""
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
    """As much of it as the wire takes."""
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
