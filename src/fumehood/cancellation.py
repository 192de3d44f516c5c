"""Cancellation: what happens to work when the task that waits for it is cancelled, and how tasks are ended.

A task that is cancelled stops waiting; the functions here differ in what becomes of the work that it waited for:

- `wait_shared`: the work belongs to others too and goes on; the caller leaves at once.
- `complete`: the work continues to its end; the caller leaves at once.
- `complete_or_undo`: like `complete`, and what the work returns is undone.
- `finish`: the caller stays until the work has ended, however often it is cancelled, and is cancelled then.
- `abandon`: the work is cancelled; what it returns although it was too late for that is undone.
- `first_of`: whatever of the work ends first decides; the rest is cancelled, and has ended when the caller goes on.

Elsewhere nothing calls `asyncio.shield`: a shielded task needs a reference that keeps it, and a reader for its error,
and both are easily forgotten. This module does not know sandboxes and waits only for the futures it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

_Args = TypeVarTuple("_Args")
_T = TypeVar("_T")

# A loop refers to its tasks weakly: one that nothing else refers to can be collected before it has ended.
_kept: set[asyncio.Future[Any]] = set()


def keep(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Starts work in the background, and refers to its task until it is done; the loop reports its failure."""
    task = asyncio.create_task(work)
    _hold(task)
    return task


def consume_result(future: asyncio.Future[Any]) -> None:
    """Marks the error of a future as read once it is done, so that the loop does not report it."""
    if future.done():
        _read(future)
    else:
        future.add_done_callback(_read)


def when_done(
    future: asyncio.Future[Any],
    action: Callable[[Unpack[_Args]], object],
    *args: *_Args,
    context: Context | None = None,
) -> None:
    """Calls `action` from the loop when a future is done; neither result nor error is read.

    Args:
        future: Any future.
        action: The function to call.
        args: Its arguments.
        context: The context variables that it sees; None: those of this call.
    """
    future.add_done_callback(lambda _: action(*args), context=context)


async def wait_shared(future: Awaitable[_T]) -> _T:
    """Waits for a future that others wait for or refer to as well: a cancelled caller leaves it as it is."""
    return await asyncio.shield(future)


async def complete(work: Awaitable[_T]) -> _T:
    """Waits for work that continues when the caller is cancelled; a failure after that is dropped.

    The cancelled caller leaves at once. Use it for what must not be left undone, such as ending a sandbox, where the
    caller need not know that it was done.
    """
    task = asyncio.ensure_future(work)
    _hold(task)
    consume_result(task)
    return await asyncio.shield(task)


async def complete_or_undo(work: Awaitable[_T], undo: Callable[[_T], object]) -> _T:
    """Does what `complete` does; when the caller was cancelled, `undo` is called with what the work returned.

    Use it for work that makes something which only its caller could end, and which cannot be interrupted half-way.
    """
    task = asyncio.ensure_future(work)
    _hold(task)
    consume_result(task)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        _undo_when_done(task, undo)
        raise


async def finish(work: Awaitable[_T]) -> _T:
    """Waits for work to its end, however often the caller is cancelled; raises CancelledError only then.

    The work is not cancelled, and its result is lost with the caller. Use it where the caller may not go on before the
    end: some libraries cancel a task at each turn of the loop, and the second cancellation would break off a plain
    `finally`.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None

    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error

    if cancelled is not None:
        _read(task)
        raise cancelled

    return task.result()


def abandon(task: asyncio.Future[_T], undo: Callable[[_T], object]) -> None:
    """Cancels a task, waits for nothing, and calls `undo` with its result where the cancellation comes too late.

    A task that has returned already is undone before this returns. A failure is dropped.
    """
    task.cancel()
    _undo_when_done(task, undo)


def cancel_once(task: asyncio.Task[Any]) -> bool:
    """Cancels a task unless it has been already: a second cancellation would break off how it ends.

    Returns:
        False if the task ended without having been asked to cancel.
    """
    return task.cancelling() > 0 or task.cancel()


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks unless they are done, and returns when all have ended; errors are dropped.

    A caller that is cancelled meanwhile leaves at once; the tasks come to their ends all the same.
    """
    left = [task for task in tasks if not task.done()]

    for task in tasks:
        consume_result(task)

    for task in left:
        _hold(task)
        task.cancel()

    if left:
        await asyncio.wait(left)


async def first_of(*work: asyncio.Future[Any]) -> set[asyncio.Future[Any]]:
    """Waits for the first of several tasks or futures, cancels the others, and returns when all have ended.

    Of work whose first end decides, such as an answer and its client's departure. A caller that is cancelled cancels
    all of them and waits for their ends; cancelled again, it leaves at once, and they come to their ends all the same.

    With anyio or trio this is a task group whose scope the first child to return cancels. It differs in three ways: an
    error of the first is not raised but stays in its future, for the caller to read where it wants to; errors of the
    others are dropped, as those of a race that is over; and a task that ends although it was cancelled keeps its
    result, which the caller has to undo if that matters.

    Returns:
        Those that were done before any was cancelled: one, or several that ended in the same turn of the loop.
    """
    try:
        done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        return done
    finally:
        await cancel_and_wait(*work)


async def stop(task: asyncio.Future[Any]) -> None:
    """Cancels a task that runs until it is cancelled, and waits for its end; raises the error it failed with."""
    task.cancel()
    await asyncio.wait([task])

    if not task.cancelled():
        task.result()


def is_cancelled() -> bool:
    """Returns whether the current task has been cancelled: a CancelledError can also be that of a task it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _hold(task: asyncio.Future[Any]) -> None:
    _kept.add(task)
    task.add_done_callback(_kept.discard)


def _read(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _undo_when_done(task: asyncio.Future[_T], undo: Callable[[_T], object]) -> None:
    def undo_result(done: asyncio.Future[_T]) -> None:
        if not done.cancelled() and done.exception() is None:
            undo(done.result())

    if task.done():
        undo_result(task)
    else:
        task.add_done_callback(undo_result)
