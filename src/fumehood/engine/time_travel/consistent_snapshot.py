"""One moment of a sandbox, to write down what of it lasts: its contexts at rest, and its files as they are then.

While the contexts of Python are at rest, each writes down its own variables, and a snapshot of the files is taken;
then everything goes on, and the files are read from the snapshot. A context that is itself waiting keeps no other
waiting for long: code in one may be waiting for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

from fumehood.engine.contexts.context import LiveContext
from fumehood.engine.contexts.process import ContextStartError
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.engine.sandbox import LiveSandbox
from fumehood.engine.tasks import keep
from fumehood.errors import CheckpointError, FumehoodError, SandboxStartError
from fumehood.values.events import Event
from fumehood.values.execution import Execution, Record
from fumehood.values.requests import ExecuteRequest
from fumehood.values.sandbox import ContextInfo

# How long contexts at rest wait for another one.
_TOGETHER_SECONDS = 5.0


class ConsistentSnapshot:
    """One moment of a sandbox.

    Args:
        sandbox: The sandbox.
    """

    def __init__(self, sandbox: LiveSandbox) -> None:
        self.envs: Mapping[str, str] = sandbox.given_envs
        self._sandbox = sandbox
        self._snapshot: int | None = None

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[tuple[ContextInfo, ...]]:
        """Gives the contexts, the default one first; in those of Python nothing else runs while the block does."""
        first = self._default()

        while True:
            async with AsyncExitStack() as held:
                # As long as it takes: nobody waits for what is held, because nothing is.
                await held.enter_async_context(first.turn_alone())
                late = await self._hold_others(held, first)

                if late is None:
                    yield self._infos()
                    return

            first = late

    async def run(self, context_id: str, request: ExecuteRequest) -> Execution:
        """Runs code in a context that is at rest."""
        context = self._sandbox.contexts.existing(context_id)
        try:
            return await context.execute_within_turn(request, _unheard)
        except (ContextStartError, InitError, InitGoneError) as error:
            if not self._sandbox.alive:
                raise self._sandbox.closed_error(outcome_unknown=True) from None

            raise SandboxStartError(
                step="start a context", reason=str(error) or type(error).__name__
            ) from None

    def record(self, context_id: str) -> Record:
        """Tells what has run in a context so far."""
        return self._sandbox.recorder.read(self._sandbox.id, self._sandbox.contexts.existing(context_id).info)

    async def keep_files(self) -> str:
        """Keeps all files as they are now; says why not, where that cannot be."""
        snapshots = self._sandbox.checkpoints.snapshots
        try:
            # Whoever gives up leaves no snapshot: every later change to a file would be copied for it.
            self._snapshot = await self._default().finish(self._take(), snapshots.drop)
        except CheckpointError as error:
            return error.reason

        return ""

    async def files(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yields what lay in the writable places, as init describes it."""
        assert self._snapshot is not None, "the files are kept before they are listed"

        async with aclosing(self._sandbox.checkpoints.snapshots.list_files(self._snapshot)) as files:
            async for file in files:
                yield file

    async def read(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yields what a file held."""
        assert self._snapshot is not None, "the files are kept before they are read"

        async with aclosing(self._sandbox.checkpoints.snapshots.read(self._snapshot, path)) as pieces:
            async for piece in pieces:
                yield piece

    async def let_go(self, files: int, size_bytes: int) -> None:
        """Gives the files up, and has the audit record say how much of the sandbox was given out."""
        if size_bytes:
            self._sandbox.audit.note("saved", {"files": files, "size_bytes": size_bytes})

        if self._snapshot is not None:
            snapshot, self._snapshot = self._snapshot, None
            # Nobody waits for that while the sandbox is paused.
            await self._sandbox.clock.while_going(keep(self._drop(snapshot)))

    async def _drop(self, snapshot: int) -> None:
        # It may have ended, or be just ending.
        with suppress(FumehoodError, InitGoneError):
            await self._sandbox.checkpoints.snapshots.drop(snapshot)

    async def _take(self) -> int:
        checkpoints = self._sandbox.checkpoints
        # Threads of a context at rest may write: of those that wait, only checkpoints need not be stopped.
        return int((await checkpoints.snapshots.take(checkpoints.pids()))["snapshot"])

    async def _hold_others(self, held: AsyncExitStack, first: LiveContext) -> LiveContext | None:
        """Takes the turns of the other contexts; returns the one that does not come to rest soon, or None."""
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
        # It may have been removed; whoever names it has it made anew.
        self._default()
        return {context for context in self._sandbox.contexts if context.info.language == "python"}

    def _infos(self) -> tuple[ContextInfo, ...]:
        default = self._default().info
        return (default, *(one.info for one in self._sandbox.contexts if one.info != default))


def _unheard(_event: Event) -> None:
    """Nobody follows what is run here."""
