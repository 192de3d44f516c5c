"""Migration: a process forked from a checkpoint of one sandbox becomes a context of a sandbox forked from it.

The process is user code's own, and hostile: it is identified by the credentials of its message, and is traced while it
enters namespaces that contain only an idle init, and forks the process that continues there. The host makes it enter,
one system call at a time; nothing here may let it run freely in between.
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

from fumehood.cancellation import consume_result, wait_shared
from fumehood.errors import ForkError
from fumehood.runtimes.base import GuestContext
from fumehood.runtimes.namespaces.isolation import (
    groups_of,
    has_died,
    ids_of,
    is_confined,
    numbers_of,
    parent_of,
)
from fumehood.runtimes.namespaces.seccomp_notify import RefusedCalls, moves_elsewhere
from fumehood.runtimes.packets import receive_word, until_readable
from fumehood_jail import caps, syscalls
from fumehood_jail.launch import FORK_OWNER_UID, GUEST_UID
from fumehood_jail.tracing import HeldProcess

# In the order in which they are entered: the user namespace first, for the right to enter the others.
NAMESPACES = ("user", "mnt", "net", "ipc", "uts", "pid", "cgroup")
_HERE = b"!"
_MAX_WORD_BYTES = 64
_MAX_ERRNO_DIGITS = 4
_MOVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class MigrationSource:
    """The sandbox that a process migrates from.

    Attributes:
        holds: Returns whether the PID namespace with this inode number belongs to the sandbox.
        origin: The seccomp listener that answers the process's calls.
        kill_held: Kills processes that the host may not signal itself.
    """

    holds: Callable[[int], bool]
    origin: RefusedCalls
    kill_held: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class MigrationTarget:
    """The sandbox that a process migrates to.

    Attributes:
        init_pid: The pid of its init, which is alive.
        has_migrators: Whether its namespaces are owned by an id that no guest code has.
        cgroup_fds: Descriptors of its control groups, through which a process moves itself into them.
    """

    init_pid: int
    has_migrators: bool
    cgroup_fds: Sequence[int]


class MovedContext(GuestContext):
    """A context that has migrated into a fork.

    Args:
        pidfd: The pidfd of the context; owned by this object from now on.
        origin: The context whose system call filter applies to this one.
        kill_held: Kills processes that the host may not signal itself.
        migrator: Done when the process that forked it has ended.
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
        return self._origin

    async def settled(self) -> None:
        """Waits until the process that brought it there has ended."""
        await wait_shared(self._migrator)

    def kill(self) -> None:
        """Ends the process."""
        if self.exited.done():
            return

        _end(self._pidfd, self._kill_held)

    def _note_exit(self) -> None:
        """Records the end of the context; its exit status is unknown, because its parent is inside the sandbox."""
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
    """Migrates a process to another sandbox; returns a pidfd of its child and a task that ends with the migrator.

    Args:
        source: The sandbox that the process comes from.
        target: The sandbox to migrate to, as soon as it exists.
        send: Sends a socket to the checkpoint, which then forks the process that migrates.
        own: The descriptors of its channel and outputs.

    Raises:
        ForkError: The process did not report in, or is not confined as a context must be.
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
            # For example, it closed its end.
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
                place = MigrationPlace(namespaces, there.init_pid, there.has_migrators, there.cgroup_fds)
                moved = await _enter(migrator, held_by, source.origin, place)
    except ForkError:
        # The caller of the other fork has killed it: either of the two may be the first to fail.
        if source.origin.is_claimed_twice(migrator):
            raise moves_elsewhere() from None

        raise
    finally:
        # Before closing any descriptor that could be installed in the migrator.
        source.origin.forbid(migrator)

    # The migrator has no lent descriptor any more; it may end while the fork continues.
    leaving = asyncio.ensure_future(_end_held(os.dup(held_by), source.kill_held))
    # Where the fork has failed meanwhile, the result is not read.
    consume_result(leaving)
    return moved, leaving


async def _enter(migrator: int, held_by: int, origin: RefusedCalls, place: MigrationPlace) -> int:
    while True:
        # Registered before the process is released, because it may call again at once.
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
    """Yields a pidfd of the migrating process; kills it if anything fails."""
    pidfd = _hold(migrator)
    try:
        # Before anything else: the pid could have been reused by now.
        _check_source(migrator, pidfd, source)
        try:
            yield pidfd
        except BaseException:
            _end(pidfd, source.kill_held)
            raise
    finally:
        os.close(pidfd)


async def _end_held(pidfd: int, kill_held: Callable[[int], None]) -> None:
    """Waits until the migrator has ended: while it lives and does not reap its child, no fork can end.

    Raises:
        ForkError: The migrator did not end by itself.
    """
    try:
        async with asyncio.timeout(_MOVE_SECONDS):
            await until_readable(pidfd)
    except TimeoutError:
        _end(pidfd, kill_held)
        reason = f"the process that moves still runs in the parent sandbox after {_MOVE_SECONDS:g} s"
        raise ForkError(step=STEP, reason=reason) from None
    finally:
        os.close(pidfd)


async def _until_waiting(waits: asyncio.Future[None], pidfd: int) -> None:
    """Waits until a process is blocked in its reported call, or has ended."""

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
    """Runs `work`, which may block on the kernel, in a thread of its own.

    A process that is in no state to be traced can make it block for long, so it must not take a thread of the shared
    pool.
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
    """Closes the pidfd of a migrated process whose caller was cancelled."""
    if not done.cancelled() and done.exception() is None and (pidfd := done.result()) is not None:
        os.close(pidfd)


async def _hear(sock: socket.socket) -> int:
    """Waits for the message of a process that it is ready; returns its pid on the host."""
    word, pid = await receive_word(sock, _MAX_WORD_BYTES)

    if word != _HERE:
        raise _no_word(word)

    if not pid:
        raise ForkError(step=STEP, reason="the sender of the message is unknown")

    return pid


def _no_word(word: bytes) -> ForkError:
    number = int(word) if word.isdigit() and len(word) <= _MAX_ERRNO_DIGITS else 0
    return ForkError.from_errno(STEP, number) if number else ForkError(step=STEP, reason="it ended")


async def end_foreign_processes(
    is_theirs: Callable[[int], bool], init_pid: int, kill_held: Callable[[int], None]
) -> None:
    """Kills all processes of a sandbox but init, including those whose user init may not signal.

    Args:
        is_theirs: Whether the PID namespace with this number is the sandbox's.
        init_pid: The init.
        kill_held: Kills processes that the host may not signal itself.
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
    """Kills processes of a sandbox that do not reap zombies of its forks: until they do, the forks cannot end.

    A process that migrates as requested leaves no such zombie. Scans all processes: for use when a fork does not end.

    Args:
        is_theirs: Whether the PID namespace with this number is the sandbox's.
        kill_held: Kills processes that the host may not signal itself.
    """
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        launcher = parent_of(pid) if has_died(pid) else 0
        numbers = numbers_of(launcher) if launcher else []

        # A regular child is not nested deeper; and init reaps all of its children.
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
    """Checks that a process lives in the sandbox that it is to migrate from."""
    try:
        is_there = source.holds(os.stat(f"/proc/{pid}/ns/pid").st_ino)
    except OSError:
        is_there = False

    # If it still lives, the namespace that was read is that of this very process.
    if not is_there or _has_ended(pidfd):
        raise ForkError(step=STEP, reason="the kernel says that it is in another PID namespace, or has ended")


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


STEP = "move a process into the fork"
_UNCHANGED = (1 << 64) - 1
_ARGUMENTS = 6
# As in the policy: with this argument the filter reports the call, which it refuses otherwise.
_MOVES_IN = 0x6D6F7665
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class MigrationPlace:
    """The destination of a migrating process.

    Attributes:
        namespaces: Descriptors by name, in the order in which they are entered.
        init_pid: The pid of the destination's init.
        has_migrators: Whether the namespaces are owned by an id that no guest code has.
        cgroup_fds: Descriptors of its control groups: a process that writes "0" to one moves into it.
    """

    namespaces: Mapping[str, int]
    init_pid: int
    has_migrators: bool
    cgroup_fds: Sequence[int]


class _Tracee:
    """A traced process that makes the requested calls.

    Args:
        pid: Its number.
        held: Traces it.
        origin: The listener, which permits the calls that its filter reports.
    """

    def __init__(self, pid: int, held: HeldProcess, origin: RefusedCalls) -> None:
        self._pid = pid
        self._held = held
        self._origin = origin

    def make(self, name: str, *some: int, gifts: Sequence[int] = ()) -> int:
        """Makes the traced process execute a system call; missing arguments are 0."""
        arguments = (*some, *[0] * (_ARGUMENTS - len(some)))
        self._origin.order(self._pid, name, arguments, gifts)
        return self._held.call(name, arguments)

    def take(self, fds: Sequence[int]) -> list[int]:
        """Installs descriptors in the traced process, during a call without effect; returns their numbers there.

        Only the last numbers belong to `fds`: if the call was interrupted, some descriptors were installed more than
        once.
        """
        self.make("unshare", 0, gifts=fds)
        return list(self._origin.given(self._pid))

    def lay(self, content: bytes) -> int:
        """Writes to the memory of the traced process, which other processes may share and change.

        Returns the address.
        """
        return self._held.lay(content)


def enter(pid: int, origin: RefusedCalls, place: MigrationPlace) -> int | None:
    """Makes a blocked process enter namespaces, become the guest's user there without capabilities, and fork.

    Args:
        pid: The process.
        origin: The listener that permits its calls.
        place: The destination.

    Returns:
        A pidfd of its child, which is a child of the destination's init. None if the process was not blocked in its
        call: nothing was done, and it will call again.

    Raises:
        ForkError: The process did not arrive and was killed, or the kernel refuses to trace it.
    """
    try:
        held = HeldProcess(pid)
    except OSError as error:
        raise _as_fork_error("trace the process that moves into the fork", error) from None

    try:
        if not held.is_stopped_in("setns"):
            return None

        lent = _lead(_Tracee(pid, held, origin), place)
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


def _lead(tracee: _Tracee, place: MigrationPlace) -> list[int]:
    """Makes the process carry out all calls of the migration in order.

    Returns the numbers of the lent descriptors, now closed.
    """
    # From here on no other process shares its descriptor table.
    tracee.make("unshare", syscalls.CLONE_FILES)
    tracee.make("prctl", syscalls.PR_SET_DUMPABLE, 0)

    if place.has_migrators:
        tracee.make("setresuid", _UNCHANGED, FORK_OWNER_UID, _UNCHANGED)

    with _zeros(len(place.cgroup_fds)) as zeros:
        lent = tracee.take([*place.namespaces.values(), zeros, *place.cgroup_fds])

    zeros_at = len(lent) - len(place.cgroup_fds) - 1
    namespaces = lent[zeros_at - len(place.namespaces) : zeros_at]
    zeros_there, *cgroup_fds = lent[zeros_at:]
    tracee.make("setns", namespaces[0])
    tracee.make("setresgid", GUEST_UID, GUEST_UID, GUEST_UID)
    tracee.make("setresuid", GUEST_UID, GUEST_UID, FORK_OWNER_UID if place.has_migrators else GUEST_UID)

    for fd in namespaces[1:]:
        tracee.make("setns", fd)

    for cgroup_fd in cgroup_fds:
        # From a file: a process that shares its memory could replace a pid in memory, and move other processes in.
        tracee.make("sendfile", cgroup_fd, zeros_there, 0, 1, _MOVES_IN)

    for fd in lent:
        tracee.make("close", fd)

    _give_up_capabilities(tracee)
    # A change of user resets this to fs.suid_dumpable.
    tracee.make("prctl", syscalls.PR_SET_DUMPABLE, 0)
    return lent


def _give_up_capabilities(tracee: _Tracee) -> None:
    tracee.make("prctl", syscalls.PR_SET_SECUREBITS, caps.SECUREBITS)

    for capability in caps.KNOWN:
        tracee.make("prctl", syscalls.PR_CAPBSET_DROP, capability)

    none = tracee.lay(syscalls.CAPSET_HEADER + bytes(syscalls.CAPSET_BYTES))
    tracee.make("capset", none, none + len(syscalls.CAPSET_HEADER))


@contextmanager
def _zeros(count: int) -> Iterator[int]:
    """A sealed file of `count` digits 0, which can only be read in sequence and cannot be changed."""
    fd = os.memfd_create("fumehood-zeros", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, b"0" * count)
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        yield fd
    finally:
        os.close(fd)


def _divide(held: HeldProcess, place: MigrationPlace, lent: Sequence[int]) -> int:
    """Makes the traced process fork the process that continues as the context; returns a pidfd of the new process.

    A process started in a PID namespace from outside has its parent outside. So an intermediate process forks the final
    one, and exits. The intermediate process shares the memory of the first, which is suspended meanwhile, so that
    nothing is copied.
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
        # A process that is still traced is killed with this thread.
        os.close(pidfd)
        raise

    return pidfd


def _check(pid: int, place: MigrationPlace, lent: Sequence[int]) -> None:
    """Checks by the kernel's data where a traced process is, under which ids, and with which rights."""
    for name, fd in place.namespaces.items():
        if not os.path.samestat(os.stat(f"/proc/{pid}/ns/{name}"), os.fstat(fd)):
            raise ForkError(step=STEP, reason=f"the kernel says that it is in another {name} namespace")

    if ids_of(pid) != ids_of(place.init_pid):
        raise ForkError(step=STEP, reason="the kernel says that it has another user")

    if not is_confined(pid):
        raise ForkError(step=STEP, reason="the kernel says that it is not confined as a context must be")

    # A hostile process may have moved twice into one group and not into another: the file has one zero per group.
    if place.cgroup_fds and groups_of(pid) != groups_of(place.init_pid):
        raise ForkError(step=STEP, reason="the kernel says that it is in other control groups")

    if any(os.path.lexists(f"/proc/{pid}/fd/{fd}") for fd in lent):
        raise ForkError(step=STEP, reason="the kernel says that it still holds a descriptor that it was lent")

    # A fork can end only when all its processes are reaped: no process outside may be its parent.
    if parent_of(pid) != place.init_pid:
        raise ForkError(step=STEP, reason="the kernel says that it is no child of the fork's init")
