"""Makes sandboxes, and keeps some ready, for the engine.

It keeps templates started and their pools filled, and hands each sandbox out once; it must not manage a sandbox
afterwards. Whether a sandbox is isolated well enough for its caller is checked by `isolation_selector`.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import resource
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, replace

from fumehood import failpoints
from fumehood.cancellation import wait_shared, when_done
from fumehood.egress.gateway import Route
from fumehood.egress.route import prepare_route
from fumehood.engine.admission import Admission
from fumehood.engine.egress import route_envs
from fumehood.engine.pool import Pool
from fumehood.engine.sandbox import LiveSandbox, SandboxLaunch
from fumehood.engine.start_command import start_and_wait
from fumehood.errors import (
    CapacityError,
    IsolationUnavailableError,
    SandboxError,
    SandboxStartError,
    TemplateError,
    reason_of,
)
from fumehood.log import events
from fumehood.runtimes.base import Runtime, Spawner
from fumehood.runtimes.own_interpreters import start_template
from fumehood.templates.recipe import SkippedModule
from fumehood.templates.store import TemplateStore, hint_of_names
from fumehood.values.limits import Limits
from fumehood.values.network import Network
from fumehood.values.requests import SandboxSpec
from fumehood.values.sandbox import DEFAULT_ISOLATION, Isolation, IsolationLevel
from fumehood.values.template import DEFAULT_PRELOAD, Template

_CLOSED = "the engine was closed"
# After a failed start: how long to wait for a report that the template's processes have died.
_LAST_WORDS_SECONDS = 0.5


@dataclass(slots=True)
class _Started:
    """A started template, with the spawner of its sandboxes and their pool."""

    template: Template
    spawner: Spawner
    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The parts and settings that sandboxes are made with.

    Attributes:
        runtime: The runtime for isolation.
        pool_size: How many sandboxes of each template are kept ready.
        store: The templates that are not defined here.
        weaker: Other runtimes, the strongest first; only for callers that name such a level.
        required_level: The level that a sandbox must reach if its caller names none.
        own_interpreters: Whether each sandbox has an interpreter of its own, whatever its template says.
        preload: The modules that the template `default` imports once, before any sandbox is made.
    """

    runtime: Runtime
    pool_size: int
    store: TemplateStore
    weaker: tuple[Runtime, ...] = ()
    required_level: IsolationLevel = DEFAULT_ISOLATION
    own_interpreters: bool = False
    preload: tuple[str, ...] = DEFAULT_PRELOAD


class Provisioner:
    """Makes the sandboxes of one runtime, and hands them out from its pools.

    Args:
        config: The settings with which they are made.
        admission: Checks whether there is room for a sandbox of a pool.
        make_id: Returns an id for a new sandbox.
        on_end: Called when no process of a sandbox is left.
    """

    def __init__(
        self,
        config: EngineConfig,
        admission: Admission,
        make_id: Callable[[], str],
        on_end: Callable[[LiveSandbox], None],
    ) -> None:
        self._config = config
        self._admission = admission
        self._make_id = make_id
        self._on_end = on_end
        self._templates: dict[str, Template] = {"default": Template(preload=config.preload)}
        self._starting: dict[str, asyncio.Task[_Started]] = {}
        # The publication of each template that was found in the store, and the templates that a newer one has replaced.
        self._publications: dict[str, object] = {}
        self._replaced: list[asyncio.Task[_Started]] = []
        # Sandboxes of the pools, and sandboxes that are being made.
        self._unclaimed: set[LiveSandbox] = set()
        # What isolates the sandboxes that it makes; None before the first one.
        self.isolation: Isolation | None = None
        self._closed = False

    def define(self, template: Template) -> None:
        """Registers a template under its name; one with living processes is not replaced."""
        task = self._starting.get(template.name)

        if task is not None and not _is_over(task) and self._templates[template.name] != template:
            raise TemplateError(
                template=template.name,
                reason="it is already in use, with another definition",
                hint="choose another name",
            )

        self._templates[template.name] = template
        self._publications.pop(template.name, None)

    async def obtain(self, spec: SandboxSpec) -> LiveSandbox:
        """Hands out a sandbox."""
        try:
            sandbox = await self._obtain(spec)
        except asyncio.CancelledError:
            if self._closed:
                raise SandboxStartError(step="start", reason=_CLOSED) from None

            raise

        self._unclaimed.discard(sandbox)
        return sandbox

    async def wait_warm(self, template: str) -> None:
        """Returns when the template's pool is full; raises the error that prevents its filling."""
        started = await self._started(template)
        await started.pool.wait_full()

    def pools(self) -> list[Pool]:
        """Returns the pools of the templates that are started."""
        done = [task for task in self._starting.values() if task.done() and not task.cancelled()]
        return [task.result().pool for task in done if task.exception() is None]

    async def left_out(self, template: str) -> tuple[SkippedModule, ...]:
        """Returns the modules of a template's preload list that are not preloaded; starts it if necessary."""
        started = await self._started(template)
        return started.spawner.left_out

    async def close(self) -> None:
        """Stops making sandboxes, and ends those of the pools."""
        self._closed = True

        for task in (*self._starting.values(), *self._replaced):
            if not task.done():
                task.cancel()

        for started in await self._all_started():
            started.pool.close()

        # The task that makes one may not notice its cancellation before the processes of the template end.
        for sandbox in list(self._unclaimed):
            sandbox.end("host_closed")

    async def aclose(self) -> None:
        """Ends the processes of all templates."""
        for started in await self._all_started():
            await started.spawner.aclose()

        self._config.store.close()

    async def _all_started(self) -> list[_Started]:
        tasks = (*self._starting.values(), *self._replaced)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return [result for result in results if isinstance(result, _Started)]

    async def _obtain(self, spec: SandboxSpec) -> LiveSandbox:
        """Takes a sandbox of the pool, or makes one; retries once if the template's processes die meanwhile."""
        if isinstance(spec.template, Template):
            self.define(spec.template)

        route = await prepare_route(spec.network)
        started = await self._started(spec.template_name)
        pooled = started.pool.take() if _fits_the_pool(spec.limits, started) else None

        if pooled is not None and await self._assigned(
            pooled, _envs(started.spawner, spec, route), spec.limits
        ):
            return await _with_network(pooled, route)

        try:
            return await _with_network(
                await self._make(started, spec.limits, _envs(started.spawner, spec, route)), route
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
        return await _with_network(
            await self._make(started, spec.limits, _envs(started.spawner, spec, route)), route
        )

    async def _assigned(self, sandbox: LiveSandbox, envs: dict[str, str], limits: Limits) -> bool:
        """Applies a caller's settings to a sandbox of the pool; returns False if it has died there."""
        try:
            await failpoints.reach("pool.adopt", sandbox)
            await sandbox.assign(limits, envs)
        except SandboxError:
            sandbox.end("died")
        except BaseException:
            sandbox.end("killed")
            raise

        return sandbox.alive

    async def _started(self, name: str) -> _Started:
        publication = None

        if name not in self._templates or name in self._publications:
            publication = self._config.store.publication(name)

            if self._publications.get(name, publication) != publication:
                self._forget(name)

        template = self._templates.get(name)

        if template is None:
            found = await asyncio.to_thread(_find, self._config.store, name, list(self._templates))
            template = self._templates.setdefault(name, found)

            if template is found:
                self._publications[name] = publication

        if self._closed:
            # It may have been closed during the lookup; then the store must be closed here.
            self._config.store.close()
            raise SandboxStartError(step="start", reason=_CLOSED)

        task = self._starting.get(name)

        if task is None or _is_over(task):
            task = asyncio.create_task(self._start(template))
            self._starting[name] = task

        return await wait_shared(task)

    def _forget(self, name: str) -> None:
        """Drops a template that was rebuilt or removed: its sandboxes continue, and no new ones are made from it.

        Its processes, of which its sandboxes are children, end with the engine.
        """
        del self._templates[name]
        del self._publications[name]

        if (task := self._starting.pop(name, None)) is not None:
            self._replaced.append(task)
            task.add_done_callback(_close_pool)

    async def _start(self, template: Template) -> _Started:
        await failpoints.reach("template.start")

        if self._config.own_interpreters:
            template = replace(template, own_interpreter=True)

        spawner = await self._start_spawner(template)
        usual = SandboxSpec(template=template, limits=_usual_limits(template))
        # The settings of a caller that gives none: with others, the context in the pool would have to be replaced.
        envs = _envs(spawner, usual, await prepare_route(usual.network))

        async def make() -> LiveSandbox:
            self._admission.check_machine()
            sandbox = await self._make(started, usual.limits, envs)
            try:
                await failpoints.reach("pool.rehearse", sandbox)
                await sandbox.rehearse()
            except BaseException:
                sandbox.end("killed")
                raise

            return sandbox

        started = _Started(template, spawner, Pool(template.name, self._config.pool_size, make))
        started.pool.fill()
        # Without a request id: the end comes long after the request that has started the template.
        when_done(spawner.ended, self._note_template_end, started, context=Context())
        return started

    async def _start_spawner(self, template: Template) -> Spawner:
        level, begun = self._config.runtime.level, time.monotonic()
        try:
            spawner = await start_template(self._config.runtime, template)
        except IsolationUnavailableError:
            # A fault of this machine and not of the template; the selector logs it.
            raise
        except Exception as error:
            events.TEMPLATE_FAILED.log(
                template=template.name,
                isolation_level=level,
                reason=reason_of(error),
                duration_seconds=time.monotonic() - begun,
            )
            raise

        events.TEMPLATE_STARTED.log(
            template=template.name,
            isolation_level=level,
            own_interpreter=template.own_interpreter,
            left_out=len(spawner.left_out),
            duration_seconds=time.monotonic() - begun,
        )
        return spawner

    def _note_template_end(self, started: _Started) -> None:
        started.pool.close()
        name, level = started.template.name, self._config.runtime.level

        if self._closed:
            events.TEMPLATE_ENDED.log(template=name, isolation_level=level)
        else:
            events.TEMPLATE_DIED.log(template=name, isolation_level=level)

    def _note_isolation(self, isolation: Isolation) -> None:
        """Stores the isolation of the first sandbox, and logs the layers that are missing or weaker."""
        if self.isolation is not None:
            return

        self.isolation = isolation

        if isolation.missing:
            events.ISOLATION_WEAKER.log(
                isolation_level=isolation.level,
                layers={layer.name: f"{layer.state}: {layer.why}" for layer in isolation.missing},
                way_out="`fumehood doctor`",
            )

    async def _make(self, started: _Started, limits: Limits, envs: dict[str, str]) -> LiveSandbox:
        launching = SandboxLaunch(
            self._make_id(),
            limits,
            envs,
            template_name=started.template.name,
            own_interpreter=started.template.own_interpreter,
            workdir=started.spawner.workdir,
        )
        launching.languages = started.template.language_versions
        try:
            guest = await started.spawner.spawn(launching.sandbox_id, limits, launching.first_context)
        except OSError as error:
            launching.abandon()
            raise _exhausted(error) from None
        except BaseException:
            launching.abandon()
            raise

        sandbox = LiveSandbox(launching, guest, self._ended)
        self._unclaimed.add(sandbox)
        try:
            await failpoints.reach("create.prepare", sandbox)
            await sandbox.prepare()

            if started.template.start is not None:
                await start_and_wait(sandbox, started.template.start, started.spawner.guest_envs)

            await failpoints.reach("create.ready", sandbox)
            self._note_isolation(guest.isolation)
        except asyncio.CancelledError:
            # The caller has given up, or the pool was closed: nothing is wrong with the sandbox.
            sandbox.end("killed")
            raise
        except BaseException:
            sandbox.end("died")
            raise

        if not sandbox.alive:
            raise SandboxStartError(step="start", reason="it died at once")

        return sandbox

    def _ended(self, sandbox: LiveSandbox) -> None:
        self._unclaimed.discard(sandbox)
        self._on_end(sandbox)


def _find(store: TemplateStore, name: str, known: list[str]) -> Template:
    template = store.find(name)

    if template is None:
        hint = hint_of_names(name, [*known, *store.names()])
        raise TemplateError(template=name, reason="no template has this name", hint=hint)

    return template


def _close_pool(task: asyncio.Task[_Started]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().pool.close()


def _is_over(task: asyncio.Task[_Started]) -> bool:
    """Whether a template's start has failed, or its zygote has ended since; if so, the next call restarts it."""
    if not task.done():
        return False

    return task.cancelled() or task.exception() is not None or task.result().spawner.ended.done()


async def _with_network(sandbox: LiveSandbox, route: Route) -> LiveSandbox:
    """Sets the network of a sandbox that is not handed out yet."""
    if route.network == Network():
        return sandbox

    try:
        await sandbox.use_route(route)
    except BaseException:
        sandbox.end("killed")
        raise

    return sandbox


# What was refused is refused again: without a network pip cannot succeed later than at once, and with names of hosts it
# is likely that the index is none of them. A lost connection is worth one more try.
_PIP_RETRIES = {"none": {"PIP_RETRIES": "0"}, "listed": {"PIP_RETRIES": "1"}}


def _envs(spawner: Spawner, spec: SandboxSpec, route: Route) -> dict[str, str]:
    return {
        **spawner.guest_envs,
        **_thread_envs(spec.limits),
        **_PIP_RETRIES.get(spec.network.level, {}),
        **route_envs(route),
        **spec.envs,
    }


def _thread_envs(limits: Limits) -> dict[str, str]:
    """Returns the variables that bound the threads of OpenMP, which counts processors by affinity and ignores /sys."""
    return {} if limits.cpu_cores is None else {"OMP_NUM_THREADS": str(math.ceil(limits.cpu_cores))}


def _exhausted(error: OSError) -> SandboxStartError:
    """Returns the error for exhausted resources of the host."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        used, (soft, _) = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
        return CapacityError(resource="open files of this process (ulimit -n)", used=used, maximum=soft)

    return SandboxStartError(step="make its pipes, sockets and control group", reason=str(error))


def _usual_limits(template: Template) -> Limits:
    """Returns the limits of the sandboxes that its pool has ready."""
    return replace(Limits(), **template.limits)


def _fits_the_pool(limits: Limits, started: _Started) -> bool:
    """Whether a sandbox that was made with the default limits can be changed to these limits."""
    usual = _usual_limits(started.template)
    return all(getattr(limits, name) == getattr(usual, name) for name in started.spawner.fixed_limits)
