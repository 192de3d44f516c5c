"""Moves: a process that is forked from a checkpoint of one sandbox becomes a context of a sandbox forked from it.

Runs in the host process, on the engine's loop. The process is user code's own, and hostile: it is known by the
credentials of what it sends, and is held while it enters namespaces that hold nothing but an init that waits, and
makes the process that goes on there (`linux_entering`).
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

from fumehood.fork_errors import ForkError
from fumehood.readiness import until_readable
from fumehood.runtimes.base import GuestContext
from fumehood.runtimes.linux_entering import STEP, Place, enter
from fumehood.runtimes.linux_packets import receive_word
from fumehood.runtimes.linux_refusals import RefusedCalls
from fumehood.runtimes.linux_status import has_died, numbers_of, parent_of

# In the order in which they are entered: the user's first, for the right to enter the others.
NAMESPACES = ("user", "mnt", "net", "ipc", "uts", "pid", "cgroup")
_HERE = b"!"
_MAX_WORD_BYTES = 64
_MAX_ERRNO_DIGITS = 4
_MOVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Home:
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
class Quarters:
    """The sandbox that a process moves into.

    Attributes:
        init_pid: Its init, which lives.
        has_movers: Whether an id that no guest code has owns its namespaces.
        doors: Descriptors of its control groups, by which a process moves itself in.
    """

    init_pid: int
    has_movers: bool
    doors: Sequence[int]


class MovedContext(GuestContext):
    """A context that has moved in.

    Args:
        pidfd: Holds it; this object's from now on.
        origin: Whose system call filter it is under.
        kill_held: Kills what the host may not signal itself.
        mover: Done when the process that brought it there has ended.
    """

    def __init__(
        self,
        pidfd: int,
        origin: GuestContext,
        kill_held: Callable[[int], None],
        mover: asyncio.Future[None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.exited = self._loop.create_future()
        self._pidfd = pidfd
        self._mover = mover
        self._origin = origin
        self._kill_held = kill_held
        self._loop.add_reader(pidfd, self._note_exit)

    @property
    def origin(self) -> GuestContext:
        """See the port."""
        return self._origin

    async def settled(self) -> None:
        """Waits until who brought it there has ended; see the port."""
        await asyncio.shield(self._mover)

    def kill(self) -> None:
        """Ends the process; see the port."""
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
    home: Home,
    quarters: AbstractAsyncContextManager[Quarters],
    send: Callable[[int], None],
    own: Sequence[int],
) -> tuple[int, asyncio.Future[None]]:
    """Lets a process move to another sandbox; returns a pidfd of what it has become, and when its mover has ended.

    Args:
        home: The sandbox that it is from.
        quarters: The other one, as soon as it is there.
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
                mover = await _hear(ours)

            async with _ended_if_it_fails(mover, home) as held_by:
                socket.send_fds(ours, [_HERE], list(own))
                return await _lead_over(mover, held_by, home, quarters)
        except OSError as error:
            # It closed its end, say.
            raise ForkError.from_errno(STEP, error.errno or 0) from None


async def _lead_over(
    mover: int, held_by: int, home: Home, quarters: AbstractAsyncContextManager[Quarters]
) -> tuple[int, asyncio.Future[None]]:
    waits = home.origin.expect_mover(mover)
    try:
        async with _in_time():
            await _until_waiting(waits, held_by)

        async with quarters as there, _in_time():
            with _opened(there.init_pid) as namespaces:
                place = Place(namespaces, there.init_pid, there.has_movers, there.doors)
                moved = await _enter(mover, held_by, home.origin, place)
    finally:
        # Before anything is closed that it could be given.
        home.origin.forbid(mover)

    # It has nothing left that was lent; it ends while the fork goes on.
    leaving = asyncio.ensure_future(_see_off(os.dup(held_by), home.kill_held))
    # Where the fork has failed meanwhile, nobody asks.
    leaving.add_done_callback(lambda seen: seen.cancelled() or seen.exception())
    return moved, leaving


async def _enter(mover: int, held_by: int, origin: RefusedCalls, place: Place) -> int:
    while True:
        # Before it is touched: it may be back at once.
        waits = origin.expect_mover(mover, again=True)
        moved = await _in_own_thread(lambda: enter(mover, origin, place))

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
async def _ended_if_it_fails(mover: int, home: Home) -> AsyncIterator[int]:
    """Yields a pidfd of the process that moves; ends it if anything goes wrong."""
    pidfd = _hold(mover)
    try:
        # Before anything can happen to it: the number could be somebody else's by now.
        _check_home(mover, pidfd, home)
        try:
            yield pidfd
        except BaseException:
            _end(pidfd, home.kill_held)
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


async def end_strangers(
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


def end_keepers(is_theirs: Callable[[int], bool], kill_held: Callable[[int], None]) -> None:
    """Ends processes of a sandbox that never reap the dead of its forks: until they do, these cannot end.

    A process that moves as asked leaves no such dead. Looks at every process there is: for when a fork does not end.

    Args:
        is_theirs: Whether the PID namespace with this number is the sandbox's.
        kill_held: Kills what the host may not signal itself.
    """
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        keeper = parent_of(pid) if has_died(pid) else 0
        numbers = numbers_of(keeper) if keeper else []

        # A child of its own lies no deeper; and its init takes leave of all.
        if not numbers or len(numbers) >= len(numbers_of(pid)) or numbers[-1] == 1:
            continue

        try:
            pidfd = os.pidfd_open(keeper)
        except OSError:
            continue  # it has ended

        try:
            if is_theirs(os.stat(f"/proc/{keeper}/ns/pid").st_ino) and not _has_ended(pidfd):
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


def _check_home(pid: int, pidfd: int, home: Home) -> None:
    """Makes sure that a process lives in the sandbox that it is to move out of."""
    try:
        is_there = home.holds(os.stat(f"/proc/{pid}/ns/pid").st_ino)
    except OSError:
        is_there = False

    # What was read is of this very process if it lives now.
    if not is_there or _has_ended(pidfd):
        raise ForkError(step=STEP, reason="the kernel says that it is in another PID namespace, or has ended")


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))
