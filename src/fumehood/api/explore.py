"""Exploring: runs several continuations of one sandbox side by side, so that the best can be kept.

Runs in the host process, over the public sandbox: each piece of code runs in a fork of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar, overload

from fumehood.api.async_sandbox import AsyncSandbox
from fumehood.api.sandbox import Sandbox
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.portal import call
from fumehood.tracebacks import ending_at_caller
from fumehood.values.checks import check_integer
from fumehood.values.execution import Execution
from fumehood.values.requests import MAX_FORKS, ExecuteRequest
from fumehood.values.sandbox import CheckpointInfo

_S = TypeVar("_S", Sandbox, AsyncSandbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Generic[_S]):
    """One branch of the exploration.

    Attributes:
        code: The code that ran.
        sandbox: The fork in which it ran, which can be used like any sandbox.
        failure: The error if there is no execution because the fork ended in the middle of it; otherwise None. Code
            that fails has an execution with an `error`.
    """

    code: str
    sandbox: _S
    outcome: Execution | None = None
    failure: FumehoodError | None = None

    @property
    def execution(self) -> Execution:
        """The execution; raises `failure` if there is none."""
        if self.outcome is not None:
            return self.outcome

        assert self.failure is not None, "a branch has an execution or a failure"
        raise self.failure


class AsyncBranches(Sequence[Branch[AsyncSandbox]]):
    """The result of `explore`: the branches, in the order of the code.

    Leaving its `with` kills the branches that were not kept.
    """

    def __init__(self, parent: AsyncSandbox, branches: Sequence[Branch[AsyncSandbox]]) -> None:
        self._parent = parent
        self._branches = tuple(branches)
        self._kept: Branch[AsyncSandbox] | None = None

    @overload
    def __getitem__(self, index: int) -> Branch[AsyncSandbox]: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Branch[AsyncSandbox], ...]: ...

    def __getitem__(self, index: int | slice) -> Branch[AsyncSandbox] | tuple[Branch[AsyncSandbox], ...]:
        return self._branches[index]

    def __len__(self) -> int:
        return len(self._branches)

    async def __aenter__(self) -> AsyncBranches:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    async def keep(self, branch: Branch[AsyncSandbox]) -> None:
        """Replace the explored sandbox by this branch, whose state continues under the sandbox's own id.

        Args:
            branch: A branch of this result.

        Raises:
            InvalidArgumentError: The branch is not one of this result.
            ForkError: The replacement failed; all sandboxes are unchanged.
        """
        await self._parent.adopt(branch.sandbox)
        self._kept = branch

    async def close(self) -> None:
        """Kill the branches that were not kept, as leaving the `with` does."""
        await _kill([branch.sandbox for branch in self._branches if branch is not self._kept])


class Branches(Sequence[Branch[Sandbox]]):
    """The result of `explore`: the branches, in the order of the code.

    Leaving its `with` kills the branches that were not kept.
    """

    def __init__(self, parent: Sandbox, async_impl: AsyncBranches) -> None:
        self._async = async_impl
        self._branches = tuple(
            Branch(
                code=branch.code,
                sandbox=parent._around(branch.sandbox),
                outcome=branch.outcome,
                failure=branch.failure,
            )
            for branch in async_impl
        )

    @overload
    def __getitem__(self, index: int) -> Branch[Sandbox]: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Branch[Sandbox], ...]: ...

    def __getitem__(self, index: int | slice) -> Branch[Sandbox] | tuple[Branch[Sandbox], ...]:
        return self._branches[index]

    def __len__(self) -> int:
        return len(self._branches)

    def __enter__(self) -> Branches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def keep(self, branch: Branch[Sandbox]) -> None:
        """Replace the explored sandbox by this branch, whose state continues under the sandbox's own id.

        Args:
            branch: A branch of this result.

        Raises:
            InvalidArgumentError: The branch is not one of this result.
            ForkError: The replacement failed; all sandboxes are unchanged.
        """
        place = next((place for place, one in enumerate(self._branches) if one is branch), None)

        if place is None:
            raise InvalidArgumentError(field="branch", value=branch.code, allowed="one of these branches")

        call(self._async.keep, self._async[place])

    def close(self) -> None:
        """Kill the branches that were not kept, as leaving the `with` does."""
        call(self._async.close)


@ending_at_caller
async def aexplore(
    sandbox: AsyncSandbox,
    codes: Iterable[str],
    *,
    checkpoint: CheckpointInfo | str | None = None,
    reseed: bool = True,
    timeout: float | None = None,
    concurrency: int | None = None,
) -> AsyncBranches:
    """Run several pieces of code side by side, each in a fork of a sandbox, and wait for all of them.

    The sandbox itself is not changed, unless a branch is kept:

        with explore(sandbox, ["way = 1", "way = 2"]) as branches:
            branches.keep(branches[1])

    Args:
        sandbox: The sandbox to fork.
        codes: 1 to 64 pieces of Python.
        checkpoint: The checkpoint to begin from; None: the present state.
        reseed: Whether each branch gets a random state of its own.
        timeout: The time limit of each branch, in seconds; `limits.wall_seconds` unless given.
        concurrency: How many branches run at the same time; all of them unless given.

    Raises:
        ForkError: The forks cannot be made, for example because there is no room; the sandbox is unchanged.
    """
    if not isinstance(sandbox, AsyncSandbox):
        raise InvalidArgumentError(
            field="sandbox", value=sandbox, allowed="an AsyncSandbox; `explore` takes a Sandbox"
        )

    wanted = _checked(codes, timeout)

    if concurrency is not None:
        check_integer("concurrency", concurrency, low=1, high=MAX_FORKS)

    children = await sandbox.forks(len(wanted), checkpoint=checkpoint, reseed=reseed)
    room = asyncio.Semaphore(concurrency or len(wanted))

    async def run(code: str, child: AsyncSandbox) -> Branch[AsyncSandbox]:
        async with room:
            try:
                return Branch(code=code, sandbox=child, outcome=await child.run_code(code, timeout=timeout))
            except FumehoodError as error:
                return Branch(code=code, sandbox=child, failure=error)

    runs = [asyncio.create_task(run(code, child)) for code, child in zip(wanted, children, strict=True)]
    try:
        return AsyncBranches(sandbox, await asyncio.gather(*runs))
    except BaseException:
        # Their results are not used.
        for task in runs:
            task.cancel()

        await _kill(children)
        raise


@ending_at_caller
def explore(
    sandbox: Sandbox,
    codes: Iterable[str],
    *,
    checkpoint: CheckpointInfo | str | None = None,
    reseed: bool = True,
    timeout: float | None = None,
    concurrency: int | None = None,
) -> Branches:
    """Run several pieces of code side by side, each in a fork of a sandbox, and wait for all of them.

    The sandbox itself is not changed, unless a branch is kept:

        with explore(sandbox, ["way = 1", "way = 2"]) as branches:
            branches.keep(branches[1])

    Args:
        sandbox: The sandbox to fork.
        codes: 1 to 64 pieces of Python.
        checkpoint: The checkpoint to begin from; None: the present state.
        reseed: Whether each branch gets a random state of its own.
        timeout: The time limit of each branch, in seconds; `limits.wall_seconds` unless given.
        concurrency: How many branches run at the same time; all of them unless given.

    Raises:
        ForkError: The forks cannot be made, for example because there is no room; the sandbox is unchanged.
    """
    if not isinstance(sandbox, Sandbox):
        raise InvalidArgumentError(
            field="sandbox", value=sandbox, allowed="a Sandbox; `aexplore` takes an AsyncSandbox"
        )

    async_impl = call(
        aexplore,
        sandbox._async,
        codes,
        checkpoint=checkpoint,
        reseed=reseed,
        timeout=timeout,
        concurrency=concurrency,
    )
    return Branches(sandbox, async_impl)


def _checked(codes: Iterable[str], timeout: float | None) -> list[str]:
    """Check the arguments before a sandbox is forked."""
    wanted = [] if isinstance(codes, str) or not isinstance(codes, Iterable) else [*codes]

    if not 1 <= len(wanted) <= MAX_FORKS:
        raise InvalidArgumentError(field="codes", value=codes, allowed=f"1 to {MAX_FORKS} pieces of code")

    for code in wanted:
        ExecuteRequest(code=code, wall_seconds=timeout)

    return wanted


async def _kill(sandboxes: Sequence[AsyncSandbox]) -> None:
    """Kill all of these sandboxes, even if killing one fails."""
    ends = await asyncio.gather(*(one.kill(wait=False) for one in sandboxes), return_exceptions=True)

    for end in ends:
        if isinstance(end, BaseException):
            raise end
