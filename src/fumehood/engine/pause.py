"""Pausing one sandbox: its processes are stopped and its clock with them, until it is resumed or killed.

Where the host can freeze a control group it does; elsewhere init, which keeps answering, stops all other processes. A
pause is complete or fails: its caller gets a sandbox in which no process runs, or an error and a running sandbox. A
pause that keeps files only ends all processes first: only init is left to be stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from fumehood import failpoints
from fumehood.cancellation import complete, consume_result, when_done
from fumehood.engine.audit_trail import AuditTrail
from fumehood.engine.clock import SandboxClock
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.errors import SandboxError
from fumehood.runtimes.base import Guest
from fumehood.text import visible_line
from fumehood.values.sandbox import PauseReport

_FREEZE_SECONDS = 5.0
_FIRST_LOOK_SECONDS = 0.001
_LONGEST_LOOK_SECONDS = 0.05
_OFFER_SECONDS = 1.0
_KEPT = "what is left lies in no file, and found no swap to go to"


class Pausable(Protocol):
    """The operations of a sandbox that pausing uses."""

    id: str
    guest: Guest
    clock: SandboxClock
    audit: AuditTrail

    @property
    def alive(self) -> bool:
        """Whether the end of the sandbox has not begun."""

    async def prepare_pause(self) -> None:
        """Waits until no context is being started, and saves figures that cannot be read during a pause."""

    async def end_processes(self) -> None:
        """Ends every process in the sandbox but init; its files stay."""

    def closed_error(self) -> Exception:
        """Returns the error of a sandbox that has ended."""


class Pausing:
    """Pauses and resumes one sandbox.

    Args:
        sandbox: The sandbox.
        ask_init: Sends requests to its init, paused or not.
    """

    def __init__(self, sandbox: Pausable, ask_init: Callable[[str], Awaitable[tuple[Any, bytes]]]) -> None:
        self.is_paused = False
        self.report: PauseReport | None = None
        # Called when it was paused, and when it was resumed.
        self.on_change: Callable[[], None] = lambda: None
        self._sandbox = sandbox
        self._ask_init = ask_init
        self._turn = asyncio.Lock()

    @property
    def is_running(self) -> bool:
        """Whether the sandbox is neither paused nor being paused or resumed."""
        return not self.is_paused and not self._turn.locked()

    async def settled(self) -> None:
        """Waits while the sandbox is being paused or resumed."""
        async with self._turn:
            return

    async def pause(self, *, files_only: bool = False) -> bool:
        """Stops all processes; returns False if the sandbox is paused already.

        Completed even if the caller is cancelled.

        Args:
            files_only: Whether to end all processes first.
        """
        return await self._in_turn(self._pause(files_only=files_only))

    async def resume(self, *, files_only: bool = False) -> bool:
        """Continues all processes; returns False if the sandbox is running. Completed even if the caller is cancelled.

        Args:
            files_only: Whether to end the processes that the pause has kept.
        """
        return await self._in_turn(self._resume(files_only=files_only))

    async def _in_turn(self, work: Coroutine[Any, Any, bool]) -> bool:
        # Without an await if possible: later calls must find it begun.
        try:
            await self._turn.acquire()
        except BaseException:
            work.close()
            raise

        begun = asyncio.create_task(work)
        when_done(begun, self._turn.release)
        return await complete(begun)

    async def _pause(self, *, files_only: bool) -> bool:
        if self.is_paused:
            return False

        await self._sandbox.prepare_pause()
        self._sandbox.clock.stop()
        try:
            await failpoints.reach("pause.settled", self._sandbox)

            if files_only:
                # With the clock stopped no context is started, so nothing new comes up.
                await self._sandbox.end_processes()
                await self._sandbox.prepare_pause()

            await self._freeze()
            await failpoints.reach("pause.frozen", self._sandbox)
        except BaseException:
            await self._thaw()
            raise

        self.is_paused = True
        self.on_change()
        self._sandbox.audit.note("paused")
        self.report = PauseReport(files_only=files_only)
        await self._give_memory_back(self.report)
        return True

    async def _resume(self, *, files_only: bool) -> bool:
        if not self.is_paused:
            return False

        await failpoints.reach("resume.begin", self._sandbox)

        if files_only and self.report is not None and not self.report.files_only:
            await self._drop_processes()

        await self._thaw()
        self.is_paused = False
        self.on_change()
        self.report = None
        self._sandbox.audit.note("resumed")
        await failpoints.reach("resume.thawed", self._sandbox)
        return True

    async def _freeze(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _FREEZE_SECONDS
        pause_seconds = _FIRST_LOOK_SECONDS

        # A sandbox that is being killed must not be frozen again.
        while self._sandbox.alive:
            if await self._is_still():
                return

            if loop.time() > deadline:
                raise SandboxError(
                    f"sandbox {visible_line(self._sandbox.id)!r} cannot be paused: some of it does not stop",
                    hint="it runs on; try again, or kill it",
                )

            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_LOOK_SECONDS)

        raise self._sandbox.closed_error()

    async def _drop_processes(self) -> None:
        """Ends the processes that the pause has kept, while the clock is still stopped."""
        if self._sandbox.guest.can_freeze:
            # Init can answer only while it runs.
            self._sandbox.guest.thaw()

        try:
            await self._sandbox.end_processes()
        except BaseException:
            await self._freeze()
            raise

    async def _give_memory_back(self, report: PauseReport) -> None:
        """Asks the kernel to reclaim the sandbox's memory; the pause neither fails nor waits long for it."""
        guest = self._sandbox.guest
        before = _counted(guest)
        self.report = replace(
            report, memory_before_bytes=before, why=f"it takes more than {_OFFER_SECONDS:g} s"
        )
        offer = asyncio.ensure_future(asyncio.to_thread(guest.give_memory_back))
        await asyncio.wait([offer], timeout=_OFFER_SECONDS)

        if not offer.done():
            # The result is not needed.
            consume_result(offer)
            return

        error = offer.exception()
        means = "" if error is not None else offer.result()
        after = _counted(guest)
        self.report = replace(
            report,
            memory_before_bytes=before,
            memory_after_bytes=after,
            reclaimed_bytes=max(0, (before or 0) - (after or 0)) if means else 0,
            means=means,
            why=_KEPT if error is None else _why_not(error),
        )

    async def _is_still(self) -> bool:
        if self._sandbox.guest.can_freeze:
            return self._sandbox.guest.freeze()

        try:
            value, _ = await self._ask_init("stop_all")
        except (InitError, InitGoneError):
            return False

        return bool(value["stopped"])

    async def _thaw(self) -> None:
        if self._sandbox.guest.can_freeze:
            self._sandbox.guest.thaw()
        elif self._sandbox.alive:
            await self._continue()

        self._sandbox.clock.start()

    async def _continue(self) -> None:
        try:
            await self._ask_init("continue_all")
        except (InitError, InitGoneError):
            return


async def pause_or_end(pause: Callable[[], Awaitable[object]], end: Callable[[], None]) -> None:
    """Pauses a sandbox that must not run on; if that fails for any reason, ends it."""
    try:
        await pause()
    except Exception:  # noqa: BLE001 - not reported to any caller; the sandbox must not run on
        end()


def _why_not(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "this kernel has no way to ask for it"

    # Without the path on the host.
    return visible_line(error.strerror or "") if isinstance(error, OSError) else type(error).__name__


def _counted(guest: Guest) -> int | None:
    try:
        return guest.memory_bytes()
    except OSError:
        # It has ended meanwhile.
        return None
