"""Entering: the host has a process that moves into a forked sandbox enter its namespaces, one call after the other.

Runs in a thread of the host process, for some milliseconds. Whoever owns the namespaces of forks has power over
all of them, and whoever enters one has every capability there: the process is lent that id, and until it has given up
all of it again runs none of its own instructions. It is held from outside, and makes the calls that are listed here.
The last process that it makes goes on as the fork's user, which may do no more than any other.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fumehood.fork_errors import ForkError
from fumehood.runtimes.linux_refusals import RefusedCalls
from fumehood.runtimes.linux_status import groups_of, ids_of, is_confined, parent_of
from fumehood_jail import caps, syscalls
from fumehood_jail.launch import GUEST_UID, MOVER_UID
from fumehood_jail.tracing import HeldProcess

STEP = "move a process into the fork"
_UNCHANGED = (1 << 64) - 1
_ARGUMENTS = 6
# As in the policy: by this the filter knows the call, which it refuses to all others.
_MOVES_IN = 0x6D6F7665
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process is to go.

    Attributes:
        namespaces: Descriptors of them by their names, in the order in which they are entered.
        init_pid: The init there.
        has_movers: Whether an id that no guest code has owns them.
        doors: Descriptors of its control groups: whatever writes "0" to them moves in.
    """

    namespaces: Mapping[str, int]
    init_pid: int
    has_movers: bool
    doors: Sequence[int]


class _Puppet:
    """A process that is held, and makes the calls that it is told to.

    Args:
        pid: Its number.
        held: Holds it.
        origin: Lets it make those of which its filter tells.
    """

    def __init__(self, pid: int, held: HeldProcess, origin: RefusedCalls) -> None:
        self._pid = pid
        self._held = held
        self._origin = origin

    def make(self, name: str, *some: int, gifts: Sequence[int] = ()) -> int:
        """Has it make a call; all further arguments are 0."""
        arguments = (*some, *[0] * (_ARGUMENTS - len(some)))
        self._origin.order(self._pid, name, arguments, gifts)
        return self._held.call(name, arguments)

    def take(self, fds: Sequence[int]) -> list[int]:
        """Gives it descriptors, by a call that does nothing else; returns the numbers that they have there.

        The last ones are those of `fds`. Somebody may have interrupted the call: it has got some more than once.
        """
        self.make("unshare", 0, gifts=fds)
        return list(self._origin.given(self._pid))

    def lay(self, content: bytes) -> int:
        """Writes to its memory, which others may share and change; returns where."""
        return self._held.lay(content)


def enter(pid: int, origin: RefusedCalls, place: Place) -> int | None:
    """Has a process that waits for it enter namespaces and become a guest's user there, without capabilities, and fork.

    Args:
        pid: The process.
        origin: Lets it make the calls.
        place: Where it is to go.

    Returns:
        A pidfd of what it has made, a child of the init there. None: it did not wait; nothing was done, and it will
        wait again.

    Raises:
        ForkError: It is not there, and has ended; or the kernel does not let it be held.
    """
    try:
        held = HeldProcess(pid)
    except OSError as error:
        raise _as_fork_error("trace the process that moves into the fork", error) from None

    try:
        if not held.is_stopped_in("setns"):
            return None

        lent = _lead(_Puppet(pid, held, origin), place)
        return _divide(held, place, lent)
    except BaseException as error:
        held.end()

        if isinstance(error, OSError):
            raise _as_fork_error(STEP, error) from None

        raise


def _as_fork_error(step: str, error: OSError) -> ForkError:
    if isinstance(error, ProcessLookupError):
        return ForkError(step=step, reason="it ended")

    return ForkError.from_errno(step, error.errno or 0)


def _lead(puppet: _Puppet, place: Place) -> list[int]:
    """Every call that it makes, in this order; returns the numbers of descriptors that it was lent, and has closed."""
    # From here on nobody shares its descriptors, nor sees them.
    puppet.make("unshare", syscalls.CLONE_FILES)
    puppet.make("prctl", syscalls.PR_SET_DUMPABLE, 0)

    if place.has_movers:
        puppet.make("setresuid", _UNCHANGED, MOVER_UID, _UNCHANGED)

    with _zeros(len(place.doors)) as zeros:
        lent = puppet.take([*place.namespaces.values(), zeros, *place.doors])

    zeros_at = len(lent) - len(place.doors) - 1
    namespaces = lent[zeros_at - len(place.namespaces) : zeros_at]
    zeros_there, *doors = lent[zeros_at:]
    puppet.make("setns", namespaces[0])
    puppet.make("setresgid", GUEST_UID, GUEST_UID, GUEST_UID)
    puppet.make("setresuid", GUEST_UID, GUEST_UID, MOVER_UID if place.has_movers else GUEST_UID)

    for fd in namespaces[1:]:
        puppet.make("setns", fd)

    for door in doors:
        # From a file: in its memory somebody who shares that could put another number, and bring others in.
        puppet.make("sendfile", door, zeros_there, 0, 1, _MOVES_IN)

    for fd in lent:
        puppet.make("close", fd)

    _give_up_capabilities(puppet)
    # A change of user sets this anew, as fs.suid_dumpable says.
    puppet.make("prctl", syscalls.PR_SET_DUMPABLE, 0)
    return lent


def _give_up_capabilities(puppet: _Puppet) -> None:
    puppet.make("prctl", syscalls.PR_SET_SECUREBITS, caps.SECUREBITS)

    for capability in caps.KNOWN:
        puppet.make("prctl", syscalls.PR_CAPBSET_DROP, capability)

    none = puppet.lay(syscalls.CAPSET_HEADER + bytes(syscalls.CAPSET_BYTES))
    puppet.make("capset", none, none + len(syscalls.CAPSET_HEADER))


@contextmanager
def _zeros(count: int) -> Iterator[int]:
    """A file of so many digits 0, from which nobody can read but in order, and which nobody can change."""
    fd = os.memfd_create("fumehood-zeros", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, b"0" * count)
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        yield fd
    finally:
        os.close(fd)


def _divide(held: HeldProcess, place: Place, lent: Sequence[int]) -> int:
    """Has it make the process that goes on in its place; returns a pidfd of that.

    Whoever is born in a PID namespace from outside is nobody's child there, and could be left to nobody: so that one
    makes the last one, and ends. It shares the memory of the first, which waits for that, and copies nothing.
    """
    between = held.fork(syscalls.CLONE_VM | syscalls.CLONE_VFORK | syscalls.SIGCHLD)
    try:
        moved = between.fork(syscalls.SIGCHLD)
        try:
            between.forked()
            between.leave()
            child = held.forked()
            _check(moved.pid, place, lent)
            pidfd = os.pidfd_open(moved.pid)
        except BaseException:
            moved.end()
            raise
    except BaseException:
        between.end()
        raise

    try:
        moved.let_go(0)
        held.let_go(child)
    except BaseException:
        # A process that nobody has let go ends with this thread.
        os.close(pidfd)
        raise

    return pidfd


def _check(pid: int, place: Place, lent: Sequence[int]) -> None:
    """Asks the kernel where a process is that is held, as whom, and what it may do."""
    for name, fd in place.namespaces.items():
        if not os.path.samestat(os.stat(f"/proc/{pid}/ns/{name}"), os.fstat(fd)):
            raise ForkError(step=STEP, reason=f"the kernel says that it is in another {name} namespace")

    if ids_of(pid) != ids_of(place.init_pid):
        raise ForkError(step=STEP, reason="the kernel says that it has another user")

    if not is_confined(pid):
        raise ForkError(step=STEP, reason="the kernel says that it is not confined as a context must be")

    # Somebody may have had it move there twice, and not at all: the file of zeros has one for each group.
    if place.doors and groups_of(pid) != groups_of(place.init_pid):
        raise ForkError(step=STEP, reason="the kernel says that it is in other control groups")

    if any(os.path.lexists(f"/proc/{pid}/fd/{fd}") for fd in lent):
        raise ForkError(step=STEP, reason="the kernel says that it has kept what it was lent")

    # A fork ends when somebody has taken leave of all that was in it: nobody outside shall be asked for that.
    if parent_of(pid) != place.init_pid:
        raise ForkError(step=STEP, reason="the kernel says that it is no child of the fork's init")
