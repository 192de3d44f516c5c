"""When signals are delivered: only while user code runs, or while the context waits for work.

At other times signals are blocked: an interrupt can neither end the loop that serves the host nor cut a frame in half.
One that arrives on the way into a cell stays pending and interrupts that cell; one that arrives after it is discarded.
It must never block a signal while user code runs.
"""

from __future__ import annotations

# The C functions: the wrappers in `signal` make an enum of every member, which costs more than the call.
import _signal  # type: ignore[import-not-found]
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Set

_SIGINT = int(_signal.SIGINT)
_SIGIO = int(_signal.SIGIO)
# All but the real-time signals, for which Python programs set no handlers; SIGKILL and SIGSTOP cannot be blocked
# anyway.
ALL_SIGNALS = frozenset(range(1, 32))
_ALL_BLOCKED = ALL_SIGNALS - {int(_signal.SIGKILL), int(_signal.SIGSTOP)}


class SignalGate:
    """Unblocks signals for user code, blocks them afterwards, and keeps the user's mask and SIGINT handler.

    Args:
        is_work_waiting: Returns whether the channel holds a request. An interrupt that comes while the
            context is idle belongs to that request: the host sends the request first.

    Attributes:
        is_open: Whether signals are delivered.
    """

    def __init__(self, is_work_waiting: Callable[[], bool]) -> None:
        self._set_mask = _signal.pthread_sigmask
        self._set_handler = _signal.signal
        self._is_work_waiting = is_work_waiting
        self._user_mask: Set[int] = set()
        self.is_open = False
        self._user_handler: Any = _signal.default_int_handler
        self._interrupt_next = False

    def start(self) -> None:
        """Closes the gate for the first time, in a process that has just been forked."""
        for number in sorted(ALL_SIGNALS - {9, 19}):
            self._set_handler(number, _signal.SIG_DFL)

        for name in ("SIGPIPE", "SIGXFSZ"):
            self._set_handler(getattr(_signal, name), _signal.SIG_IGN)

        _signal.set_wakeup_fd(-1)
        self._set_handler(_SIGINT, self._note_interrupt)
        self._set_mask(_signal.SIG_SETMASK, ALL_SIGNALS)

    def open_for_cell(self) -> None:
        """Unblocks signals for user code. May raise at once what a pending signal's handler raises."""
        interrupted, self._interrupt_next = self._interrupt_next, False
        self.is_open = True
        self._set_handler(_SIGINT, self._user_handler)
        self._set_mask(_signal.SIG_SETMASK, self._user_mask)

        if interrupted:
            raise KeyboardInterrupt

    def forget_interrupt(self) -> None:
        """Discards an interrupt that came too late for the previous cell."""
        self._until_quiet(lambda: self._set_handler(_SIGINT, _signal.SIG_IGN))
        self._until_quiet(lambda: self._set_handler(_SIGINT, self._note_interrupt))
        self._interrupt_next = False

    def forget_broken_lease(self) -> None:
        """Drops a SIGIO that user code does not handle, after the host has opened files that it may have leased."""
        if _signal.getsignal(_SIGIO) == _signal.SIG_DFL:
            self._set_handler(_SIGIO, _signal.SIG_IGN)
            self._set_handler(_SIGIO, _signal.SIG_DFL)

    def open_for_wait(self) -> None:
        """Unblocks signals while the context is idle. May raise what a handler of the user raises."""
        self.is_open = True
        self._set_mask(_signal.SIG_SETMASK, self._user_mask)

    def close(self) -> None:
        """Blocks signals again; exceptions of their handlers at this moment are too late, and dropped.

        A handler can raise between any two instructions until signals are blocked, the first of this function among
        them: a caller that must not go on with an open gate calls it in two nested blocks.
        """
        if not self.is_open:
            return

        try:
            try:
                self._user_mask = self._set_mask(_signal.SIG_BLOCK, ())
                self._set_mask(_signal.SIG_BLOCK, ALL_SIGNALS)
                self.is_open = False
            except BaseException:
                self._shut()
        except BaseException:
            self._shut()

    def _shut(self) -> None:
        """Blocks signals where a handler has kept `close` from it, or has raised right after it."""
        before = self._set_mask(_signal.SIG_BLOCK, ALL_SIGNALS)

        if not before >= _ALL_BLOCKED:
            self._user_mask = before

        self.is_open = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Unblocks signals during the block, in which the context runs a few statements of its own."""
        self.open_for_wait()
        try:
            yield
        finally:
            self.close()

    @contextmanager
    def opened_unheard(self) -> Iterator[None]:
        """Unblocks, for a few statements, the signals for which the user has no handler; the others stay pending."""
        mask = self._user_mask
        heard = {one for one in ALL_SIGNALS if callable(_signal.getsignal(one)) and one != _SIGINT}
        self.is_open = True
        self._set_mask(_signal.SIG_SETMASK, {*mask, *heard})
        try:
            yield
        finally:
            self.close()
            self._user_mask = mask

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Blocks signals for a few statements within user code."""
        mask = self._set_mask(_signal.SIG_BLOCK, ())
        try:
            self._set_mask(_signal.SIG_BLOCK, ALL_SIGNALS)
            yield
        finally:
            self._set_mask(_signal.SIG_SETMASK, mask)

    def close_after_cell(self) -> None:
        """Blocks signals again and takes SIGINT back from the user's handler."""
        self.close()
        handler = self._until_quiet(lambda: self._set_handler(_SIGINT, self._note_interrupt))

        # None represents a handler that was not set from Python: it cannot be set again.
        if handler is not None and handler != self._note_interrupt:
            self._user_handler = handler

    def _note_interrupt(self, _number: int, _frame: Any) -> None:
        self._interrupt_next = self._is_work_waiting()

    @staticmethod
    def _until_quiet(call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except BaseException:  # noqa: S112
                continue
