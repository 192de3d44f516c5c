"""The supervisor: every sandbox of this host, from its making to its end.

Runs in the host process, on the engine's loop, and knows sandboxes only through the ports of the runtimes. It
keeps templates started and pools filled, hands sandboxes out under ids that cannot be guessed, ends them when
their time is over, and remembers for a while how each one ended.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from fumehood.backends.requests import SandboxSpec
from fumehood.errors import (
    CapacityError,
    FumehoodError,
    IsolationUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    TemplateError,
)
from fumehood.host.live_sandbox import Birth, LiveSandbox
from fumehood.host.pool import Pool
from fumehood.limits import Limits
from fumehood.models import Capacity, SandboxInfo
from fumehood.runtimes.base import Runtime, Spawner
from fumehood.templates.store import TemplateStore, hint_of_names
from fumehood.templates.template import Template

_REMEMBERED = 10_000
_CLOSED = "the engine was closed"
# How long a sandbox that did not start waits for the news that the template's processes have died.
_LAST_WORDS_SECONDS = 0.5


@dataclass(slots=True)
class _Started:
    """A template that is ready to make sandboxes."""

    template: Template
    spawner: Spawner
    pool: Pool


@dataclass(slots=True)
class _Entry:
    """One sandbox that was handed out."""

    sandbox: LiveSandbox
    spec: SandboxSpec
    started_at: datetime
    ends_at: datetime | None = None
    clock: asyncio.TimerHandle | None = None
    idle_clock: asyncio.TimerHandle | None = None


class Supervisor:
    """Keeps the sandboxes of one host.

    Args:
        runtime: How isolation is made.
        pool_size: How many sandboxes of each template are kept ready.
        max_sandboxes: How many may live at once, those of the pool not counted.
        store: Where templates are that nobody has defined here.
    """

    def __init__(self, runtime: Runtime, *, pool_size: int, max_sandboxes: int, store: TemplateStore) -> None:
        self._runtime = runtime
        self._pool_size = pool_size
        self._max_sandboxes = max_sandboxes
        self._store = store
        self._templates: dict[str, Template] = {"default": Template()}
        self._starting: dict[str, asyncio.Task[_Started]] = {}
        self._entries: dict[str, _Entry] = {}
        self._ended: OrderedDict[str, Callable[[], FumehoodError]] = OrderedDict()
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

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Hands out a sandbox."""
        if len(self._entries) >= self._max_sandboxes:
            raise CapacityError(resource="sandboxes", used=len(self._entries), maximum=self._max_sandboxes)

        try:
            sandbox = await self._obtain(spec)
        except asyncio.CancelledError:
            if self._closed:
                raise SandboxStartError(step="start", reason=_CLOSED) from None

            raise

        missing = sandbox.guest.isolation.missing

        if spec.strict and missing:
            sandbox.end("killed")
            await asyncio.shield(sandbox.guest.ended)
            raise IsolationUnavailableError(
                layer=", ".join(layer.name for layer in missing),
                reason="; ".join(layer.why for layer in missing),
                how_to_get_it="run `fumehood doctor`, or leave `strict` away and read `get_info().isolation`",
            )

        entry = _Entry(sandbox, spec, datetime.now(UTC))
        self._entries[sandbox.id] = entry
        self._arm(entry, spec.timeout_seconds)
        self._arm_idle(entry)
        return self._info(entry)

    def find(self, sandbox_id: str) -> LiveSandbox:
        """Returns a living sandbox.

        Raises:
            SandboxNotFoundError: It never lived here.
            SandboxClosedError: It has ended.
        """
        return self._entry(sandbox_id).sandbox

    def info(self, sandbox_id: str) -> SandboxInfo:
        """Describes a living sandbox."""
        return self._info(self._entry(sandbox_id))

    def list(self, owner: str | None = None) -> tuple[SandboxInfo, ...]:
        """Describes all living sandboxes, or those of one owner, the oldest first."""
        return tuple(
            self._info(entry)
            for entry in self._entries.values()
            if entry.sandbox.alive and owner in (None, entry.spec.owner)
        )

    def capacity(self) -> Capacity:
        """Tells what there is room for."""
        raise NotImplementedError

    async def pause(self, sandbox_id: str) -> bool:
        """Freezes a sandbox; false if it is paused already."""
        raise NotImplementedError

    async def resume(self, sandbox_id: str) -> bool:
        """Lets a paused sandbox go on; false if it runs."""
        raise NotImplementedError

    async def kill(self, sandbox_id: str, *, wait: bool) -> bool:
        """Ends a sandbox; returns when nothing of it is left, or without `wait` as soon as its end is certain."""
        entry = self._entries.get(sandbox_id)

        if entry is None:
            return False

        lived = entry.sandbox.alive
        entry.sandbox.end("killed")

        if wait:
            await asyncio.shield(entry.sandbox.guest.ended)

        return lived

    def set_timeout(self, sandbox_id: str, timeout_seconds: float | None) -> None:
        """Lets a sandbox live for so long from now on."""
        self._arm(self._entry(sandbox_id), timeout_seconds)

    async def wait_warm(self, template: str = "default") -> None:
        """Returns when the template's pool is full."""
        started = await self._started(template)
        await started.pool.wait_full()

    async def aclose(self) -> None:
        """Ends everything."""
        self._closed = True
        started = list(self._starting.values())

        for task in started:
            if not task.done():
                task.cancel()

        for result in await asyncio.gather(*started, return_exceptions=True):
            if isinstance(result, _Started):
                result.pool.close()

        for entry in list(self._entries.values()):
            entry.sandbox.end("host_closed")

        for result in await asyncio.gather(*started, return_exceptions=True):
            if isinstance(result, _Started):
                await result.spawner.aclose()

        self._store.close()

    # -- templates

    async def _obtain(self, spec: SandboxSpec) -> LiveSandbox:
        """Takes a sandbox of the pool, or makes one; if the template's processes die under it, once more."""
        if isinstance(spec.template, Template):
            self.define(spec.template)

        started = await self._started(_name(spec.template))
        pooled = started.pool.take() if _fits_the_pool(spec.limits, started) else None

        if pooled is not None and await self._adopted(pooled, _envs(started, spec), spec.limits):
            return pooled

        try:
            return await self._make(started, spec.limits, _envs(started, spec))
        except CapacityError:
            raise
        except SandboxStartError:
            await asyncio.wait([started.spawner.ended], timeout=_LAST_WORDS_SECONDS)

            if not started.spawner.ended.done():
                raise

        if isinstance(spec.template, Template):
            self.define(spec.template)

        started = await self._started(_name(spec.template))
        return await self._make(started, spec.limits, _envs(started, spec))

    async def _adopted(self, sandbox: LiveSandbox, envs: dict[str, str], limits: Limits) -> bool:
        """Makes a sandbox of the pool its user's; false if it has died there."""
        try:
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
        if self._closed:
            raise SandboxStartError(step="start", reason=_CLOSED)

        template = self._templates.get(name)

        if template is None:
            # Once: what this process uses stays as it was found.
            found = await asyncio.to_thread(_find, self._store, name, list(self._templates))
            template = self._templates.setdefault(name, found)

        task = self._starting.get(name)

        if task is None or _is_over(task):
            task = asyncio.create_task(self._start(template))
            self._starting[name] = task

        return await asyncio.shield(task)

    async def _start(self, template: Template) -> _Started:
        spawner = await self._runtime.start(template)

        async def make() -> LiveSandbox:
            sandbox = await self._make(started, Limits(), spawner.guest_envs)
            try:
                await sandbox.rehearse()
            except BaseException:
                sandbox.end("killed")
                raise

            self._pooled[sandbox.id] = sandbox
            return sandbox

        started = _Started(template, spawner, Pool(self._pool_size, make))
        started.pool.fill()
        spawner.ended.add_done_callback(lambda _: started.pool.close())
        return started

    async def _make(self, started: _Started, limits: Limits, envs: dict[str, str]) -> LiveSandbox:
        birth = Birth(limits, envs)
        try:
            guest = await started.spawner.spawn(birth.sandbox_id, limits, birth.first_context)
        except OSError as error:
            birth.abandon()
            raise _exhausted(error) from None
        except BaseException:
            birth.abandon()
            raise

        sandbox = LiveSandbox(birth, guest, self._note_end)
        try:
            await sandbox.prepare()
        except BaseException:
            sandbox.end("died")
            raise

        if not sandbox.alive:
            raise SandboxStartError(step="start", reason="it died at once")

        return sandbox

    # -- entries

    def _entry(self, sandbox_id: str) -> _Entry:
        entry = self._entries.get(sandbox_id)

        if entry is not None and entry.sandbox.alive:
            return entry

        if entry is not None:
            raise entry.sandbox.closed_error()

        ended = self._ended.get(sandbox_id)

        if ended is not None:
            raise ended()

        raise SandboxNotFoundError(sandbox_id=sandbox_id)

    def _info(self, entry: _Entry) -> SandboxInfo:
        return SandboxInfo(
            id=entry.sandbox.id,
            template=_name(entry.spec.template),
            state="running" if entry.sandbox.alive else "ending",
            started_at=entry.started_at,
            ends_at=entry.ends_at,
            limits=entry.spec.limits,
            isolation=entry.sandbox.guest.isolation,
            idle_timeout_seconds=entry.spec.idle_timeout_seconds,
            metadata=entry.spec.metadata,
            owner=entry.spec.owner,
            on_timeout=entry.spec.on_timeout,
            auto_resume=entry.spec.auto_resume,
        )

    def _note_end(self, sandbox: LiveSandbox) -> None:
        self._pooled.pop(sandbox.id, None)
        entry = self._entries.pop(sandbox.id, None)

        if entry is None:
            return

        for clock in (entry.clock, entry.idle_clock):
            if clock is not None:
                clock.cancel()

        self._ended[sandbox.id] = sandbox.epitaph()

        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def _arm(self, entry: _Entry, timeout_seconds: float | None) -> None:
        if entry.clock is not None:
            entry.clock.cancel()
            entry.clock = None

        entry.spec = replace(entry.spec, timeout_seconds=timeout_seconds)
        entry.ends_at = None

        if timeout_seconds is not None:
            entry.ends_at = datetime.now(UTC) + timedelta(seconds=timeout_seconds)
            loop = asyncio.get_running_loop()
            entry.clock = loop.call_later(timeout_seconds, entry.sandbox.end, "expired")

    def _arm_idle(self, entry: _Entry) -> None:
        """Sets the clock to when the sandbox will have been idle for long enough, if nobody uses it until then."""
        allowed = entry.spec.idle_timeout_seconds

        if allowed is None:
            return

        now = time.monotonic()
        left = allowed - (now - entry.sandbox.last_used)

        if entry.sandbox.busy:
            left = allowed

        if left <= 0:
            entry.sandbox.end("idle")
            return

        entry.idle_clock = asyncio.get_running_loop().call_later(left, self._arm_idle, entry)


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


def _envs(started: _Started, spec: SandboxSpec) -> dict[str, str]:
    return {**started.spawner.guest_envs, **spec.envs}


def _exhausted(error: OSError) -> SandboxStartError:
    """What the host itself has run out of, while it made a sandbox."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        used, (soft, _) = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
        return CapacityError(resource="open files of this process (ulimit -n)", used=used, maximum=soft)

    return SandboxStartError(step="make its pipes, sockets and control group", reason=str(error))


def _name(template: str | Template) -> str:
    return template.name if isinstance(template, Template) else template


def _fits_the_pool(limits: Limits, started: _Started) -> bool:
    """Whether a sandbox that was made with the default limits can get these."""
    default = Limits()
    return all(getattr(limits, name) == getattr(default, name) for name in started.spawner.fixed_limits)
