"""Moves: a process that is forked from a checkpoint of one sandbox becomes a context of a sandbox forked from it.

Runs in the host process, on the engine's loop. The process is user code's own, and hostile: it is known by the
credentials of what it sends, it gets descriptors of namespaces that hold nothing but an init that waits, and as many
answers for entering them as there are. What it is then, the kernel is asked before it may go on.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Sequence

from fumehood.fork_errors import ForkError
from fumehood.readiness import until_readable
from fumehood.runtimes.base import GuestContext
from fumehood.runtimes.linux_refusals import RefusedCalls

# In the order in which they are entered: the user's first, for the right to enter the others.
NAMESPACES = ("user", "mnt", "net", "ipc", "uts", "pid", "cgroup")
# Before the first one it takes the id that owns it, and behind it the guest's, with that one in reserve again.
_IDS = 2
_CREDENTIALS = struct.Struct("3i")
_HERE = b"!"
_MAX_WORD_BYTES = 16
_STEP = "move a process into the fork"
_MOVE_SECONDS = 10.0
_SECCOMP_FILTER = b"2"


class MovedContext(GuestContext):
    """A context that has moved in.

    Args:
        pidfd: Holds it; this object's from now on.
        origin: Whose system call filter it is under.
        kill_held: Kills what the host may not signal itself.
    """

    def __init__(self, pidfd: int, origin: GuestContext, kill_held: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.exited = self._loop.create_future()
        self._pidfd = pidfd
        self._origin = origin
        self._kill_held = kill_held
        self._loop.add_reader(pidfd, self._note_exit)

    @property
    def origin(self) -> GuestContext:
        """See the port."""
        return self._origin

    def kill(self) -> None:
        """Ends the process; see the port."""
        if self.exited.done():
            return

        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError:
            self._kill_held(self._pidfd)

    def _note_exit(self) -> None:
        """Its parent lies inside, so that nobody can tell how it ended."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)

        if not self.exited.done():
            self.exited.set_result(None)


async def move_in(
    init_pid: int,
    origin: RefusedCalls,
    send: Callable[[int], None],
    given: Sequence[int],
) -> int:
    """Lets a process move into the namespaces of an init; returns a pidfd of it.

    Args:
        init_pid: The init, which lives.
        origin: Answers for the process.
        send: Hands a socket to the checkpoint, and has it fork the process that moves.
        given: What the process gets besides the namespaces: its channel and outputs, and then the doors of its control
            groups.

    Raises:
        ForkError: It did not come, or is not what a context must be.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    with ours:
        with theirs:
            send(theirs.fileno())

        try:
            async with asyncio.timeout(_MOVE_SECONDS):
                return await _let_in(ours, init_pid, origin, given)
        except TimeoutError:
            raise ForkError(step=_STEP, reason=f"it took longer than {_MOVE_SECONDS:g} s") from None


async def _let_in(sock: socket.socket, init_pid: int, origin: RefusedCalls, given: Sequence[int]) -> int:
    mover = await _hear(sock)
    origin.let_move(mover, len(NAMESPACES) + _IDS)
    namespaces = [os.open(f"/proc/{init_pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACES]
    try:
        own, doors = given[:3], given[3:]
        socket.send_fds(sock, [_HERE], [*own, *namespaces, *doors])
        moved = await _hear(sock)
    finally:
        origin.forbid(mover)

        for fd in namespaces:
            os.close(fd)

    pidfd = os.pidfd_open(moved)
    try:
        _check_confined(moved, pidfd)
    except BaseException:
        os.close(pidfd)
        raise

    return pidfd


async def _hear(sock: socket.socket) -> int:
    """Waits for the word of a process that all is well; returns its number on the host."""
    await until_readable(sock.fileno())
    word, ancillary, _, _ = sock.recvmsg(_MAX_WORD_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))

    if word != _HERE:
        number = int(word) if word.isdigit() else 0
        raise ForkError.from_errno(_STEP, number) if number else ForkError(step=_STEP, reason="it ended")

    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(content)[0])

    raise ForkError(step=_STEP, reason="it is not known which process spoke")


def _check_confined(pid: int, pidfd: int) -> None:
    """Asks the kernel whether a process that has moved has given up what it was lent."""
    with open(f"/proc/{pid}/status", "rb") as file:
        fields = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)

    capabilities = [int(value, 16) for name, value in fields.items() if name.startswith(b"Cap")]
    is_filtered = fields.get(b"Seccomp", b"").strip() == _SECCOMP_FILTER
    has_no_new = fields.get(b"NoNewPrivs", b"").strip() == b"1"

    # What was read is of this very process if it lives now.
    if any(capabilities) or not is_filtered or not has_no_new or _has_ended(pidfd):
        raise ForkError(step=_STEP, reason="the kernel says that it is not confined as a context must be")


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))
