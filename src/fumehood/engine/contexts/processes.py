"""The successive processes of a context: started, replaced, made from a checkpoint, ended.

A context that dies is replaced by a fresh process under the same id; an execution id must never be used twice, whatever
process runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fumehood import failpoints
from fumehood.cancellation import abandon, consume_result, wait_shared
from fumehood.engine.contexts.checkpoint_channel import CheckpointChannel, RevivedContext
from fumehood.engine.contexts.connection import ContextConnection
from fumehood.engine.contexts.process import ContextOwner, ContextProcess, Exit, new_link
from fumehood.errors import ContextNotFoundError
from fumehood.runtimes.base import GuestContext
from fumehood.values.languages import ProgramSteps, steps_of
from fumehood.values.sandbox import ContextInfo

# A checkpoint that has not forked by then is stopped, or damaged.
_REVIVE_SECONDS = 10.0
# The zygote reaps a context as soon as it has ended.
_GONE_SECONDS = 5.0


class ContextProcesses:
    """The processes of one context, one after the other.

    Args:
        sandbox: The sandbox; its contexts use the methods of `ContextOwner`.
        info: The context.
        steps: How each cell is turned into a whole program; None: as usual for its language.
    """

    def __init__(self, sandbox: ContextOwner, info: ContextInfo, steps: ProgramSteps | None = None) -> None:
        self._sandbox = sandbox
        self._info = info
        self._steps = steps or steps_of(info.language)
        self.process: ContextProcess | None = None
        self._starting: asyncio.Task[ContextProcess] | None = None
        self.is_closed = False
        self._is_removed = False
        # By the names of its processes' conversations.
        self._counts: dict[str, int] = {}

    def attach(self, link: ContextConnection, guest: GuestContext) -> None:
        """Takes over a process that is forked already; `start` waits until it is ready."""
        self._note_count()
        self.process = ContextProcess(self._sandbox, self._info, link, guest)
        self._starting = asyncio.create_task(self._ready(self.process))
        # A process may die before its start is awaited.
        consume_result(self._starting)

    @property
    def coming(self) -> asyncio.Task[ContextProcess]:
        """A future that is done when the process attached or started last is ready.

        It fails if that process ends before.
        """
        assert self._starting is not None, "none was ever started"
        return self._starting

    def _note_count(self) -> None:
        """Remembers how many requests the present process has had, so that no execution id is used twice."""
        if self.process is not None:
            link = self.process.link
            self._counts[link.name] = max(link.count, self._counts.get(link.name, 0))

    def count_of(self, name: str) -> int:
        """Returns the number of executions so far whose ids begin with the conversation `name`."""
        self._note_count()
        return self._counts.get(name, 0)

    async def settled(self) -> None:
        """Returns when no process of the context is being started."""
        if self._starting is not None:
            await asyncio.wait([self._starting])

    async def living(self) -> ContextProcess:
        """Returns a ready process, and starts one if there is none."""
        if self._starting is not None and not self._starting.done():
            return await wait_shared(self._starting)

        if self.process is not None and self.process.lives:
            return self.process

        self._check_not_removed()
        # A paused sandbox starts nothing: a new process in it would run.
        await self._sandbox.clock.going()
        return await wait_shared(self.start_fresh())

    def start_fresh(self) -> asyncio.Task[ContextProcess]:
        """Starts a fresh process."""
        link = new_link(self._sandbox.limits, self._sandbox.broken, self._sandbox.share)
        try:
            guest = self._sandbox.start_context(link, self._info, self._steps)
        except BaseException:
            link.close()
            raise

        self.attach(link, guest)
        assert self._starting is not None, "adopt has just set it"
        return self._starting

    def prepare_next(self) -> None:
        """Starts a fresh process in place of one that has died, so that the next execution need not wait."""
        if (
            self._has_settled
            and not self.process_lives
            and not self.is_closed
            and not self._sandbox.clock.is_stopped
        ):
            self.start_fresh()

    @property
    def process_lives(self) -> bool:
        """Whether there is a process, as far as is known."""
        return self.process is not None and self.process.lives

    async def end(self) -> None:
        """Ends the context's process; repeats if another caller has started a new one meanwhile."""
        while self.process is not None and (self.process.lives or not self._has_settled):
            await self.settled()
            await self.process.end()

    @property
    def _has_settled(self) -> bool:
        return self._starting is None or self._starting.done()

    def _check_not_removed(self) -> None:
        if self._is_removed:
            raise ContextNotFoundError(context_id=self._info.id)

    async def _ready(self, process: ContextProcess) -> ContextProcess:
        await process.until_ready()
        return process

    async def revive(
        self, line: CheckpointChannel, name: str, put_files_back: Callable[[int], Awaitable[None]]
    ) -> bool:
        """Replaces the present process by one made from a checkpoint; for the holder of the turn.

        Args:
            line: The checkpoint.
            name: The prefix of its execution ids.
            put_files_back: Restores the files while the new process, whose pid inside the sandbox it gets, waits; if it
                raises, nothing has changed.

        Returns:
            False when the checkpoint does not exist any more; then nothing has changed.

        Raises:
            ContextStartError: The files are restored, and the process has ended before it was ready.
        """
        self._check_not_removed()
        self._note_count()
        await failpoints.reach("rollback.turn", self)
        link = new_link(
            self._sandbox.limits, self._sandbox.broken, self._sandbox.share, name, self._counts.get(name, 0)
        )
        files_are_back = False
        try:
            asked = asyncio.ensure_future(line.revive(link))
            await self._sandbox.clock.wait(asked, seconds=_REVIVE_SECONDS)
            guest = asked.result() if asked.done() else None

            if guest is None:
                asked.cancel()
                link.close()
                return False

            await failpoints.reach("rollback.revived", self)
            await put_files_back(guest.pid)
            files_are_back = True
            await failpoints.reach("rollback.files", self)
            await self.end()
            self._check_not_removed()
            await failpoints.reach("rollback.ended", self)
        except BaseException:
            link.close()
            # It ends when its channel does; otherwise it is killed.
            abandon(asked, _kill_what_was_made)

            # Its variables would not match the restored files.
            if files_are_back:
                await self.end()

            raise

        self.is_closed = False
        self.attach(link, guest)
        link.proceed()
        await self.living()
        return True

    async def begin_anew(self, in_between: Callable[[], Awaitable[None]]) -> None:
        """Replaces the process by a fresh one, for the holder of the turn; runs `in_between` before it starts."""
        await self.end()
        await in_between()
        await self.living()

    async def replace(self) -> None:
        """Kills the process and starts a fresh one; a running execution ends as `context_died`."""
        await self.kill()
        self.is_closed = False
        await self.living()

    async def remove(self) -> None:
        """Kills the process for good."""
        self._is_removed = True
        await self.kill()

    async def kill(self) -> None:
        """Kills the process and all processes that it started."""
        self.is_closed = True

        if self.process is not None:
            await self.process.end()

    async def gone(self) -> None:
        """Returns when the end of the context's process is known; it was killed with all others of the sandbox."""
        if self.process is not None:
            await asyncio.wait([self.process.exited], timeout=_GONE_SECONDS)

            if self.process.lives:
                self.process.forget()

    def close(self) -> None:
        """Releases everything, after the end of the sandbox."""
        self.is_closed = True

        if self.process is not None:
            self.process.close(Exit())


def _kill_what_was_made(guest: RevivedContext | None) -> None:
    if guest is not None:
        guest.kill()
