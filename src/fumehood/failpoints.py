"""Failpoints: named steps of a sandbox's life at which a test can inject a failure.

Off unless code of this process has armed a point: nothing here reads the environment, a request, a file, or data of a
guest, and nothing in the product arms one. Off, a step costs a check whether the table is empty. It must never know the
meaning of a step: the test decides what happens there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

# In the order in which a sandbox reaches them. A listed point that is never reached fails a test, and so does a reached
# point that is not listed.
POINTS = (
    # A template's processes: before the launcher is started, and before its zygote has imported everything.
    "template.start",
    "template.begin",
    # A sandbox: there is room; the jail init is asked; control groups are made; init exists; its first context is
    # asked for; init has greeted; the host holds it; its context is ready; it is handed out.
    "create.admitted",
    "create.spawn",
    "create.cgroup",
    "create.admit",
    "create.started",
    "create.context",
    "create.greeted",
    "create.prepare",
    "create.ready",
    "create.hand_out",
    # A sandbox of the pool: its first cell, and its way to a user.
    "pool.rehearse",
    "pool.adopt",
    # An execution: its turn has come; its context is ready; the code is sent; the reply is there; it is returned.
    "run.turn",
    "run.ready",
    "run.sent",
    "run.replied",
    "run.finished",
    # A checkpoint: the context waits; it has forked; the files are kept; it is listed.
    "checkpoint.turn",
    "checkpoint.forked",
    "checkpoint.files",
    "checkpoint.listed",
    # Going back: the turn has come; the checkpoint has forked; the files are back; the old context has ended.
    "rollback.turn",
    "rollback.revived",
    "rollback.files",
    "rollback.ended",
    # A fork: init expects it; it is made, without a context; the state to go on from is kept; a process has moved in;
    # its files are there; it is ready.
    "fork.expected",
    "fork.made",
    "fork.kept",
    "fork.moved",
    "fork.files",
    "fork.ready",
    # A transactional execution: its checkpoint is there; its code has run; it is put back, or kept.
    "transaction.kept",
    "transaction.run",
    "transaction.undo",
    "transaction.commit",
    # A pause and its end: nothing is about to start; all stands still; everything continues.
    "pause.settled",
    "pause.frozen",
    "resume.begin",
    "resume.thawed",
    # A connection out: before its ends are made.
    "egress.carry",
    # The end: requested; the signal is sent; the kernel has freed all; the host drops its own state.
    "delete.begin",
    "delete.signalled",
    "delete.gone",
    "delete.cgroup",
    "delete.closing",
)

# The actions that a test has armed, by point. Frequent callers check this first.
armed: dict[str, Callable[[Any], Awaitable[None] | None]] = {}


@contextmanager
def arm(point: str, action: Callable[[Any], Awaitable[None] | None]) -> Iterator[None]:
    """Run an action at a point, for tests in this process, while the block runs.

    Args:
        point: One of `POINTS`.
        action: Called on the engine's loop with the object at that point; an awaitable result is awaited by `reach`.

    Raises:
        ValueError: The point does not exist, or is armed already.
    """
    if point not in POINTS or point in armed:
        raise ValueError(f"{point!r} is no failpoint, or is armed already")

    armed[point] = action
    try:
        yield
    finally:
        del armed[point]


async def reach(point: str, subject: object = None) -> None:
    """Run the action of a point, and await its result."""
    if not armed:
        return

    action = armed.get(point)
    waiting = None if action is None else action(subject)

    if waiting is not None:
        await waiting


def reach_sync(point: str, subject: object = None) -> None:
    """Run the action of a point in synchronous code, which cannot await."""
    if not armed:
        return

    action = armed.get(point)

    if action is not None:
        action(subject)
