"""The verbs of forking, for `Sandbox` and `AsyncSandbox`: go on several times from one state, and keep one of them.

Runs in the host process, on the caller's side of the backend port.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

from fumehood.backends.fork_requests import ForkRequest, ForkSeconds
from fumehood.errors import InvalidArgumentError
from fumehood.facade.portal import call
from fumehood.models import CheckpointInfo

if TYPE_CHECKING:
    from fumehood.backends.base import Backend
    from fumehood.facade.lease import Lease


class _Held:
    """What is held and not owned has no copy: two of them would both end it."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: pass on its `id`, and take hold of it there with "
            "`connect(id)` (in another process: of a sandbox at a server), or `fork()` it to have a second one"
        )


class AsyncForking(_Held):
    """How `AsyncSandbox` is forked; described at `Forking`."""

    _lease: Lease
    _is_open: bool
    _left_behind: tuple[str, ...] = ()

    if TYPE_CHECKING:

        def __init__(self, *, backend: Backend | None = None) -> None: ...

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What could not come along from its parent."""
        return self._left_behind

    async def fork(
        self,
        count: int = 1,
        *,
        checkpoint: CheckpointInfo | str | None = None,
        reseed: bool = True,
        timeout: ForkSeconds = "inherit",
        metadata: Mapping[str, str] | None = None,
    ) -> list[Self]:
        """Make sandboxes that go on from the state of this one."""
        request = ForkRequest(
            count=count,
            checkpoint_id=checkpoint.id if isinstance(checkpoint, CheckpointInfo) else checkpoint,
            reseed=reseed,
            timeout_seconds=timeout,
            metadata=metadata,
        )
        forked = await self._lease.backend.fork(self._lease.id, request)
        children = []

        for info in forked.items:
            child = type(self)(backend=self._lease.backend)
            child._lease.grant(info)
            child._is_open = True
            child._left_behind = forked.left_behind
            children.append(child)

        return children

    async def adopt(self, child: Self) -> None:
        """Go on as a fork of this sandbox, under this one's id."""
        _check_child(child, AsyncForking)
        info = await self._lease.backend.adopt(self._lease.id, child._lease.id)
        child._is_open = False
        self._lease.grant(info)
        self._left_behind = child._left_behind


class Forking(_Held):
    """How `Sandbox` is forked."""

    _twin: AsyncForking

    if TYPE_CHECKING:

        def _hold(self, twin: Any) -> None: ...

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Of a fork: what could not come along from its parent, in words; empty for what is none."""
        return self._twin.left_behind

    def fork(
        self,
        count: int = 1,
        *,
        checkpoint: CheckpointInfo | str | None = None,
        reseed: bool = True,
        timeout: ForkSeconds = "inherit",
        metadata: Mapping[str, str] | None = None,
    ) -> list[Self]:
        """Make sandboxes that go on from the state of this one, each on its own; this one goes on as well.

        A fork has the variables, modules, open files, working directory, environment and record of the default context,
        and all files, as they are now or were at a checkpoint; limits, network and labels are those of its parent. It
        is a sandbox like any other: it sees nothing of its parent and of other forks, lives on when they end, and ends
        when it is killed or its `with` is left. What cannot come along is named in its `left_behind`: other contexts,
        running commands, threads, child processes, sockets.

        Args:
            count: How many, up to 64; all of them are made, or none.
            checkpoint: Go on from there: what `checkpoint()` returned, its id, or its name. None: from now on.
            reseed: Let randomness diverge: each draws numbers of its own. False: all draw the same.
            timeout: Seconds after which each is killed, or paused, as its parent; None: it lives until it is killed;
                "inherit": as many as its parent was given, counted from now on.
            metadata: Labels of each; those of the parent unless given.

        Raises:
            CheckpointNotFoundError: There is no checkpoint of this id or name.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended it.
            ForkDepthError: This one is a fork of a fork of ... already.
            ForkError: They could not be made; the sandbox is as it was.
        """
        twins = call(
            self._twin.fork,
            count,
            checkpoint=checkpoint,
            reseed=reseed,
            timeout=timeout,
            metadata=metadata,
        )
        return [self._around(twin) for twin in twins]

    def adopt(self, child: Self) -> None:
        """Go on as a fork of this sandbox: its state under this one's id; what was here before is killed.

        The fork's object is of no use afterwards, and its id has ended with the reason `adopted`.

        Args:
            child: What `fork` has returned.

        Raises:
            InvalidArgumentError: It is no fork of this sandbox.
            ForkError: It could not be done; both are as they were.
        """
        _check_child(child, Forking)
        call(self._twin.adopt, child._twin)

    def _around(self, twin: AsyncForking) -> Self:
        sandbox = type(self).__new__(type(self))
        sandbox._hold(twin)
        return sandbox


def _check_child(child: object, kind: type) -> None:
    if not isinstance(child, kind):
        raise InvalidArgumentError(
            field="child", value=child, allowed="one of the sandboxes that `fork()` has returned"
        )
