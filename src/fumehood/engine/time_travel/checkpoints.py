"""The checkpoints of one sandbox: states of a context to roll back to, variables and files together.

A checkpoint is a waiting fork of the context and a snapshot of the writable files, both taken while the context waits,
so that the two always match. A rollback checks both before it discards the present state: a damaged checkpoint leaves
the sandbox unchanged. Their number is bounded, the oldest is dropped first; their memory and their files count as the
sandbox's own. A name that is given again means the newest, and the older one keeps its id: a loop that marks each round
with one name goes on, where a refusal would end it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from fumehood import failpoints
from fumehood.cancellation import complete, keep
from fumehood.engine.clock import SandboxClock
from fumehood.engine.contexts.checkpoint_channel import CheckpointChannel
from fumehood.engine.contexts.context import LiveContext
from fumehood.engine.contexts.process import ContextProcess, ContextStartError
from fumehood.engine.init_client import InitGoneError
from fumehood.engine.loop_share import LoopShare
from fumehood.engine.records import Mark, Recorder
from fumehood.engine.tasks import PendingCleanups
from fumehood.engine.time_travel.snapshots import LiveSnapshots
from fumehood.errors import (
    CheckpointError,
    CheckpointLostError,
    CheckpointNotFoundError,
    FumehoodError,
    LanguageCheckpointError,
)
from fumehood.log import events
from fumehood.runtimes.base import Guest
from fumehood.values.languages import known_language, names_with
from fumehood.values.requests import CheckpointCall, DropCheckpoint, ListCheckpoints, RollBack, TakeCheckpoint
from fumehood.values.sandbox import CheckpointInfo
from fumehood_wire.frames import ProtocolError

_MAX_CHECKPOINTS = 16
# A fork runs at-fork handlers of user code, which may never return.
_FORK_SECONDS = 10.0
_LEFT_BEHIND = "not everything can be kept"


class Checkpointed(Protocol):
    """The operations of a sandbox that checkpoints use."""

    id: str
    clock: SandboxClock
    guest: Guest
    cleanups: PendingCleanups
    share: LoopShare
    recorder: Recorder

    async def ask(self, verb: str, payload: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        """Sends a request to init."""

    async def kill_context(self, pid: int) -> None:
        """Kills a context with all that it started, except checkpoints."""

    async def signal_context(self, pid: int, number: int) -> None:
        """Signals the process group of a process with this pid."""

    def broken(self, error: ProtocolError) -> None:
        """Ends the sandbox, because the guest violated the protocol."""


@dataclass(slots=True, kw_only=True)
class HeldCheckpoint:
    """One checkpoint.

    Attributes:
        line: The channel to the process that holds the state.
        snapshot: The number of the files' snapshot.
        conversation: The prefix of its execution ids.
        info: Its description for callers.
        mark: The position in the record of the context.
    """

    line: CheckpointChannel
    snapshot: int
    conversation: str
    info: CheckpointInfo
    mark: Mark


class LiveCheckpoints:
    """The checkpoints of one sandbox, by id."""

    def __init__(self, sandbox: Checkpointed) -> None:
        self._sandbox = sandbox
        self.snapshots = LiveSnapshots(sandbox.ask)
        self._kept: dict[str, HeldCheckpoint] = {}
        # Unlisted checkpoints of transactions.
        self._passing: set[CheckpointChannel] = set()
        # Checkpoints that are in use by a rollback, once for each; those dropped meanwhile are released afterwards.
        self._in_use: list[HeldCheckpoint] = []
        # By context: the checkpoint that was last made of it, or that it was last rolled back to.
        self._latest: dict[str, HeldCheckpoint] = {}
        self._next_number = 1

    @property
    def infos(self) -> tuple[CheckpointInfo, ...]:
        """Describes all checkpoints, the oldest first."""
        return tuple(
            kept.info if kept.line.lives else replace(kept.info, is_lost=True) for kept in self._kept.values()
        )

    @property
    def clock(self) -> SandboxClock:
        """The sandbox's clock."""
        return self._sandbox.clock

    def pids(self) -> list[int]:
        """Returns the pids of the checkpoint processes, as seen inside the sandbox."""
        lines = {*(kept.line for kept in (*self._kept.values(), *self._in_use)), *self._passing}
        return [line.pid for line in lines if line.pid is not None and line.lives]

    async def call(
        self, call: CheckpointCall, contexts: Callable[[str | None], LiveContext]
    ) -> tuple[CheckpointInfo, ...]:
        """Makes, lists, rolls back to or drops checkpoints."""
        match call:
            case ListCheckpoints():
                return self.infos
            case TakeCheckpoint():
                return (await self.take(contexts(call.context_id), call.name, strict=call.strict),)
            case RollBack():
                return (await self.roll_back(call.checkpoint_id, contexts),)
            case DropCheckpoint():
                await self.drop(call.checkpoint_id)
                return ()

    async def take(self, context: LiveContext, name: str | None, *, strict: bool) -> CheckpointInfo:
        """Makes a checkpoint of a context and the files, after earlier requests to the context.

        A cancelled call leaves no checkpoint.
        """
        self._sandbox.guest.check_checkpoints()
        _check_language(context)

        async with context.turn() as process:
            taking = self.take_within_turn(context, process, name, strict=strict)
            kept = await context.finish(taking, self.forget)

        self._passing.discard(kept.line)
        _note_parent(kept, self._latest.get(context.info.id))
        self._latest[context.info.id] = kept
        self._kept[kept.info.id] = kept
        await failpoints.reach("checkpoint.listed", self._sandbox)

        while len(self._kept) > _MAX_CHECKPOINTS:
            oldest = next(iter(self._kept))
            events.CHECKPOINT_EVICTED.log(sandbox_id=self._sandbox.id, checkpoint_id=oldest)
            await self.drop(oldest)

        return kept.info

    async def take_within_turn(
        self, context: LiveContext, process: ContextProcess, name: str | None = None, *, strict: bool = False
    ) -> HeldCheckpoint:
        """Does the same as `take` for the holder of the context's turn, but does not list the checkpoint."""
        self._sandbox.guest.check_checkpoints()
        _check_language(context)
        sandbox = self._sandbox
        line = CheckpointChannel(
            sandbox.broken, sandbox.kill_context, sandbox.signal_context, process.origin, sandbox.share
        )
        self._passing.add(line)
        try:
            await failpoints.reach("checkpoint.turn", self._sandbox)
            await self._fork(process, line)
            await failpoints.reach("checkpoint.forked", self._sandbox)
            value = await self.snapshots.take(self._waiting(process))
            await failpoints.reach("checkpoint.files", self._sandbox)
        except BaseException:
            await self._end(line)
            raise
        finally:
            process.link.proceed()

        left_behind = (*line.left_behind, *value["left_behind"])
        number = self._next_number
        self._next_number += 1
        mark = self._sandbox.recorder.mark(context.info.id)
        info = CheckpointInfo(
            id=f"checkpoint-{number}",
            name=name,
            context_id=context.info.id,
            created_at=datetime.now(UTC),
            left_behind=left_behind,
            files=value["files"],
            files_bytes=value["size_bytes"],
            position=mark.length,
            execution_id=self._sandbox.recorder.last_execution_id(context.info.id),
        )
        kept = HeldCheckpoint(
            line=line,
            snapshot=value["snapshot"],
            conversation=process.link.name,
            info=info,
            mark=mark,
        )

        if strict and left_behind:
            await self.forget(kept)
            raise CheckpointError(
                # A guest names its threads and files.
                reason=f"{_LEFT_BEHIND}: {'; '.join(left_behind)}",
                logged=_LEFT_BEHIND,
                hint="end what is named, or make it without `strict`: then it is left behind",
            )

        return kept

    async def roll_back(
        self, checkpoint_id: str, contexts: Callable[[str | None], LiveContext]
    ) -> CheckpointInfo:
        """Rolls back to a checkpoint, which is kept; a cancelled call is either completed or has no effect."""
        with self.lent(checkpoint_id) as kept:
            context = contexts(kept.info.context_id)

            async with context.turn_alone():
                going = asyncio.ensure_future(self._go_back(kept, context))
                # A second call finds the files as the first has left them, also when the first is cancelled.
                self._sandbox.cleanups.add(going)
                await context.finish(going)
                self._latest[kept.info.context_id] = kept

        return kept.info

    @contextmanager
    def lent(self, checkpoint_id: str) -> Iterator[HeldCheckpoint]:
        """Yields a checkpoint in use; it stays, even if it is dropped meanwhile.

        Raises:
            CheckpointLostError: The checkpoint has ended.
        """
        kept = self._find(checkpoint_id)

        if not kept.line.lives:
            raise self._lost(kept)

        with self._holding(kept):
            yield kept

    @contextmanager
    def _holding(self, kept: HeldCheckpoint) -> Iterator[None]:
        self._in_use.append(kept)
        try:
            yield
        finally:
            self._in_use.remove(kept)

            if kept.info.id not in self._kept and kept not in self._in_use:
                keep(self._forget_quietly(kept))

    async def roll_back_within_turn(self, kept: HeldCheckpoint, context: LiveContext) -> None:
        """Rolls back, for the holder of the context's turn.

        Raises:
            CheckpointLostError: The checkpoint has ended; nothing was changed.
            ContextStartError: The files are restored, and the context that was made from it ended at once.
        """

        async def put_files_back(pid: int) -> None:
            await self.snapshots.put_back(kept.snapshot, [pid, *self.pids()])

        try:
            is_made = await context.revive_within_turn(kept.line, kept.conversation, put_files_back)
        except ContextStartError:
            # Code in the sandbox may have killed it, or memory ran out: the checkpoint still exists.
            is_made = await context.revive_within_turn(kept.line, kept.conversation, put_files_back)

        if not is_made:
            raise self._lost(kept)

        self._sandbox.recorder.go_back(context.info.id, kept.mark)

    async def _go_back(self, kept: HeldCheckpoint, context: LiveContext) -> None:
        # Held here, because its caller may have been cancelled.
        with self._holding(kept):
            try:
                await self.roll_back_within_turn(kept, context)
            except ContextStartError:
                raise CheckpointError(
                    reason="the files are as they were then, but the context that was made from it ended at once",
                    hint="go back to it again; without that, the next code runs in a fresh context",
                ) from None

    async def put_files_back(self, kept: HeldCheckpoint) -> None:
        """Restores the files to their state at a checkpoint, and leaves the contexts as they are."""
        await self.snapshots.put_back(kept.snapshot, self.pids())

    async def keep_files(self, process: ContextProcess) -> int:
        """Takes a snapshot of the files only, while a context is idle; returns its number."""
        self._sandbox.guest.check_checkpoints()
        return int((await self.snapshots.take(self._waiting(process)))["snapshot"])

    async def drop(self, checkpoint_id: str) -> None:
        """Removes a checkpoint: at once, or, while a rollback or fork uses it, afterwards.

        Raises:
            CheckpointNotFoundError: No checkpoint has this id or name.
        """
        kept = self._find(checkpoint_id)
        del self._kept[kept.info.id]

        if kept not in self._in_use:
            # It is not listed any more, so nothing else would release it.
            await complete(self.forget(kept))

    async def forget(self, kept: HeldCheckpoint) -> None:
        """Ends a checkpoint's process and releases its files."""
        await self._end(kept.line)
        await self.snapshots.drop(kept.snapshot)

    def close(self) -> None:
        """Closes all checkpoints, after the end of the sandbox."""
        for line in [*(kept.line for kept in (*self._kept.values(), *self._in_use)), *self._passing]:
            line.close()

        self._kept.clear()
        self._passing.clear()

    # -- inside

    async def _fork(self, process: ContextProcess, line: CheckpointChannel) -> None:
        forked = process.link.fork(line.guest_fd())
        # The channel has duplicated it.
        line.close_guest_end()
        await self._sandbox.clock.wait(forked, seconds=_FORK_SECONDS)

        if not forked.done():
            await process.end()
            raise CheckpointError(
                reason=f"the context did not fork within {_FORK_SECONDS:g} s, and was ended",
                hint="something registered with `os.register_at_fork` takes too long",
            )

        number = forked.result()

        if number is None:
            raise CheckpointError(reason="the context ended")

        if number:
            raise CheckpointError.from_errno(number)

        await self._sandbox.clock.wait(line.kept, seconds=_FORK_SECONDS)

        if line.pid is None:
            raise CheckpointError(reason="its process ended at once, perhaps because memory ran out")

    def _waiting(self, process: ContextProcess) -> list[int]:
        """Returns the pids, as seen inside the sandbox, of processes that wait for the host."""
        return [pid for pid in (process.link.pid, *self.pids()) if pid is not None]

    def _find(self, checkpoint_id: str) -> HeldCheckpoint:
        kept = self._kept.get(checkpoint_id)

        if kept is not None:
            return kept

        for kept in reversed(self._kept.values()):
            if kept.info.name == checkpoint_id:
                return kept

        raise CheckpointNotFoundError(checkpoint_id=checkpoint_id)

    def _lost(self, kept: HeldCheckpoint) -> CheckpointLostError:
        # The rollback that uses it releases it in the end.
        self._kept.pop(kept.info.id, None)
        return CheckpointLostError(checkpoint_id=kept.info.id)

    async def _forget_quietly(self, kept: HeldCheckpoint) -> None:
        with suppress(FumehoodError, InitGoneError):
            await self.forget(kept)

    async def _end(self, line: CheckpointChannel) -> None:
        self._passing.discard(line)
        line.close()

        # It may be stopped, and would not notice the closed channel.
        if line.pid is not None:
            await self._sandbox.signal_context(line.pid, signal.SIGKILL)


def _note_parent(kept: HeldCheckpoint, before: HeldCheckpoint | None) -> None:
    """Sets the parent of a new checkpoint, unless the context got a fresh process since the previous checkpoint."""
    if before is not None and before.conversation == kept.conversation:
        kept.info = replace(kept.info, parent_checkpoint_id=before.info.id)


def _check_language(context: LiveContext) -> None:
    language = known_language(context.info.language)

    if language.why_no_checkpoints:
        raise LanguageCheckpointError(
            context_id=context.info.id,
            language=language.name,
            reason=language.why_no_checkpoints,
            allowed=names_with(checkpoints=True),
        )
