"""The engine thread of this process, and calls into it from other threads.

One asyncio loop in one daemon thread, started by the first call and stopped at exit, does the work of every synchronous
verb; a backend may live on the same loop and is then one hop away. Code of the user never runs in that thread:
callbacks run in the thread that made the call, while it waits. Coroutines of callers without a loop run on a second
loop in a thread of its own, because they may block. A forked child never touches its parent's loops: it starts its own.

Also calls the user's callbacks, which may be plain functions or coroutine functions.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import inspect
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from fumehood.cancellation import wait_shared, when_done
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.tracebacks import drop_own_frames

_P = ParamSpec("_P")
_T = TypeVar("_T")
_A = TypeVar("_A")

# How long the end of the process waits for what was registered with `on_close`.
_CLOSE_SECONDS = 10.0
# How long it then waits for calls whose sandboxes have just been ended.
_LAST_CALLS_SECONDS = 1.0
# Python's own thread pools, which the engine uses for what blocks, take no work from then on.
_MAIN_THREAD_GONE = (
    "the main thread of this program has ended, and with it what a sandbox needs of Python: let it wait for this "
    "thread, with join()"
)


class Portal:
    """An asyncio loop in a thread of its own.

    Args:
        name: The name of the thread.
        loop: The loop. The default is one of the standard library, whatever the program's policy makes (uvloop):
            `_begun` looks into it.
    """

    def __init__(self, name: str = "fumehood-engine", loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.SelectorEventLoop()
        self._closers: list[Callable[[], Awaitable[object]]] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current_thread(self) -> bool:
        """True in the engine's own thread, where waiting for the engine would never end."""
        return threading.current_thread() is self._thread

    def on_close(self, closer: Callable[[], Awaitable[object]]) -> None:
        """Let `closer` run on the loop before it stops; the last one registered runs first."""
        self._closers.append(closer)

    def close(self) -> None:
        """Run the closers, end what still runs on the loop, and stop the thread."""
        if self.loop.is_closed():
            return

        asyncio.run_coroutine_threadsafe(self._finish(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _finish(self) -> None:
        while self._closers:
            closer = self._closers.pop()

            try:
                await asyncio.wait_for(_awaited(closer), _CLOSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - the others must still close
                self.loop.call_exception_handler({"message": "fumehood: closing failed", "exception": error})

        tasks = asyncio.all_tasks() - {asyncio.current_task()}

        if tasks:
            # Calls that were under way end with the errors of the closed objects, and pass these to their callers.
            await asyncio.wait(tasks, timeout=_LAST_CALLS_SECONDS)

        for task in tasks:
            task.cancel()

        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_asyncgens()

        try:
            await self.loop.shutdown_default_executor()
        except RuntimeError:
            # While the interpreter ends, Python 3.12 starts no thread, in which this would wait. The threads of the
            # executor have ended by then.
            if not sys.is_finalizing() and threading.main_thread().is_alive():
                raise


async def _awaited(function: Callable[[], Awaitable[_T]]) -> _T:
    return await function()


_lock = threading.Lock()
_portal: Portal | None = None
# For coroutines of the user's.
_apart: Portal | None = None
# Portals of parent processes: kept, because finalizing a loop whose thread is not here would touch what
# the parent still uses.
_inherited: list[Portal] = []


def shared_portal() -> Portal:
    """Return the portal of this process, started now if there is none."""
    global _portal

    with _lock:
        if _portal is None:
            _portal = Portal()

        return _portal


async def awaited_apart(make: Callable[[], Any], on_waiting: Callable[[], object] | None = None) -> Any:
    """Await `make()` on the loop for callers without one; a cancellation cancels that, and waits for its end.

    Args:
        make: Returns the awaitable; called on that loop.
        on_waiting: Called here if it is not done at once.
    """
    global _apart

    with _lock:
        if _apart is None:
            # Code of the user gets what its program has chosen.
            _apart = Portal("fumehood-callbacks", asyncio.new_event_loop())

        there = _apart.loop

    here = asyncio.get_running_loop()
    ended: asyncio.Future[asyncio.Task[Any]] = here.create_future()
    tasks: list[asyncio.Task[Any]] = []

    def begin() -> None:
        task = there.create_task(_awaited(make))
        when_done(task, here.call_soon_threadsafe, _resolve, ended, task)
        tasks.append(task)

        if on_waiting is not None:
            # Behind its first step.
            there.call_soon(notify_if_waiting, on_waiting)

    def notify_if_waiting(tell: Callable[[], object]) -> None:
        if not tasks[0].done():
            here.call_soon_threadsafe(tell)

    there.call_soon_threadsafe(begin)
    try:
        return (await wait_shared(ended)).result()
    except asyncio.CancelledError:
        there.call_soon_threadsafe(lambda: tasks[0].cancel())
        await asyncio.wait([ended])
        raise


def _close_at_exit() -> None:
    for portal in (_portal, _apart):
        if portal is not None:
            portal.close()


def _forget_in_child() -> None:
    global _apart, _lock, _portal
    _lock = threading.Lock()
    _inherited.extend(portal for portal in (_portal, _apart) if portal is not None)
    _portal = _apart = None


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_forget_in_child)


class Turn:
    """One caller's turn: its thread waits here while the engine works, and runs the callbacks meanwhile."""

    def __init__(self) -> None:
        # Callbacks to run, then the mark that the work of a call is done.
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def call(self, function: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Await `function(...)` on the engine's loop and return its result.

        An interrupt of the waiting thread (Ctrl-C) cancels the work, waits for it to end in order, and is
        raised again.
        """
        portal = shared_portal()

        if portal.is_current_thread:
            raise RuntimeError("the engine's thread cannot wait for itself; use the Async classes here")

        outcomes: list[_Outcome[_T]] = []

        async def work() -> None:
            try:
                value = await function(*args, **kwargs)
                outcomes.append(lambda: value)
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                outcomes.append(partial(_raise, error))
            finally:
                # Put here and not in a callback of the task, which would take another turn of the loop.
                finish()

        context = contextvars.copy_context()
        tasks: list[asyncio.Task[None]] = []
        is_finished = False

        def over() -> None:
            """The end mark of this call. One of an interrupted call may still be queued; the next call ignores it."""

        def finish() -> None:
            nonlocal is_finished
            is_finished = True
            self._inbox.put(over)

        def begin() -> None:
            tasks.append(_begun(portal.loop, work(), context))

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:
                # The interrupt came before the work was given to the loop.
                finish()

        try:
            portal.loop.call_soon_threadsafe(begin)

            while (job := self._inbox.get()) is not over:
                job()
        except BaseException:
            portal.loop.call_soon_threadsafe(cancel)

            # Callbacks that come now are left alone: their caller has gone. The mark itself may have been taken
            # just before the interrupt, so it is not what is waited for.
            while not is_finished:
                self._inbox.get()

            raise

        try:
            return outcomes[0]()
        except FumehoodError as error:
            # Frames of the engine say nothing to its users.
            drop_own_frames(error)
            raise
        except RuntimeError as error:
            if not threading.main_thread().is_alive():
                error.add_note(_MAIN_THREAD_GONE)

            raise

    def relay(
        self, callback: Callable[[_A], _T] | None, name: str = "callback"
    ) -> Callable[[_A], Awaitable[_T]] | None:
        """Return an async version of `callback`, for the engine to await; it runs in the caller's thread.

        Raises:
            InvalidArgumentError: The callback cannot be called; the error has its name.
        """
        if callback is None:
            return None

        # Before anything runs: in the middle of the work the error would be too late.
        check_callbacks(**{name: callback})

        async def run_in_callers_thread(argument: _A) -> _T:
            loop = asyncio.get_running_loop()
            reply: asyncio.Future[_Outcome[_T]] = loop.create_future()

            def job() -> None:
                loop.call_soon_threadsafe(_resolve, reply, _outcome_of(callback, argument))

            self._inbox.put(job)
            return (await reply)()

        return run_in_callers_thread

    def iterate(self, items: AsyncGenerator[_T, None]) -> Iterator[_T]:
        """Yield from an async iterator of the engine; leaving the loop early closes it."""
        try:
            while True:
                try:
                    item = self.call(items.__anext__)
                except StopAsyncIteration:
                    return

                yield item
        except FumehoodError as error:
            drop_own_frames(error)
            raise
        finally:
            # A loop that was left while the process ends: the engine has gone, and what it iterated over with it.
            if not shared_portal().loop.is_closed():
                self.call(items.aclose)


def call(function: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Await `function(...)` on the engine's loop, from a thread, without callbacks."""
    return Turn().call(function, *args, **kwargs)


def _begun(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], context: contextvars.Context
) -> asyncio.Task[None]:
    """Return a task that has taken its first step: on the next turn of the loop it would come later, and cost more."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, context=context, eager_start=True)

    task = loop.create_task(work, context=context)
    ready_handles: deque[asyncio.Handle] | None = getattr(loop, "_ready", None)

    if ready_handles:
        # The handle of the task's first step, which the loop would run after all others that are ready.
        ready_handles.pop()._run()

    return task


# The outcome of a callback: called on the loop, it returns the value or raises the error.
_Outcome = Callable[[], _T]


def _outcome_of(callback: Callable[[_A], _T], argument: _A) -> _Outcome[_T]:
    # An interrupt is not caught: it belongs to the caller's thread, and would stop the engine's loop.
    try:
        value = callback(argument)
    except Exception as error:  # noqa: BLE001 - it is raised again where the work waits
        return partial(_raise, error)

    return lambda: value


def _raise(error: BaseException) -> NoReturn:
    raise error


def _resolve(reply: asyncio.Future[_T], value: _T) -> None:
    if not reply.done():
        reply.set_result(value)


def check_callbacks(**given: object) -> None:
    """Raise InvalidArgumentError unless each can be called, or is None; the error has its name."""
    for name, callback in given.items():
        if callback is not None and not callable(callback):
            raise InvalidArgumentError(
                field=name, value=callback, allowed="a function of one argument, or None"
            )


async def notify(callback: Callable[[_A], Awaitable[_T] | _T] | None, value: _A) -> _T | None:
    """Call `callback`, if there is one, and wait for it if it is asynchronous."""
    if callback is None:
        return None

    check_callbacks(callback=callback)
    answer = callback(value)

    if inspect.isawaitable(answer):
        return await cast("Awaitable[_T]", answer)

    return answer
