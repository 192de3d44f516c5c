"""Forking: new sandboxes that continue from the state of another one, or of its checkpoint.

A fork is a guest of its own nested in the namespaces of its parent: an init without files, to which the parent's init
sends the files of a snapshot, and into which a fork of a checkpoint's process migrates and becomes the first context.
Either all forks of one call are made, or none; a failure must leave the parent unchanged.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from fumehood import failpoints
from fumehood.cancellation import cancel_and_wait, consume_result, wait_shared, when_done
from fumehood.engine.contexts.context import LiveContext
from fumehood.engine.contexts.contexts import forked_context
from fumehood.engine.contexts.process import ContextProcess, ContextStartError, new_link
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.engine.sandbox import LiveSandbox, SandboxLaunch
from fumehood.engine.time_travel.checkpoints import HeldCheckpoint
from fumehood.errors import ForkError, reason_of
from fumehood.runtimes.base import Guest, GuestContext
from fumehood.runtimes.packets import close_all, copies

_FILES_SECONDS = 60.0
# One waits at its target while the next one starts.
_MOVING_AT_ONCE = 2


class ComingContext(GuestContext):
    """The first context of a fork, before and after its arrival.

    Args:
        origin: The context that it is forked from.
    """

    def __init__(self, origin: GuestContext) -> None:
        self.exited = asyncio.get_running_loop().create_future()
        self._origin = origin
        self._arrived: GuestContext | None = None

    @property
    def origin(self) -> GuestContext:
        """The context that the runtime started and that this one is a fork of."""
        return self._origin

    def arrive(self, context: GuestContext) -> None:
        """Takes over the arrived context."""
        self._arrived = context
        when_done(context.exited, lambda: self._note_exit(context.exited.result()))

    async def settled(self) -> None:
        """Waits until the process that brought the context here has ended."""
        if self._arrived is not None:
            await self._arrived.settled()

    def kill(self) -> None:
        """Ends the process, if it has arrived."""
        if self._arrived is None:
            self._note_exit(None)
        else:
            self._arrived.kill()

    def _note_exit(self, status: int | None) -> None:
        if not self.exited.done():
            self.exited.set_result(status)


class Forking:
    """Forks one sandbox once.

    Args:
        parent: The sandbox.
        reseed: Whether the forks' random states are reseeded.
        on_end: Called when no process of a fork is left.
    """

    def __init__(self, parent: LiveSandbox, reseed: bool, on_end: Callable[[LiveSandbox], None]) -> None:
        self._parent = parent
        self._reseed = reseed
        self._on_end = on_end
        self._made: list[LiveSandbox] = []
        # Whether the checkpoint is for this fork alone: then it migrates itself last, which saves a fork.
        self._ends_it = False
        self._left_to_move = 0
        self._moving = asyncio.Semaphore(_MOVING_AT_ONCE)
        # Messages: what was not carried over.
        self.left_behind: tuple[str, ...] = ()

    async def carry_out(self, ids: list[str], checkpoint_id: str | None) -> list[LiveSandbox]:
        """Makes a fork for each id.

        Args:
            ids: Their ids.
            checkpoint_id: The checkpoint that they continue from; None: the present state of the parent.

        Raises:
            ForkUnavailableError: A sandbox of this isolation level cannot be forked.
            ForkError: A fork cannot be made; none is left.
            CheckpointError: The parent's state cannot be kept, or the checkpoint does not exist.
        """
        self._parent.guest.check_forks()
        self._ends_it = checkpoint_id is None
        self._left_to_move = len(ids)
        await self._announce()
        await failpoints.reach("fork.expected", self._parent)
        making = [asyncio.ensure_future(self._parent.guest.fork(id_, self._parent.limits)) for id_ in ids]
        try:
            async with self._state(checkpoint_id) as kept:
                await failpoints.reach("fork.kept", kept)
                self.left_behind = (*kept.info.left_behind, *_not_kept(self._parent, kept.info.context_id))
                await asyncio.gather(
                    *(self._go_on(id_, guest, kept) for id_, guest in zip(ids, making, strict=True))
                )
        except BaseException:
            await self._undo(making)
            raise

        return self._made

    async def _announce(self) -> None:
        """Prepares the parent's init: it must not stop or count processes of forks, from their very beginning."""
        try:
            await self._parent.init.ask("expect_forks")
        except (InitError, InitGoneError) as error:
            raise ForkError(
                step="tell the sandbox", reason=str(error) or "it has ended", logged=reason_of(error)
            ) from None

    @asynccontextmanager
    async def _state(self, checkpoint_id: str | None) -> AsyncIterator[HeldCheckpoint]:
        checkpoints = self._parent.checkpoints

        if checkpoint_id is not None:
            with checkpoints.lent(checkpoint_id) as kept:
                yield kept

            return

        context = self._parent.contexts.named(None)

        async with context.turn() as process:
            kept = await checkpoints.take_within_turn(context, process, strict=False)

        try:
            yield kept
        finally:
            await checkpoints.forget(kept)

    async def _go_on(self, id_: str, making: asyncio.Future[Guest], kept: HeldCheckpoint) -> None:
        context = self._parent.contexts.existing(kept.info.context_id)
        launching = SandboxLaunch(
            id_,
            self._parent.limits,
            self._parent.envs,
            template_name=self._parent.template_name,
            own_interpreter=self._parent.own_interpreter,
            workdir=self._parent.workdir,
        )
        launching.languages = self._parent.languages
        launching.forked = forked_context(context.info, self._parent.workdir)
        launching.link = new_link(
            self._parent.limits,
            lambda error: launching.on_broken(error),
            launching.share,
            kept.conversation,
            context.count_of(kept.conversation),
        )
        try:
            own = copies(launching.link.guest_fds())
        except OSError:
            launching.abandon()
            raise

        coming = ComingContext(kept.line.origin)
        # The migrator starts before its target exists, and waits there until it may proceed.
        moving = asyncio.ensure_future(self._move(making, kept, own, coming))
        setting_up = asyncio.ensure_future(self._set_up(launching, making, kept, coming))
        try:
            _, (fork, coming_on) = await asyncio.gather(moving, setting_up)
        finally:
            # The descriptors are in use until then.
            await cancel_and_wait(moving, setting_up)

            close_all(own)

            if id_ not in (fork.id for fork in self._made):
                launching.abandon()

        await failpoints.reach("fork.files", fork)
        launching.link.proceed()
        try:
            await asyncio.gather(wait_shared(coming_on), coming.settled())
        except ContextStartError as error:
            raise ForkError(step="go on", reason=str(error), logged=reason_of(error)) from None

        await failpoints.reach("fork.ready", fork)
        fork.egress.use(self._parent.egress.route)
        _remember(self._parent, fork, context, kept)

    async def _set_up(
        self,
        launching: SandboxLaunch,
        making: asyncio.Future[Guest],
        kept: HeldCheckpoint,
        coming: ComingContext,
    ) -> tuple[LiveSandbox, asyncio.Task[ContextProcess]]:
        guest = await making
        await failpoints.reach("fork.made", guest)
        guest.first_context = coming
        fork = LiveSandbox(launching, guest, self._on_end)
        self._made.append(fork)
        # If it ends meanwhile, a fresh context without the state must not replace it.
        coming_on = fork.contexts.first.coming
        await self._send_files(fork, kept)
        return fork, coming_on

    async def _move(
        self, making: asyncio.Future[Guest], kept: HeldCheckpoint, own: Sequence[int], coming: ComingContext
    ) -> None:
        channel, stdout, stderr = own

        def send(fd: int) -> None:
            self._left_to_move -= 1
            is_last = self._ends_it and self._left_to_move == 0
            kept.line.send_migrator(fd, reseed=self._reseed, is_last=is_last)

        # Until it arrives it counts as a process of the parent.
        async with self._moving:
            arrived = await self._parent.guest.move_out(
                making, kept.line.origin, send, (channel, stdout, stderr)
            )

        coming.arrive(arrived)
        await failpoints.reach("fork.moved", arrived)

    async def _send_files(self, fork: LiveSandbox, kept: HeldCheckpoint) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        near, far = ends
        try:
            async with asyncio.timeout(_FILES_SECONDS):
                sending = self._parent.init.ask("send_snapshot", fds=[near.fileno()], snapshot=kept.snapshot)
                taking = fork.init.ask("receive_files", fds=[far.fileno()])
                asked = asyncio.gather(sending, taking)
                # After a cancellation the result is not read.
                consume_result(asked)
                # Both requests are sent in the first step of their tasks.
                await asyncio.sleep(0)

                for end in ends:
                    end.close()

                await asked
        except (InitError, InitGoneError, TimeoutError) as error:
            reason = str(error) or "it took too long, or one of the two ended"
            raise ForkError(step="copy the files", reason=reason, logged=reason_of(error)) from None
        finally:
            for end in ends:
                end.close()

    async def _undo(self, making: Sequence[asyncio.Future[Guest]]) -> None:
        for task in making:
            task.cancel()

        used = [fork.guest for fork in self._made]

        for guest in await asyncio.gather(*making, return_exceptions=True):
            if isinstance(guest, Guest) and guest not in used:
                guest.abandon()

        for fork in self._made:
            fork.end("killed")


def _not_kept(parent: LiveSandbox, carried: str) -> list[str]:
    contexts = [
        f"context {one.info.id!r}" for one in parent.contexts if one.is_begun and one.info.id != carried
    ]
    return contexts + [f"command {info.argv[0]!r}, process {info.pid}" for info in parent.processes.running]


def _remember(parent: LiveSandbox, fork: LiveSandbox, context: LiveContext, kept: HeldCheckpoint) -> None:
    """Begins the fork's record with the parent's cells before the fork."""
    record = parent.recorder.read(parent.id, context.info)
    dropped_cells = min(record.dropped_cells, kept.mark.length)
    before = replace(
        record,
        cells=record.cells[: kept.mark.length - dropped_cells],
        dropped_cells=dropped_cells,
        dropped_outputs=0,
    )
    fork.recorder.begin_with(fork.contexts.first.info.id, before, kept.mark.conversation)
