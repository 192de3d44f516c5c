"""Own interpreters: each guest of a template has a jail init and a zygote of its own.

Runs in the host process, on the engine's loop, over any runtime. Guests of one zygote share its hash seed and its
addresses; guests of different zygotes do not. The price is the start of an interpreter for each guest, which is hidden
while the pool has one ready. The first interpreter is started with the template, to find out whether the template works
at all, and is used by the first guest. A failure of one interpreter must never affect the others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from fumehood.cancellation import abandon, cancel_once, when_done
from fumehood.errors import IsolationUnavailableError, SandboxStartError
from fumehood.runtimes.base import ContextLaunch, Guest, Runtime, Spawner
from fumehood.values.limits import Limits
from fumehood.values.template import Template

_STEP = "start an interpreter of its own"


async def start_template(runtime: Runtime, template: Template) -> Spawner:
    """Starts a template's processes: one interpreter for all guests or one for each, as the template specifies.

    Raises:
        IsolationUnavailableError: This machine lacks something; the error says what and how to get it.
        TemplateError: The template cannot be used.
    """
    started = await runtime.start(template)
    return OwnInterpreters(runtime, template, started) if template.own_interpreter else started


class OwnInterpreters(Spawner):
    """Starts separate template processes for each guest, which end with the guest.

    Args:
        runtime: Starts the processes.
        template: The template of the guests.
        started: The processes for the first guest, which are started already.
    """

    def __init__(self, runtime: Runtime, template: Template, started: Spawner) -> None:
        self.guest_envs = started.guest_envs
        self.workdir = started.workdir
        self.fixed_limits = started.fixed_limits
        self.left_out = started.left_out
        self.ended = asyncio.get_running_loop().create_future()
        self._runtime = runtime
        self._template = template
        self._unused: Spawner | None = started
        self._living: set[Spawner] = set()
        # More starts at once would only take processors from running ones.
        self._places = asyncio.Semaphore(os.cpu_count() or 1)
        self._starting: set[asyncio.Task[Spawner]] = set()
        self._cleanups: set[asyncio.Task[None]] = set()
        self._note(started)

    async def spawn(self, sandbox_id: str, limits: Limits, first: Callable[[], ContextLaunch]) -> Guest:
        spawner, self._unused = self._unused, None

        # It may have waited for long, and ended meanwhile.
        if spawner is None or spawner.ended.done():
            spawner = await self._start()

        try:
            return await spawner.spawn(sandbox_id, limits, first)
        finally:
            spawner.end_with_guests()

    def end_with_guests(self) -> None:
        unused, self._unused = self._unused, None

        if unused is not None:
            unused.end_with_guests()

        if not self.ended.done():
            self.ended.set_result(None)

    async def aclose(self) -> None:
        """Ends the processes of all guests."""
        self.end_with_guests()

        for task in self._starting:
            # It may be cleaning up already.
            cancel_once(task)

        closing = [asyncio.ensure_future(spawner.aclose()) for spawner in self._living]
        waiting = {*closing, *self._starting, *self._cleanups}

        if waiting:
            await asyncio.wait(waiting)

    async def _start(self) -> Spawner:
        if self.ended.done():
            raise SandboxStartError(step=_STEP, reason="the template is not in use any more")

        # A task, so that `aclose` need not wait until everything is imported.
        starting = asyncio.get_running_loop().create_task(self._begin())
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        try:
            return await starting
        except asyncio.CancelledError:
            # The start may have finished in the same moment.
            abandon(starting, lambda started: started.end_with_guests())
            raise

    async def _begin(self) -> Spawner:
        try:
            async with self._places:
                spawner = await self._runtime.start(self._template)
        except IsolationUnavailableError as error:
            # No layer is missing: the template has started here before.
            raise SandboxStartError(
                step=_STEP, reason=f"{error.step}: {error.reason}", hint=error.hint, logged=error.log_reason
            ) from None

        self._note(spawner)
        return spawner

    def _note(self, spawner: Spawner) -> None:
        self._living.add(spawner)
        when_done(spawner.ended, self._let_go, spawner)

    def _let_go(self, spawner: Spawner) -> None:
        self._living.discard(spawner)
        # Little is left to be released, but `aclose` must wait for it.
        cleanup = asyncio.get_running_loop().create_task(spawner.aclose())
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)
