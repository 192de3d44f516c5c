"""The user's asyncio loop: top-level await, and tasks that run between cells.

While a cell without await runs, the loop counts as running, as in Jupyter, so that `asyncio.create_task` works there;
`asyncio.run` works there too, unlike in Jupyter. While the context is idle the loop runs only if it has work: an idle
context does not wake up.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import asyncio
import select
import selectors
from asyncio import events
from typing import Any, Coroutine, List, Optional

from fumehood_guest.context.idle_wait import IdleWait

_get_running_loop = events._get_running_loop
_set_running_loop = events._set_running_loop


class BackgroundLoop(IdleWait):
    """The one loop of a context; replaced when user code has closed it."""

    def __init__(self, channel_fd: int) -> None:
        super().__init__(channel_fd)
        self._loop: Any = None
        self._is_lent = False

    def install(self) -> None:
        """Makes `asyncio.run` and the like ignore a loop that only counts as running."""
        events._get_running_loop = self._visible_loop
        events._set_running_loop = self._replace_running

    def lend(self) -> None:
        """Marks the loop as running while a cell without await runs."""
        if self._loop is None or self._loop.is_closed():
            self._make()

        self._is_lent = True
        _set_running_loop(self._loop)

    def take_back(self) -> None:
        """Undoes `lend`."""
        self._is_lent = False
        _set_running_loop(None)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs a cell with await to its end.

        An interrupt cancels the cell; other tasks continue, except one that was running at that moment.
        """
        self.take_back()
        try:
            task = self._loop.create_task(coroutine)
            try:
                return self._loop.run_until_complete(task)
            except BaseException:
                self._cancel(task)
                raise
        finally:
            self.lend()

    def wait(self) -> None:
        """Blocks until the channel is readable; meanwhile runs the user's loop.

        Raises whatever a task or a signal handler of the user raises; the caller waits again.
        """
        loop = self._loop

        if loop is None or loop.is_closed():
            self._poll()
            return

        if not loop._ready and not loop._scheduled:
            ready = self._poll()

            if not ready or self._channel_fd in ready:
                return

        try:
            loop.add_reader(self._channel_fd, loop.stop)
        except OSError:
            # User code has closed the selector's descriptor: the loop would fail like this forever.
            self.abandon()
            raise

        try:
            loop.run_forever()
        finally:
            loop.remove_reader(self._channel_fd)

    def abandon(self) -> None:
        """Abandons a loop that only fails; the next cell makes a new one."""
        self._loop = None
        super().abandon()

    def fds(self) -> List[int]:
        """The descriptors of the loop itself."""
        loop = self._loop

        if loop is None or loop.is_closed():
            return []

        return [loop._selector.fileno(), loop._ssock.fileno(), loop._csock.fileno()]

    def renew(self) -> None:
        """Gives the loop a new selector and wake-up socket, in a process made from a checkpoint.

        Its tasks, timers and watched descriptors stay; its threads are gone, and new ones are made when needed.
        """
        if self._loop is None or self._loop.is_closed():
            self.abandon()
            return

        loop = self._loop
        old, loop._selector = loop._selector, selectors.DefaultSelector()
        watched = [key for key in old.get_map().values() if key.fd != loop._ssock.fileno()]
        # The old epoll instance must not be changed: other processes share it.
        old.close()
        loop._ssock.close()
        loop._csock.close()
        loop._internal_fds -= 1
        loop._make_self_pipe()
        loop._default_executor = None

        if loop._signal_handlers:
            _signal.set_wakeup_fd(loop._csock.fileno())

        for key in watched:
            try:
                loop._selector.register(key.fileobj, key.events, key.data)
            except (OSError, ValueError, KeyError):
                continue  # the descriptor is dead now

        self._watch()

    def close(self) -> None:
        """Closes the loop; the next cell would make a new one."""
        if self._loop is not None:
            self._loop.close()

    def _make(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._watch()

    def _watch(self) -> None:
        # An epoll descriptor is readable when one of its watched descriptors is.
        self._poller = self._new_poller()
        self._poller.register(self._loop._selector.fileno(), select.POLLIN)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        if task.done():
            return

        task.cancel()
        try:
            self._loop.run_until_complete(task)
        except (asyncio.CancelledError, Exception):
            return

    def _visible_loop(self) -> Optional[Any]:
        loop = _get_running_loop()
        return None if self._is_lent and loop is self._loop else loop

    def _replace_running(self, loop: Any) -> None:
        _set_running_loop(self._loop if loop is None and self._is_lent else loop)
