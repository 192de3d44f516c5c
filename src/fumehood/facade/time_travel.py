"""The verbs of going back, for `Sandbox` and `AsyncSandbox`: make a checkpoint, go back to it, forget it.

Runs in the host process, on the caller's side of the backend port.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from fumehood.backends.checkpoint_requests import DropCheckpoint, ListCheckpoints, RollBack, TakeCheckpoint
from fumehood.facade.portal import call
from fumehood.judging import CaseResult, JudgeRequest, checked_cases, judged
from fumehood.models import CheckpointInfo, ContextInfo

if TYPE_CHECKING:
    from fumehood.facade.lease import Lease

Context: TypeAlias = ContextInfo | str
Checkpoint: TypeAlias = CheckpointInfo | str
CheckpointInfos: TypeAlias = list[CheckpointInfo]
CaseResults: TypeAlias = list[CaseResult]


class AsyncTimeTravel:
    """What `AsyncSandbox` can go back to; described at `TimeTravel`."""

    _lease: Lease

    async def checkpoint(
        self, name: str | None = None, *, context: Context | None = None, strict: bool = False
    ) -> CheckpointInfo:
        """Keep the state of a context and the files, to go back to."""
        call = TakeCheckpoint(context_id=_context_id(context), name=name, strict=strict)
        return (await self._lease.backend.checkpoint_call(self._lease.id, call))[0]

    async def rollback(self, checkpoint: Checkpoint) -> CheckpointInfo:
        """Go back to a checkpoint."""
        call = RollBack(checkpoint_id=_checkpoint_id(checkpoint))
        return (await self._lease.backend.checkpoint_call(self._lease.id, call))[0]

    async def list_checkpoints(self) -> CheckpointInfos:
        """List the checkpoints."""
        return [*await self._lease.backend.checkpoint_call(self._lease.id, ListCheckpoints())]

    async def drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint."""
        call = DropCheckpoint(checkpoint_id=_checkpoint_id(checkpoint))
        await self._lease.backend.checkpoint_call(self._lease.id, call)

    async def judge(
        self,
        code: str,
        cases: Sequence[tuple[str, str]],
        *,
        timeout: float = 10.0,
        memory_bytes: int | None = None,
        concurrency: int | None = None,
    ) -> CaseResults:
        """Run a program for many inputs, and compare what it prints with what it should."""
        pairs = checked_cases(cases)
        request = JudgeRequest(
            code=code,
            stdins=tuple(stdin for stdin, _ in pairs),
            wall_seconds=timeout,
            memory_bytes=memory_bytes,
            concurrency=concurrency,
        )
        runs = await self._lease.backend.judge(self._lease.id, request)
        return [judged(run, expected) for run, (_, expected) in zip(runs, pairs, strict=True)]


class TimeTravel:
    """What `Sandbox` can go back to."""

    _twin: AsyncTimeTravel

    def checkpoint(
        self, name: str | None = None, *, context: Context | None = None, strict: bool = False
    ) -> CheckpointInfo:
        """Keep the state of a context and the files, as they are now, to go back to.

        Every live object of the context is kept as it is: variables, modules, generators half-way, open files,
        random states. It takes a few milliseconds, and memory only for what changes afterwards. What cannot be kept
        (other threads, child processes, sockets) is named in `left_behind`. At most 16 are kept; the oldest goes.

        Args:
            name: A name of yours; `rollback` takes it as well.
            context: Whose state; None: the default one. A context of bash cannot be kept.
            strict: Refuse when anything could not be kept.

        Raises:
            CheckpointError: It cannot be made; the sandbox is as it was.
        """
        return call(self._twin.checkpoint, name, context=context, strict=strict)

    def rollback(self, checkpoint: Checkpoint) -> CheckpointInfo:
        """Go back to a checkpoint: state and files are what they were then; the checkpoint stays.

        Other contexts, and commands that run, go on.

        Args:
            checkpoint: What `checkpoint` returned, its id, or its name.

        Raises:
            CheckpointNotFoundError: There is none of this id or name.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended it; the sandbox is as it was.
            CheckpointError: There is no room to go back; the sandbox is as it was.
        """
        return call(self._twin.rollback, checkpoint)

    def list_checkpoints(self) -> CheckpointInfos:
        """List the checkpoints, the oldest first."""
        return call(self._twin.list_checkpoints)

    def drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint, and free what it holds."""
        call(self._twin.drop_checkpoint, checkpoint)

    def judge(
        self,
        code: str,
        cases: Sequence[tuple[str, str]],
        *,
        timeout: float = 10.0,
        memory_bytes: int | None = None,
        concurrency: int | None = None,
    ) -> CaseResults:
        """Run a program once for each case, and say whether it prints what it should.

        What the program imports at its top is imported once; each case is a fork of that, with its own memory,
        standard input and limits, so that a thousand cases take seconds. Variables of the sandbox are not seen by
        it; its files are, and are as before afterwards. What should be printed never enters the sandbox.

        Args:
            code: The program, in Python; it runs as `__main__`.
            cases: Of each, what it reads and what it should print. Lines are compared without the space at their ends;
                more than `limits.stdout_bytes` is cut off, and not accepted.
            timeout: Seconds of each run.
            memory_bytes: What each run may take beyond the interpreter and the imports.
            concurrency: How many run at once; as many as there are processors unless given.

        Raises:
            CheckpointError: The program could not be prepared.
        """
        return call(
            self._twin.judge,
            code,
            cases,
            timeout=timeout,
            memory_bytes=memory_bytes,
            concurrency=concurrency,
        )


def _checkpoint_id(checkpoint: Checkpoint) -> str:
    return checkpoint.id if isinstance(checkpoint, CheckpointInfo) else checkpoint


def _context_id(context: Context | None) -> str | None:
    return context.id if isinstance(context, ContextInfo) else context
