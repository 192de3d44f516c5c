"""Replies: the host's answers during a cell, passed to the thread or coroutine that waits for each.

Threads and coroutines may wait at the same time, and there is one channel. One of the waiting threads, the leader,
reads for all; when it has its own reply the next one takes over. Event loops watch the channel themselves while one of
their coroutines waits. Between cells nothing here reads: the channel belongs to the context again, and pending waits
end with None.
"""

from __future__ import annotations

import os
import select
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Tuple

from fumehood_guest.context.channel import FrameSocket, Header
from fumehood_guest.context.signals import SignalGate

if TYPE_CHECKING:
    import asyncio

# The type of the reply, the id of the execution, and the number of the call if there are several.
Key = Tuple[str, str, Optional[int]]
Frame = Tuple[Header, bytes]


class Waiter:
    """A thread or coroutine that waits for a reply; the reply stays None if the cell ends first."""

    __slots__ = ("baton", "blocks", "epoch", "future", "is_done", "key", "loop", "reply", "thread", "wake")

    def __init__(self, key: Key, epoch: int) -> None:
        self.key = key
        self.epoch = epoch
        self.reply: Optional[Frame] = None
        self.is_done = False
        # For a thread: held until the reply is there, or until this thread becomes the leader.
        self.baton = threading.Lock()
        self.baton.acquire()
        self.blocks = False
        self.thread = threading.get_ident()
        self.wake: Optional[Tuple[int, int]] = None
        # For a coroutine.
        self.loop: Any = None
        self.future: Any = None


class Replies:
    """Reads replies for a running cell.

    Args:
        on_shutdown: Called when the host ends the context instead of answering.
    """

    def __init__(self, channel: FrameSocket, gate: SignalGate, on_shutdown: Callable[[], None]) -> None:
        self._channel = channel
        self._gate = gate
        self._on_shutdown = on_shutdown
        # Reentrant: a finalizer of user code may ask the host at any point.
        self._lock = threading.RLock()
        self._is_open = False
        self._epoch = 0
        self._waiting: Dict[Key, Waiter] = {}
        self._leader: Optional[Waiter] = None
        self._spare: Optional[Tuple[int, int]] = None
        # How many coroutines of a loop wait, and the thread that it runs in.
        self._watched: Dict[Any, Tuple[int, int]] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Blocks other threads and signal handlers during a few statements."""
        with self._gate.closed():
            with self._lock:
                yield

    def begin(self) -> None:
        """Begins a cell: from now on the channel is read here."""
        self._is_open = True

    def end(self) -> None:
        """Ends a cell: stops reading, and ends all pending waits."""
        with self.held():
            self._is_open = False
            self._epoch += 1
            waiting, self._waiting = self._waiting, {}
            watched, self._watched = self._watched, {}

            for waiter in waiting.values():
                self._finish(waiter, None)

            self._leader = None

            for loop, (_, thread) in watched.items():
                self._stop_watching(loop, thread)

    def expect(self, key: Key) -> Waiter:
        """Registers a waiter, before the question is sent; `wait` or `wait_async` must follow."""
        with self.held():
            waiter = Waiter(key, self._epoch)

            if self._is_open:
                self._waiting[key] = waiter
            else:
                waiter.is_done = True

            return waiter

    def wait(self, waiter: Waiter) -> Optional[Frame]:
        """Blocks the thread until the reply is there; a signal handler may raise out of it."""
        try:
            waiter.blocks = True

            while not waiter.is_done:
                if self._leads(waiter):
                    self._read_until(waiter)
                else:
                    waiter.baton.acquire()
        finally:
            with self.held():
                self._leave(waiter)

        return waiter.reply

    async def wait_async(self, waiter: Waiter) -> Optional[Frame]:
        """Waits in a coroutine until the reply is there."""
        # Imported late: contexts of other languages have no coroutines.
        import asyncio

        loop = asyncio.get_running_loop()

        with self.held():
            if waiter.is_done:
                return waiter.reply

            waiter.loop, waiter.future = loop, loop.create_future()
            count, _ = self._watched.get(loop, (0, 0))
            self._watched[loop] = (count + 1, waiter.thread)

            if count == 0:
                loop.add_reader(self._channel.fileno(), self._look)

        try:
            await waiter.future
        finally:
            with self.held():
                self._leave_loop(waiter)

        return waiter.reply

    def let_go(self) -> None:
        """Closes the spare pipe: a checkpoint would share it."""
        spare, self._spare = self._spare, None

        if spare is not None:
            self._close_wake(spare)

    def detach(self) -> None:
        """Discards, in a process that user code has forked, the pending waits of its parent."""
        self._lock = threading.RLock()
        self._is_open = False
        self._waiting, self._watched, self._leader = {}, {}, None

    # -- of threads

    def _leads(self, waiter: Waiter) -> bool:
        with self.held():
            leader = self._leader

            # A signal handler may ask while its own thread waits as the leader: then it reads in its place.
            if waiter.is_done or (leader is not None and leader.thread != waiter.thread):
                return False

            self._leader = waiter
            waiter.wake = waiter.wake or self._take_wake()
            return True

    def _read_until(self, waiter: Waiter) -> None:
        poller = select.poll()
        poller.register(self._channel.fileno(), select.POLLIN)

        if waiter.wake is not None:
            poller.register(waiter.wake[0], select.POLLIN)

        while True:
            with self.held():
                if not waiter.is_done:
                    self._take_in()

            if waiter.is_done:
                return

            poller.poll()

    def _leave(self, waiter: Waiter) -> None:
        if self._waiting.get(waiter.key) is waiter:
            del self._waiting[waiter.key]

        if self._leader is waiter:
            self._leader = None

        if waiter.wake is not None:
            self._give_wake(waiter.wake)
            waiter.wake = None

        if self._leader is None:
            # The woken waiter becomes the leader, or wakes the next one as it leaves.
            follower = next((one for one in self._waiting.values() if one.blocks), None)

            if follower is not None and follower.baton.locked():
                follower.baton.release()

    def _take_wake(self) -> Optional[Tuple[int, int]]:
        spare, self._spare = self._spare, None

        if spare is not None:
            return spare

        try:
            return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # User code has used up all descriptors: this thread then notices late a reply that a loop has read.
            return None

    def _give_wake(self, wake: Tuple[int, int]) -> None:
        try:
            while os.read(wake[0], 16):
                pass
        except BlockingIOError:
            if self._spare is None:
                self._spare = wake
                return
        except OSError:
            # User code has closed it: its number may have been reused.
            return

        self._close_wake(wake)

    @staticmethod
    def _close_wake(wake: Tuple[int, int]) -> None:
        for fd in wake:
            try:
                os.close(fd)
            except OSError:
                continue  # user code has closed it

    # -- of loops

    def _look(self) -> None:
        with self.held():
            self._take_in()

    def _leave_loop(self, waiter: Waiter) -> None:
        if self._waiting.get(waiter.key) is waiter:
            del self._waiting[waiter.key]

        if waiter.epoch != self._epoch or waiter.loop not in self._watched:
            return

        count, thread = self._watched[waiter.loop]

        if count > 1:
            self._watched[waiter.loop] = (count - 1, thread)
        else:
            del self._watched[waiter.loop]
            self._stop_watching(waiter.loop, thread)

    def _stop_watching(self, loop: Any, thread: int) -> None:
        fd = self._channel.fileno()
        try:
            if thread == threading.get_ident():
                loop.remove_reader(fd)
            else:
                loop.call_soon_threadsafe(loop.remove_reader, fd)
        except RuntimeError:
            return  # it is closed

    # -- of both

    def _take_in(self) -> None:
        while self._is_open and self._channel.is_readable():
            frame = self._channel.receive()

            if frame is not None:
                self._deliver(frame)

    def _deliver(self, frame: Frame) -> None:
        header, _ = frame

        if header["type"] == "shutdown_request":
            self._on_shutdown()

        # A reply without a waiter is too late, and is dropped.
        waiter = self._waiting.pop((header["type"], header.get("id", ""), header.get("call")), None)

        if waiter is not None:
            self._finish(waiter, frame)

    def _finish(self, waiter: Waiter, reply: Optional[Frame]) -> None:
        waiter.reply = reply
        waiter.is_done = True

        if waiter.future is not None:
            try:
                waiter.loop.call_soon_threadsafe(_resolve, waiter.future)
            except RuntimeError:
                return  # the loop is closed

            return

        if waiter.baton.locked():
            waiter.baton.release()

        # If it reads itself, another thread or a handler in the middle of it was quicker.
        is_reader = waiter is self._leader and waiter.thread == threading.get_ident()

        if waiter.wake is not None and not is_reader:
            try:
                os.write(waiter.wake[1], b"\0")
            except OSError:
                return


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
