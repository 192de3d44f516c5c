"""A consistent snapshot of a sandbox, for saving: its contexts idle, and its files at that moment.

While the Python contexts are idle, each exports its own variables, and a snapshot of the files is taken; then all
continue, and the files are read from the snapshot. A context that is not idle soon must not block the others: code in
one may wait for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

from fumehood.cancellation import keep
from fumehood.engine.contexts.context import LiveContext
from fumehood.engine.contexts.process import ContextStartError
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import CheckpointError, FumehoodError, SandboxStartError, reason_of
from fumehood.values.events import Event
from fumehood.values.execution import Execution, Record
from fumehood.values.requests import ExecuteRequest
from fumehood.values.sandbox import ContextInfo

# How long idle contexts are held while another one is busy.
_TOGETHER_SECONDS = 5.0


class ConsistentSnapshot:
    """One consistent snapshot.

    Args:
        sandbox: The sandbox.
    """

    def __init__(self, sandbox: LiveSandbox) -> None:
        self.envs: Mapping[str, str] = sandbox.given_envs
        self._sandbox = sandbox
        self._snapshot: int | None = None

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[tuple[ContextInfo, ...]]:
        """Yields the contexts, the default one first; Python contexts are kept idle during the block."""
        first = self._default()

        while True:
            async with AsyncExitStack() as held:
                # Without a time-out: no other context is held yet.
                await held.enter_async_context(first.turn_alone())
                late = await self._hold_others(held, first)

                if late is None:
                    yield self._infos()
                    return

            first = late

    async def run(self, context_id: str, request: ExecuteRequest) -> Execution:
        """Runs code in a context that is held idle."""
        context = self._sandbox.contexts.existing(context_id)
        try:
            return await context.execute_within_turn(request, _unheard)
        except (ContextStartError, InitError, InitGoneError) as error:
            if not self._sandbox.alive:
                raise self._sandbox.closed_error(outcome_unknown=True) from None

            raise SandboxStartError(
                step="start a context",
                reason=str(error) or type(error).__name__,
                logged=reason_of(error),
            ) from None

    def record(self, context_id: str) -> Record:
        """Returns the record of a context so far."""
        return self._sandbox.recorder.read(self._sandbox.id, self._sandbox.contexts.existing(context_id).info)

    async def keep_files(self) -> str:
        """Takes a snapshot of all files; returns the reason if that is impossible."""
        snapshots = self._sandbox.checkpoints.snapshots
        try:
            # A cancelled call drops the snapshot: later changes to files would be copied for it.
            self._snapshot = await self._default().finish(self._take(), snapshots.drop)
        except CheckpointError as error:
            return error.reason

        return ""

    async def files(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the entries of the writable folders, as init describes them."""
        assert self._snapshot is not None, "the files are kept before they are listed"

        async with aclosing(self._sandbox.checkpoints.snapshots.list_files(self._snapshot)) as files:
            async for file in files:
                yield file

    async def read(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yields the content of a file."""
        assert self._snapshot is not None, "the files are kept before they are read"

        async with aclosing(self._sandbox.checkpoints.snapshots.read(self._snapshot, path)) as pieces:
            async for piece in pieces:
                yield piece

    async def let_go(self, files: int, size_bytes: int) -> None:
        """Releases the snapshot, and records in the audit record how much was saved."""
        if size_bytes:
            self._sandbox.audit.note("saved", {"files": files, "size_bytes": size_bytes})

        if self._snapshot is not None:
            snapshot, self._snapshot = self._snapshot, None
            # The caller does not wait for it while the sandbox is paused.
            await self._sandbox.clock.while_going(keep(self._drop(snapshot)))

    async def _drop(self, snapshot: int) -> None:
        # The sandbox may have ended, or be ending.
        with suppress(FumehoodError, InitGoneError):
            await self._sandbox.checkpoints.snapshots.drop(snapshot)

    async def _take(self) -> int:
        checkpoints = self._sandbox.checkpoints
        # Threads of an idle context may write: only checkpoints need not be stopped.
        return int((await checkpoints.snapshots.take(checkpoints.pids()))["snapshot"])

    async def _hold_others(self, held: AsyncExitStack, first: LiveContext) -> LiveContext | None:
        """Takes the turns of the other contexts; returns the first one that does not become idle in time, or None."""
        taken = {first}

        while others := self._pythons() - taken:
            context = others.pop()
            try:
                async with asyncio.timeout(_TOGETHER_SECONDS):
                    await held.enter_async_context(context.turn_alone())
            except TimeoutError:
                return context

            taken.add(context)

        return None

    def _default(self) -> LiveContext:
        return self._sandbox.contexts.named(None)

    def _pythons(self) -> set[LiveContext]:
        # It may have been removed; `named` makes it again.
        self._default()
        return {context for context in self._sandbox.contexts if context.info.language == "python"}

    def _infos(self) -> tuple[ContextInfo, ...]:
        default = self._default().info
        return (default, *(one.info for one in self._sandbox.contexts if one.info != default))


def _unheard(_event: Event) -> None:
    """Discards the events."""
