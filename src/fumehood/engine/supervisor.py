"""The supervisor: every sandbox of this host, from the hand-out to the end.

It hands sandboxes out under ids that cannot be guessed as long as there is room, ends or pauses them when their time is
over, and remembers for a while how each one ended. Other modules make sandboxes (`provisioner`), time them
(`lifetime`) and log (`lifecycle_log`).
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import metadata
from sys import getsizeof
from typing import TYPE_CHECKING

from fumehood import failpoints
from fumehood.cancellation import wait_shared
from fumehood.engine.admission import Admission, AdmissionRules
from fumehood.engine.audit_records import AuditRecords
from fumehood.engine.audit_trail import listed
from fumehood.engine.cpu_fairness import CpuFairness
from fumehood.engine.family import Families
from fumehood.engine.feed import HostFeeds
from fumehood.engine.forks import Forking
from fumehood.engine.hand_out import all_or_none, check_hand_out
from fumehood.engine.identity import make_name, make_part, parse_name
from fumehood.engine.isolation_selector import IsolationSelector
from fumehood.engine.lifecycle_log import log_creation, log_end, logged_refusals
from fumehood.engine.lifetime import Lifetime
from fumehood.engine.listing import Listing
from fumehood.engine.pool import Warmth
from fumehood.engine.provisioner import EngineConfig, Provisioner
from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import (
    FumehoodError,
    InvalidArgumentError,
    SandboxClosedError,
    SandboxNotFoundError,
    SandboxPausedError,
)
from fumehood.log import events
from fumehood.log.request_ids import logged_request
from fumehood.values.charts import JsonValue
from fumehood.values.checks import check_labels
from fumehood.values.looking import Family, ListSandboxes, SandboxList
from fumehood.values.plain_data import as_data
from fumehood.values.requests import Forked, ForkRequest, SandboxSpec
from fumehood.values.sandbox import Capacity, Isolation, SandboxInfo
from fumehood.values.template import Template
from fumehood.values.watching import WatchEvents

if TYPE_CHECKING:
    from fumehood.engine.kept_records import KeptRecords

_REMEMBERED = 10_000


class Supervisor:
    """Keeps the sandboxes of one host.

    Args:
        config: The settings with which sandboxes are made.
        rules: When there is no room for another sandbox; sandboxes in pools do not count.
        host_id: The host's name, with which their ids begin.
        records: The audit records; None: they are kept in memory.
        kept: The records of sandboxes that have ended; None: they are not kept.
    """

    def __init__(
        self,
        config: EngineConfig,
        rules: AdmissionRules,
        host_id: str,
        records: AuditRecords | None = None,
        kept: KeptRecords | None = None,
    ) -> None:
        self.kept = kept
        self._host_id = host_id
        self.records = records or AuditRecords()
        self._incarnation = make_part()
        self._admission = Admission(config.runtime, rules)
        self._provisioner = IsolationSelector(
            config, lambda choice: Provisioner(choice, self._admission, self._new_id, self._note_end)
        )
        # Used by callers to read templates.
        self.templates = self._provisioner
        self._lifetimes: dict[str, Lifetime] = {}
        self._listing: Listing[Lifetime] = Listing()
        self._feeds = HostFeeds()
        self._families = Families()
        self._cpu_fairness = CpuFairness(self._lifetimes)
        self._ended: OrderedDict[str, Callable[[], FumehoodError]] = OrderedDict()
        self._coming = 0
        self._level = ""
        self.warmth = Warmth(self._provisioner.wait_warm)
        events.ENGINE_STARTED.log(
            host_id=host_id,
            isolation_levels=[runtime.level for runtime in (config.runtime, *config.weaker)],
            required_level=config.required_level,
            pool_size=config.pool_size,
            preload=config.preload,
            max_sandboxes=rules.max_sandboxes,
            memory_reserve_bytes=rules.memory_reserve_bytes,
            max_cpu_pressure=rules.max_cpu_pressure,
            own_interpreters=config.own_interpreters,
        )

    def define(self, template: Template) -> None:
        """Registers a template under its name; one with living processes is not replaced."""
        self._provisioner.define(template)

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Hands out a sandbox.

        Raises:
            InvalidArgumentError: The request names labels of a machine, which only a cluster can compare.
        """
        if spec.labels:
            allowed = "no labels: only the machines of a cluster have some. What describes a sandbox is its `metadata`"
            raise InvalidArgumentError(field="labels", value=dict(spec.labels), allowed=allowed)

        begun = time.monotonic()

        with logged_refusals(spec):
            self._admission.check_open(len(self._lifetimes))

            if spec.on_host_loss == "restore":
                self._admission.check_restorable(len(self._lifetimes))

            self._admission.check(len(self._lifetimes) + self._coming)
            self._coming += 1
            try:
                await failpoints.reach("create.admitted")
                sandbox = await self._provisioner.obtain(spec)
                await check_hand_out(spec, sandbox)
            finally:
                self._coming -= 1

            info = self._hand_out(sandbox, spec)

        log_creation(info, time.monotonic() - begun)
        return info

    def _hand_out(self, sandbox: LiveSandbox, spec: SandboxSpec, parent_id: str | None = None) -> SandboxInfo:
        self.records.begin(sandbox, spec, parent_id)
        self._level = sandbox.guest.isolation.level
        sandbox.given_envs = spec.envs
        lifetime = Lifetime(sandbox, spec, sandbox.pausing.pause, parent_id)
        self._lifetimes[sandbox.id] = lifetime
        self._listing.add(lifetime)
        lifetime.on_change = sandbox.pausing.on_change = lambda: self._tell_change(lifetime)
        self._tell("sandbox_started", lifetime)
        return lifetime.info

    def find(self, sandbox_id: str) -> LiveSandbox:
        """Returns a living sandbox, paused or not.

        Raises:
            SandboxNotFoundError: No sandbox with this id has lived here.
            SandboxClosedError: The sandbox has ended, or lived here before this host was restarted.
        """
        return self._lifetime(sandbox_id).sandbox

    async def awake(self, sandbox_id: str, *, may_resume: bool = True) -> LiveSandbox:
        """Returns a running sandbox without pending cleanups; resumes a paused one if call and settings allow it.

        Raises:
            SandboxPausedError: The sandbox is paused and is not resumed.
        """
        lifetime = self._lifetime(sandbox_id)
        sandbox, pausing = lifetime.sandbox, lifetime.sandbox.pausing
        self._cpu_fairness.note_request(lifetime)

        while not (pausing.is_running and sandbox.cleanups.are_over):
            await sandbox.cleanups.wait()
            await pausing.settled()

            # Resuming a running sandbox would make all callers wait for one another.
            if not pausing.is_paused:
                continue

            if not (may_resume and lifetime.spec.auto_resume):
                raise SandboxPausedError(sandbox_id=sandbox_id)

            await self.resume(sandbox_id)

        return sandbox

    def info(self, sandbox_id: str) -> SandboxInfo:
        """Describes a living sandbox."""
        return self._lifetime(sandbox_id).info

    def list(self, owner: str | None = None) -> tuple[SandboxInfo, ...]:
        """Describes all living sandboxes, or those of one owner, the oldest first."""
        return tuple(
            lifetime.info
            for lifetime in self._lifetimes.values()
            if lifetime.sandbox.alive and owner in (None, lifetime.spec.owner)
        )

    def page(self, request: ListSandboxes) -> SandboxList:
        """Returns a page of the living sandboxes, in the order that the request names."""
        return self._listing.page(request)

    def family(self, sandbox_id: str) -> Family:
        """Returns a living sandbox, its ancestors, and all their forks."""
        return self._families.of(self._lifetime(sandbox_id), self._lifetimes)

    @property
    def isolation(self) -> Isolation | None:
        """What isolates the sandboxes that are made here; None before the first one."""
        return self._provisioner.isolation

    def capacity(self) -> Capacity:
        """Returns the capacity of this host."""
        room, pools = self._admission.room, self._provisioner.pools()
        return Capacity(
            sandboxes=len(self._lifetimes) + self._coming,
            max_sandboxes=self._admission.rules.max_sandboxes,
            memory_available_bytes=room.memory_available_bytes,
            memory_total_bytes=room.memory_total_bytes,
            cpu_cores=room.cpu_cores,
            load=room.load,
            host_id=self._host_id,
            incarnation=self._incarnation,
            version=_version(),
            isolation_level=self._level,
            is_warm=self.warmth.is_reached,
            cold_reason=self.warmth.reason,
            pool_ready=sum(pool.ready for pool in pools),
            pool_hits=sum(pool.hits for pool in pools),
            pool_misses=sum(pool.misses for pool in pools),
            is_draining=self._admission.is_closed,
        )

    def set_draining(self, is_draining: bool) -> None:
        """Stops making new sandboxes, other than forks, or allows it again."""
        self._admission.is_closed = is_draining

    def set_cut_off(self, is_cut_off: Callable[[], bool]) -> None:
        """Takes the question whether sandboxes of this host may be restored elsewhere now.

        While they may be, none of those is made here, and a call to one ends it.
        """
        self._admission.is_cut_off = is_cut_off

    def end_restorable(self) -> int:
        """Ends the sandboxes that their callers make again elsewhere, since this host is lost; returns how many."""
        lost = [
            one
            for one in self._lifetimes.values()
            if one.sandbox.alive and one.spec.on_host_loss == "restore"
        ]

        for lifetime in lost:
            lifetime.sandbox.end("lost")

        return len(lost)

    def owners(self) -> Counter[str]:
        """Returns how many living sandboxes each owner has."""
        return Counter(lifetime.spec.owner for lifetime in self._lifetimes.values() if lifetime.sandbox.alive)

    async def pause(self, sandbox_id: str, *, files_only: bool = False) -> bool:
        """Pauses a sandbox; returns False if it is paused already."""
        return await self.find(sandbox_id).pausing.pause(files_only=files_only)

    async def resume(self, sandbox_id: str, *, files_only: bool = False) -> bool:
        """Resumes a paused sandbox; returns False if it runs."""
        sandbox = self.find(sandbox_id)
        sandbox.touch()
        return await sandbox.pausing.resume(files_only=files_only)

    async def kill(self, sandbox_id: str, *, wait: bool) -> bool:
        """Ends a sandbox; returns when no process of it is left, or without `wait` as soon as its end is certain."""
        lifetime = self._lifetimes.get(sandbox_id)

        if lifetime is None:
            return False

        sandbox = lifetime.sandbox
        lived = sandbox.alive
        await failpoints.reach("delete.begin", sandbox)
        sandbox.end("killed")
        await failpoints.reach("delete.signalled", sandbox)

        if wait:
            await wait_shared(sandbox.guest.ended)
            await failpoints.reach("delete.gone", sandbox)

        return lived

    async def fork(self, sandbox_id: str, request: ForkRequest) -> Forked:
        """Hands out sandboxes that continue from the state of another one.

        Raises:
            ForkError: The forks cannot be made; the sandbox is unchanged.
        """
        lifetime, begun = self._lifetime(sandbox_id), time.monotonic()

        with logged_refusals(lifetime.spec, forked_id=sandbox_id):
            self._admission.check(len(self._lifetimes) + self._coming + request.count - 1)
            self._coming += request.count
            lifetime.sandbox.touch()
            forking = Forking(lifetime.sandbox, request.reseed, self._note_end)
            try:
                ids = [self._new_id() for _ in range(request.count)]
                forks = await forking.carry_out(ids, request.checkpoint_id)
            finally:
                self._coming -= request.count

            spec = _spec_of_fork(lifetime, request)

            with all_or_none(forks):
                items = tuple(self._hand_out(fork, spec, sandbox_id) for fork in forks)

        for info in items:
            log_creation(info, time.monotonic() - begun)

        lifetime.sandbox.audit.note("forked", {"children": [info.id for info in items]})
        lifetime.sandbox.feed.put("forked", {"sandbox_ids": [info.id for info in items]})
        return Forked(items=items, left_behind=forking.left_behind)

    async def adopt(self, sandbox_id: str, child_id: str) -> SandboxInfo:
        """Replaces a sandbox by one of its forks, which takes over its id; the replaced one ends.

        Raises:
            InvalidArgumentError: `child_id` is not a fork of the sandbox.
        """
        place, child = self._lifetime(sandbox_id), self._lifetime(child_id)

        if child.parent_id != sandbox_id:
            raise InvalidArgumentError(
                field="child", value=child_id, allowed=f"a sandbox that was forked from {sandbox_id!r}"
            )

        place.sandbox.feed.put("adopted", {"child_id": child_id})
        place.sandbox.end("killed")
        await wait_shared(place.sandbox.guest.ended)
        # It may have ended meanwhile.
        child = self._lifetime(child_id)
        del self._lifetimes[child_id]
        self._listing.remove(child)
        self._remember_end(child_id, partial(SandboxClosedError, sandbox_id=child_id, reason="adopted"))
        self._ended.pop(sandbox_id, None)
        self._families.forget(sandbox_id)
        child.sandbox.rename(sandbox_id)
        child.parent_id = place.parent_id
        child.spec = replace(child.spec, on_host_loss=place.spec.on_host_loss)
        self._lifetimes[sandbox_id] = child
        self._listing.add(child)
        self._feeds.put("sandbox_ended", child.spec.owner, {"sandbox_id": child_id, "reason": "adopted"})
        self._tell("sandbox_started", child)
        self.records.rename(child_id, sandbox_id)

        if self.kept is not None:
            # The sandbox of this id lives.
            self.kept.forget(sandbox_id)

        events.SANDBOX_ADOPTED.log(sandbox_id=sandbox_id, child_id=child_id)

        for lifetime in self._lifetimes.values():
            if lifetime.parent_id == child_id:
                lifetime.parent_id = sandbox_id

        return child.info

    def set_timeout(self, sandbox_id: str, timeout_seconds: float | None) -> None:
        """Sets the remaining lifetime of a sandbox."""
        self._lifetime(sandbox_id).set_timeout(timeout_seconds)

    def set_labels(self, sandbox_id: str, changes: Mapping[str, str | None]) -> None:
        """Changes the named labels of a living sandbox; the value None removes a label."""
        lifetime = self._lifetime(sandbox_id)
        # Names that are taken away are bounded too.
        check_labels({name: text or "" for name, text in changes.items()})
        given = {**lifetime.spec.metadata, **changes}
        kept = {name: text for name, text in given.items() if text is not None}
        # The new specification checks them.
        lifetime.spec = replace(lifetime.spec, metadata=kept)
        lifetime.sandbox.audit.note("labelled", {"names": listed(sorted(changes))})
        self._tell_change(lifetime)

    def watch(self, owner: str | None, after: int | None) -> AsyncGenerator[WatchEvents, None]:
        """Follows the starts, changes and ends of all sandboxes, or of those of one owner."""
        return self._feeds.follow(owner, after)

    def note_network(self, sandbox_id: str) -> None:
        """Tells followers that the network of a sandbox was changed."""
        if (lifetime := self._lifetimes.get(sandbox_id)) is not None:
            self._tell_change(lifetime)

    def _tell_change(self, lifetime: Lifetime) -> None:
        feed = lifetime.sandbox.feed

        if feed.is_live and lifetime.sandbox.alive:
            info = as_data(lifetime.info)
            feed.put("changed", {"sandbox": info}, _info_bytes(info))

        self._tell("sandbox_changed", lifetime)

    def _tell(self, kind: str, lifetime: Lifetime) -> None:
        if self._feeds.are_live and lifetime.sandbox.alive:
            info = as_data(lifetime.info)
            self._feeds.put(kind, lifetime.spec.owner, {"sandbox": info}, _info_bytes(info))

    async def wait_warm(self, template: str = "default") -> None:
        """Returns when the template's pool is full."""
        await self._provisioner.wait_warm(template)

    async def aclose(self) -> None:
        """Ends all sandboxes and templates."""
        self._cpu_fairness.close()
        await self._provisioner.close()

        for lifetime in list(self._lifetimes.values()):
            lifetime.sandbox.end("host_closed")

        await self._provisioner.aclose()

        if self.kept is not None:
            await self.kept.aclose()

        events.ENGINE_ENDED.log(host_id=self._host_id)

    def _new_id(self) -> str:
        return make_name(self._host_id, self._incarnation)

    def _lifetime(self, sandbox_id: str) -> Lifetime:
        lifetime = self._lifetimes.get(sandbox_id)

        if lifetime and lifetime.spec.on_host_loss == "restore" and self._admission.is_cut_off():
            lifetime.sandbox.end("lost")

        if lifetime is not None and lifetime.sandbox.alive:
            return lifetime

        if lifetime is not None:
            raise lifetime.sandbox.closed_error()

        ended = self._ended.get(sandbox_id)

        if ended is not None:
            raise ended()

        name = parse_name(sandbox_id)

        if name is not None and name.host_id == self._host_id and name.incarnation != self._incarnation:
            raise SandboxClosedError(sandbox_id=sandbox_id, reason="lost")

        raise SandboxNotFoundError(sandbox_id=sandbox_id)

    def _note_end(self, sandbox: LiveSandbox) -> None:
        lifetime = self._lifetimes.pop(sandbox.id, None)

        # The id of the request that has ended it, and not of the one that made it.
        with logged_request(sandbox.ended_by_request):
            log_end(sandbox, lifetime)

        if lifetime is None:
            return

        lifetime.close()
        self._listing.remove(lifetime)
        self._cpu_fairness.forget(lifetime)
        self.records.keep(sandbox)
        self._remember_end(sandbox.id, sandbox.make_closed_error())
        self._families.note_end(lifetime, sandbox.id, sandbox.end_cause[0])

        if self.kept is not None and lifetime.spec.is_recorded:
            self.kept.keep(lifetime.info, sandbox)

        ended: dict[str, JsonValue] = {"sandbox_id": sandbox.id, "reason": sandbox.end_cause[0]}
        self._feeds.put("sandbox_ended", lifetime.spec.owner, ended)

    def _remember_end(self, sandbox_id: str, make_closed_error: Callable[[], FumehoodError]) -> None:
        self._ended[sandbox_id] = make_closed_error

        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)


@cache
def _version() -> str:
    return metadata.version("fumehood")


def _info_bytes(value: JsonValue) -> int:
    """Returns the size of a sandbox's description in memory: its labels and network rules can be long."""
    if isinstance(value, dict):
        return getsizeof(value) + sum(getsizeof(name) + _info_bytes(item) for name, item in value.items())

    if isinstance(value, list):
        return getsizeof(value) + sum(map(_info_bytes, value))

    return getsizeof(value)


def _spec_of_fork(lifetime: Lifetime, request: ForkRequest) -> SandboxSpec:
    spec = lifetime.spec
    return replace(
        spec,
        # The present network, which may have been changed since the creation.
        network=lifetime.sandbox.egress.route.network,
        timeout_seconds=spec.timeout_seconds
        if request.timeout_seconds == "inherit"
        else request.timeout_seconds,
        metadata=spec.metadata if request.metadata is None else request.metadata,
        # Nothing makes a fork again elsewhere.
        on_host_loss="raise",
    )
