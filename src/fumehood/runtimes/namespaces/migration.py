"""Moves: a process that is forked from a checkpoint of one sandbox becomes a context of a sandbox forked from it.

The process is user code's own, and hostile: it is known by the credentials of what it sends, and is held while it
enters namespaces that hold nothing but an init that waits, and makes the process that goes on there
(`linux_entering`).

Entering: the host has a process that moves into a forked sandbox enter its namespaces, one call after the other.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

from fumehood.errors import ForkError
from fumehood.runtimes.base import GuestContext
from fumehood.runtimes.descriptors import until_readable
from fumehood.runtimes.namespaces.isolation import (
    groups_of,
    has_died,
    ids_of,
    is_confined,
    numbers_of,
    parent_of,
)
from fumehood.runtimes.namespaces.seccomp_notify import RefusedCalls
from fumehood.runtimes.packets import receive_word
from fumehood_jail import caps, syscalls
from fumehood_jail.launch import FORK_OWNER_UID, GUEST_UID
from fumehood_jail.tracing import HeldProcess

# In the order in which they are entered: the user's first, for the right to enter the others.
NAMESPACES = ("user", "mnt", "net", "ipc", "uts", "pid", "cgroup")
_HERE = b"!"
_MAX_WORD_BYTES = 64
_MAX_ERRNO_DIGITS = 4
_MOVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class MigrationSource:
    """The sandbox that a process moves out of.

    Attributes:
        holds: Tells whether the PID namespace with this number is its own.
        origin: Answers for the process.
        kill_held: Kills what the host may not signal itself.
    """

    holds: Callable[[int], bool]
    origin: RefusedCalls
    kill_held: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class MigrationTarget:
    """The sandbox that a process moves into.

    Attributes:
        init_pid: Its init, which lives.
        has_migrators: Whether an id that no guest code has owns its namespaces.
        cgroup_fds: Descriptors of its control groups, by which a process moves itself in.
    """

    init_pid: int
    has_migrators: bool
    cgroup_fds: Sequence[int]


class MovedContext(GuestContext):
    """A context that has moved in.

    Args:
        pidfd: Holds it; this object's from now on.
        origin: Whose system call filter it is under.
        kill_held: Kills what the host may not signal itself.
        migrator: Done when the process that brought it there has ended.
    """

    def __init__(
        self,
        pidfd: int,
        origin: GuestContext,
        kill_held: Callable[[int], None],
        migrator: asyncio.Future[None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.exited = self._loop.create_future()
        self._pidfd = pidfd
        self._migrator = migrator
        self._origin = origin
        self._kill_held = kill_held
        self._loop.add_reader(pidfd, self._note_exit)

    @property
    def origin(self) -> GuestContext:
        """See the port."""
        return self._origin

    async def settled(self) -> None:
        """Waits until who brought it there has ended."""
        await asyncio.shield(self._migrator)

    def kill(self) -> None:
        """Ends the process."""
        if self.exited.done():
            return

        _end(self._pidfd, self._kill_held)

    def _note_exit(self) -> None:
        """Its parent lies inside, so that nobody can tell how it ended."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)

        if not self.exited.done():
            self.exited.set_result(None)


async def move_out(
    source: MigrationSource,
    target: AbstractAsyncContextManager[MigrationTarget],
    send: Callable[[int], None],
    own: Sequence[int],
) -> tuple[int, asyncio.Future[None]]:
    """Lets a process move to another sandbox; returns a pidfd of what it has become, and when its migrator has ended.

    Args:
        source: The sandbox that it is from.
        target: The other one, as soon as it is there.
        send: Hands a socket to the checkpoint, and has it fork the process that moves.
        own: What the process gets: its channel and outputs.

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
            async with _in_time():
                migrator = await _hear(ours)

            async with _ended_if_it_fails(migrator, source) as held_by:
                socket.send_fds(ours, [_HERE], list(own))
                return await _lead_over(migrator, held_by, source, target)
        except OSError as error:
            # It closed its end, say.
            raise ForkError.from_errno(STEP, error.errno or 0) from None


async def _lead_over(
    migrator: int, held_by: int, source: MigrationSource, target: AbstractAsyncContextManager[MigrationTarget]
) -> tuple[int, asyncio.Future[None]]:
    waits = source.origin.expect_migrator(migrator)
    try:
        async with _in_time():
            await _until_waiting(waits, held_by)

        async with target as there, _in_time():
            with _opened(there.init_pid) as namespaces:
                place = Place(namespaces, there.init_pid, there.has_migrators, there.cgroup_fds)
                moved = await _enter(migrator, held_by, source.origin, place)
    finally:
        # Before anything is closed that it could be given.
        source.origin.forbid(migrator)

    # It has nothing left that was lent; it ends while the fork goes on.
    leaving = asyncio.ensure_future(_see_off(os.dup(held_by), source.kill_held))
    # Where the fork has failed meanwhile, nobody asks.
    leaving.add_done_callback(lambda seen: seen.cancelled() or seen.exception())
    return moved, leaving


async def _enter(migrator: int, held_by: int, origin: RefusedCalls, place: Place) -> int:
    while True:
        # Before it is touched: it may be back at once.
        waits = origin.expect_migrator(migrator, again=True)
        moved = await _in_own_thread(lambda: enter(migrator, origin, place))

        if moved is not None:
            return moved

        await _until_waiting(waits, held_by)


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_MOVE_SECONDS):
            yield
    except TimeoutError:
        raise ForkError(step=STEP, reason=f"it took longer than {_MOVE_SECONDS:g} s") from None


@contextmanager
def _opened(init_pid: int) -> Iterator[dict[str, int]]:
    """Opens all namespaces of a process."""
    fds: dict[str, int] = {}
    try:
        for name in NAMESPACES:
            fds[name] = os.open(f"/proc/{init_pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

        yield fds
    finally:
        for fd in fds.values():
            os.close(fd)


@asynccontextmanager
async def _ended_if_it_fails(migrator: int, source: MigrationSource) -> AsyncIterator[int]:
    """Yields a pidfd of the process that moves; ends it if anything goes wrong."""
    pidfd = _hold(migrator)
    try:
        # Before anything can happen to it: the number could be somebody else's by now.
        _check_source(migrator, pidfd, source)
        try:
            yield pidfd
        except BaseException:
            _end(pidfd, source.kill_held)
            raise
    finally:
        os.close(pidfd)


async def _see_off(pidfd: int, kill_held: Callable[[int], None]) -> None:
    """Waits until what has moved has ended: as long as it lives, and does not wait for its child, no fork could end.

    Raises:
        ForkError: It would not end by itself.
    """
    try:
        async with asyncio.timeout(_MOVE_SECONDS):
            await until_readable(pidfd)
    except TimeoutError:
        _end(pidfd, kill_held)
        raise ForkError(step=STEP, reason=f"who moved lives on after {_MOVE_SECONDS:g} s") from None
    finally:
        os.close(pidfd)


async def _until_waiting(waits: asyncio.Future[None], pidfd: int) -> None:
    """Waits until a process waits for its host, or has ended."""

    def give_up() -> None:
        if not waits.done():
            waits.set_exception(ForkError(step=STEP, reason="it ended"))

    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, give_up)
    try:
        await waits
    finally:
        loop.remove_reader(pidfd)


async def _in_own_thread(work: Callable[[], int | None]) -> int | None:
    """Does what waits for the kernel at work.

    A process that is in no state to be held can make that long: no thread of those that others wait for.
    """
    executor = ThreadPoolExecutor(1)
    done = executor.submit(work)
    try:
        return await asyncio.wrap_future(done)
    except asyncio.CancelledError:
        done.add_done_callback(_drop)
        raise
    finally:
        executor.shutdown(wait=False)


def _drop(done: Future[int | None]) -> None:
    """Nobody waits any more for the process that has moved."""
    if not done.cancelled() and done.exception() is None and (pidfd := done.result()) is not None:
        os.close(pidfd)


async def _hear(sock: socket.socket) -> int:
    """Waits for the word of a process that all is well; returns its number on the host."""
    word, pid = await receive_word(sock, _MAX_WORD_BYTES)

    if word != _HERE:
        raise _no_word(word)

    if not pid:
        raise ForkError(step=STEP, reason="it is not known which process spoke")

    return pid


def _no_word(word: bytes) -> ForkError:
    number = int(word) if word.isdigit() and len(word) <= _MAX_ERRNO_DIGITS else 0
    return ForkError.from_errno(STEP, number) if number else ForkError(step=STEP, reason="it ended")


async def end_foreign_processes(
    is_theirs: Callable[[int], bool], init_pid: int, kill_held: Callable[[int], None]
) -> None:
    """Ends all processes of a sandbox but init: one that has entered a fork is of a user that init may not signal.

    Args:
        is_theirs: Whether the PID namespace with this number is the sandbox's.
        init_pid: The init.
        kill_held: Kills what the host may not signal itself.
    """
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != init_pid]:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue  # it has ended

        try:
            if is_theirs(os.stat(f"/proc/{pid}/ns/pid").st_ino) and not _has_ended(pidfd):
                _end(pidfd, kill_held)
                await until_readable(pidfd)
        except OSError:
            continue
        finally:
            os.close(pidfd)


def end_unreaped_parents(is_theirs: Callable[[int], bool], kill_held: Callable[[int], None]) -> None:
    """Ends processes of a sandbox that never reap the dead of its forks: until they do, these cannot end.

    A process that moves as asked leaves no such dead. Looks at every process there is: for when a fork does not end.

    Args:
        is_theirs: Whether the PID namespace with this number is the sandbox's.
        kill_held: Kills what the host may not signal itself.
    """
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        launcher = parent_of(pid) if has_died(pid) else 0
        numbers = numbers_of(launcher) if launcher else []

        # A child of its own lies no deeper; and its init takes leave of all.
        if not numbers or len(numbers) >= len(numbers_of(pid)) or numbers[-1] == 1:
            continue

        try:
            pidfd = os.pidfd_open(launcher)
        except OSError:
            continue  # it has ended

        try:
            if is_theirs(os.stat(f"/proc/{launcher}/ns/pid").st_ino) and not _has_ended(pidfd):
                _end(pidfd, kill_held)
        except OSError:
            continue
        finally:
            os.close(pidfd)


def _hold(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        raise ForkError(step=STEP, reason="it ended") from None


def _end(pidfd: int, kill_held: Callable[[int], None]) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:
        kill_held(pidfd)


def _check_source(pid: int, pidfd: int, source: MigrationSource) -> None:
    """Makes sure that a process lives in the sandbox that it is to move out of."""
    try:
        is_there = source.holds(os.stat(f"/proc/{pid}/ns/pid").st_ino)
    except OSError:
        is_there = False

    # What was read is of this very process if it lives now.
    if not is_there or _has_ended(pidfd):
        raise ForkError(step=STEP, reason="the kernel says that it is in another PID namespace, or has ended")


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


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
        has_migrators: Whether an id that no guest code has owns them.
        cgroup_fds: Descriptors of its control groups: whatever writes "0" to them moves in.
    """

    namespaces: Mapping[str, int]
    init_pid: int
    has_migrators: bool
    cgroup_fds: Sequence[int]


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

    if place.has_migrators:
        puppet.make("setresuid", _UNCHANGED, FORK_OWNER_UID, _UNCHANGED)

    with _zeros(len(place.cgroup_fds)) as zeros:
        lent = puppet.take([*place.namespaces.values(), zeros, *place.cgroup_fds])

    zeros_at = len(lent) - len(place.cgroup_fds) - 1
    namespaces = lent[zeros_at - len(place.namespaces) : zeros_at]
    zeros_there, *cgroup_fds = lent[zeros_at:]
    puppet.make("setns", namespaces[0])
    puppet.make("setresgid", GUEST_UID, GUEST_UID, GUEST_UID)
    puppet.make("setresuid", GUEST_UID, GUEST_UID, FORK_OWNER_UID if place.has_migrators else GUEST_UID)

    for fd in namespaces[1:]:
        puppet.make("setns", fd)

    for cgroup_fd in cgroup_fds:
        # From a file: in its memory somebody who shares that could put another number, and bring others in.
        puppet.make("sendfile", cgroup_fd, zeros_there, 0, 1, _MOVES_IN)

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

    Whoever is started in a PID namespace from outside is nobody's child there, and could be left to nobody: so that one
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
    if place.cgroup_fds and groups_of(pid) != groups_of(place.init_pid):
        raise ForkError(step=STEP, reason="the kernel says that it is in other control groups")

    if any(os.path.lexists(f"/proc/{pid}/fd/{fd}") for fd in lent):
        raise ForkError(step=STEP, reason="the kernel says that it has kept what it was lent")

    # A fork ends when somebody has taken leave of all that was in it: nobody outside shall be asked for that.
    if parent_of(pid) != place.init_pid:
        raise ForkError(step=STEP, reason="the kernel says that it is no child of the fork's init")
