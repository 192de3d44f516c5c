"""The nursery: where sandboxes are made, and wait for somebody who needs one.

Runs in the host process, on the engine's loop. It keeps templates started and their pools filled, and hands
each sandbox out once. What becomes of it then is not its business.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, replace

from fumehood import failpoints
from fumehood.backends.requests import SandboxSpec
from fumehood.egress.gateway import Route
from fumehood.egress.preparing import prepare_route
from fumehood.errors import CapacityError, SandboxError, SandboxStartError, TemplateError
from fumehood.host.admission import Admission
from fumehood.host.live_sandbox import Birth, LiveSandbox
from fumehood.host.pool import Pool
from fumehood.isolation_levels import DEFAULT_FLOOR, IsolationLevel
from fumehood.limits import Limits
from fumehood.network import Network
from fumehood.runtimes.base import Runtime, Spawner
from fumehood.runtimes.own_interpreters import start_template
from fumehood.templates.preloads import LeftOut
from fumehood.templates.store import TemplateStore, hint_of_names
from fumehood.templates.template import Template

_CLOSED = "the engine was closed"
# How long a sandbox that did not start waits for the news that the template's processes have died.
_LAST_WORDS_SECONDS = 0.5


@dataclass(slots=True)
class _Started:
    """A template that is ready to make sandboxes."""

    template: Template
    spawner: Spawner
    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What sandboxes are made with.

    Attributes:
        runtime: How isolation is made.
        pool_size: How many sandboxes of each template are kept ready.
        store: Where templates are that nobody has defined here.
        weaker: Other ways to make it, the strongest first; only for callers that name such a level.
        floor: The level that a sandbox must reach whose caller names none.
        own_interpreters: Whether each sandbox has an interpreter of its own, whatever its template says.
    """

    runtime: Runtime
    pool_size: int
    store: TemplateStore
    weaker: tuple[Runtime, ...] = ()
    floor: IsolationLevel = DEFAULT_FLOOR
    own_interpreters: bool = False


class Nursery:
    """Makes sandboxes.

    Args:
        means: What they are made with.
        admission: Says whether there is room for one that nobody has asked for yet.
        make_id: Names a new one.
        on_end: Called when nothing of one lives any more.
    """

    def __init__(
        self,
        means: Means,
        admission: Admission,
        make_id: Callable[[], str],
        on_end: Callable[[LiveSandbox], None],
    ) -> None:
        self._means = means
        self._admission = admission
        self._make_id = make_id
        self._on_end = on_end
        self._templates: dict[str, Template] = {"default": Template()}
        self._starting: dict[str, asyncio.Task[_Started]] = {}
        self._pooled: dict[str, LiveSandbox] = {}
        self._closed = False

    def define(self, template: Template) -> None:
        """Makes a template known under its name; one whose processes live is not replaced."""
        task = self._starting.get(template.name)

        if task is not None and not _is_over(task) and self._templates[template.name] != template:
            raise TemplateError(
                template=template.name,
                reason="it is already in use, with another definition",
                hint="choose another name",
            )

        self._templates[template.name] = template

    async def obtain(self, spec: SandboxSpec) -> LiveSandbox:
        """Hands out a sandbox."""
        try:
            return await self._obtain(spec)
        except asyncio.CancelledError:
            if self._closed:
                raise SandboxStartError(step="start", reason=_CLOSED) from None

            raise

    async def wait_warm(self, template: str) -> None:
        """Returns when the template's pool is full."""
        started = await self._started(template)
        await started.pool.wait_full()

    async def left_out(self, template: str) -> tuple[LeftOut, ...]:
        """Returns the modules of a template's preload list that are not preloaded; starts it unless it has started."""
        started = await self._started(template)
        return started.spawner.left_out

    async def close(self) -> None:
        """Makes no more, and ends those that nobody has."""
        self._closed = True

        for task in self._starting.values():
            if not task.done():
                task.cancel()

        for started in await self._all_started():
            started.pool.close()

    async def aclose(self) -> None:
        """Ends the processes of all templates."""
        for started in await self._all_started():
            await started.spawner.aclose()

        self._means.store.close()

    async def _all_started(self) -> list[_Started]:
        results = await asyncio.gather(*self._starting.values(), return_exceptions=True)
        return [result for result in results if isinstance(result, _Started)]

    async def _obtain(self, spec: SandboxSpec) -> LiveSandbox:
        """Takes a sandbox of the pool, or makes one; if the template's processes die under it, once more."""
        if isinstance(spec.template, Template):
            self.define(spec.template)

        route = await prepare_route(spec.network)
        started = await self._started(spec.template_name)
        pooled = started.pool.take() if _fits_the_pool(spec.limits, started) else None

        if pooled is not None and await self._adopted(pooled, _envs(started, spec, route), spec.limits):
            return await _with_network(pooled, route)

        try:
            return await _with_network(
                await self._make(started, spec.limits, _envs(started, spec, route)), route
            )
        except CapacityError:
            raise
        except SandboxStartError:
            await asyncio.wait([started.spawner.ended], timeout=_LAST_WORDS_SECONDS)

            if not started.spawner.ended.done():
                raise

        if isinstance(spec.template, Template):
            self.define(spec.template)

        started = await self._started(spec.template_name)
        return await _with_network(await self._make(started, spec.limits, _envs(started, spec, route)), route)

    async def _adopted(self, sandbox: LiveSandbox, envs: dict[str, str], limits: Limits) -> bool:
        """Makes a sandbox of the pool its user's; false if it has died there."""
        try:
            await failpoints.reach("pool.adopt", sandbox)
            await sandbox.adopt(limits, envs)
        except SandboxError:
            sandbox.end("died")
        except BaseException:
            sandbox.end("killed")
            raise
        finally:
            self._pooled.pop(sandbox.id, None)

        return sandbox.alive

    async def _started(self, name: str) -> _Started:
        template = self._templates.get(name)

        if template is None:
            # Once: what this process uses stays as it was found.
            found = await asyncio.to_thread(_find, self._means.store, name, list(self._templates))
            template = self._templates.setdefault(name, found)

        if self._closed:
            # Perhaps only since we looked; nobody else would let go of what was found.
            self._means.store.close()
            raise SandboxStartError(step="start", reason=_CLOSED)

        task = self._starting.get(name)

        if task is None or _is_over(task):
            task = asyncio.create_task(self._start(template))
            self._starting[name] = task

        return await asyncio.shield(task)

    async def _start(self, template: Template) -> _Started:
        await failpoints.reach("template.start")

        if self._means.own_interpreters:
            template = replace(template, own_interpreter=True)

        spawner = await start_template(self._means.runtime, template)

        async def make() -> LiveSandbox:
            self._admission.check_machine()
            sandbox = await self._make(started, Limits(), spawner.guest_envs)
            try:
                await failpoints.reach("pool.rehearse", sandbox)
                await sandbox.rehearse()
            except BaseException:
                sandbox.end("killed")
                raise

            self._pooled[sandbox.id] = sandbox
            return sandbox

        started = _Started(template, spawner, Pool(self._means.pool_size, make))
        started.pool.fill()
        spawner.ended.add_done_callback(lambda _: started.pool.close())
        return started

    async def _make(self, started: _Started, limits: Limits, envs: dict[str, str]) -> LiveSandbox:
        birth = Birth(self._make_id(), limits, envs, own_interpreter=started.template.own_interpreter)
        try:
            guest = await started.spawner.spawn(birth.sandbox_id, limits, birth.first_context)
        except OSError as error:
            birth.abandon()
            raise _exhausted(error) from None
        except BaseException:
            birth.abandon()
            raise

        sandbox = LiveSandbox(birth, guest, self._ended)
        try:
            await failpoints.reach("create.prepare", sandbox)
            await sandbox.prepare()
            await failpoints.reach("create.ready", sandbox)
        except BaseException:
            sandbox.end("died")
            raise

        if not sandbox.alive:
            raise SandboxStartError(step="start", reason="it died at once")

        return sandbox

    def _ended(self, sandbox: LiveSandbox) -> None:
        self._pooled.pop(sandbox.id, None)
        self._on_end(sandbox)


def _find(store: TemplateStore, name: str, known: list[str]) -> Template:
    template = store.find(name)

    if template is None:
        hint = hint_of_names(name, [*known, *store.names()])
        raise TemplateError(template=name, reason="no template has this name", hint=hint)

    return template


def _is_over(task: asyncio.Task[_Started]) -> bool:
    """True when a template's start has failed, or its zygote has ended since: the next call starts it anew."""
    if not task.done():
        return False

    return task.cancelled() or task.exception() is not None or task.result().spawner.ended.done()


async def _with_network(sandbox: LiveSandbox, route: Route) -> LiveSandbox:
    """Gives a sandbox that nobody has yet its way out."""
    if route.network == Network():
        return sandbox

    try:
        await sandbox.use_route(route)
    except BaseException:
        sandbox.end("killed")
        raise

    return sandbox


def _envs(started: _Started, spec: SandboxSpec, route: Route) -> dict[str, str]:
    return {**started.spawner.guest_envs, **route.envs, **spec.envs}


def _exhausted(error: OSError) -> SandboxStartError:
    """What the host itself has run out of, while it made a sandbox."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        used, (soft, _) = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
        return CapacityError(resource="open files of this process (ulimit -n)", used=used, maximum=soft)

    return SandboxStartError(step="make its pipes, sockets and control group", reason=str(error))


def _fits_the_pool(limits: Limits, started: _Started) -> bool:
    """Whether a sandbox that was made with the default limits can get these."""
    default = Limits()
    return all(getattr(limits, name) == getattr(default, name) for name in started.spawner.fixed_limits)
