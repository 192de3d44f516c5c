"""The port over the machines of a cluster: new sandboxes are placed, every other call goes to its sandbox's machine.

Runs in the server process. It keeps no table of sandboxes: an id names the host and the run of it that made the
sandbox, so that every server answers for each of them, also one that has just started. It must not repeat a call whose
outcome is unknown, and it asks another machine only when the first has refused.
"""

from __future__ import annotations

import abc
import asyncio
import inspect
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from os import PathLike
from random import SystemRandom
from typing import Any, TypeVar
from urllib.parse import urlencode

from fumehood.cancellation import cancel_and_wait, stop
from fumehood.client.abilities import ABILITIES, GROUPED_RUNS
from fumehood.client.backend import HttpBackend
from fumehood.client.connection import ServerAddress, query_of
from fumehood.cluster.grouping import Grouping
from fumehood.cluster.machine import BrokenOffError, Machine, MachinePresence, NotSentError
from fumehood.cluster.members import ClusterView, Members
from fumehood.cluster.placement import Placement, Report, Wish
from fumehood.cluster.records import merged_records
from fumehood.cluster.templates import Templates
from fumehood.cluster.transport import AdapterCarrier
from fumehood.engine.identity import parse_name
from fumehood.errors import (
    CapacityError,
    FumehoodError,
    HostUnavailableError,
    HostVersionError,
    InvalidArgumentError,
    RecordNotFoundError,
    SandboxClosedError,
    SandboxNotFoundError,
)
from fumehood.log import events
from fumehood.port.backend import Backend
from fumehood.port.loop_bound import LoopBound
from fumehood.port.record_keeping import RecordKeeping
from fumehood.values.audit import AuditLog
from fumehood.values.codec import DataError, read_value
from fumehood.values.events import Event
from fumehood.values.execution import Record
from fumehood.values.kept_records import EndedSandbox, ListRecords, RecordList
from fumehood.values.looking import ListedSandbox, ListSandboxes, Look, SandboxList, merged
from fumehood.values.machines import MachineInfo, machine_of
from fumehood.values.requests import Loaded, LoadRequest, SandboxSpec
from fumehood.values.sandbox import Capacity, SandboxInfo
from fumehood.values.stateless import StatelessReply, StatelessRequest
from fumehood.values.watching import WatchEvent, WatchEvents

_POLL_SECONDS = 0.5
_ANSWER_SECONDS = 2.0
# No call is sent to a machine that has been quiet for so long; after the second, those under way are given up.
_QUIET_SECONDS = 4.0
_SILENT_SECONDS = 8.0
# How long the sandboxes of a machine that is gone may come back with it, until they are called lost: longer than the
# lease of `fumehood.daemon.lease`.
_GRACE_SECONDS = 60.0
# What a sandbox takes at once; its limit is far above.
_SANDBOX_BYTES = 64 << 20
_RUNS_PER_CORE = 2
_WAITING_EVENTS = 1000
_CLUSTER = "the cluster"
_FIGURES = "/v1/host/figures"
_T = TypeVar("_T")


@dataclass(slots=True)
class _Site:
    """A machine, and the port to its host daemon."""

    machine: Machine
    carrier: AdapterCarrier
    backend: HttpBackend
    runs: Grouping
    presence: MachinePresence = field(default_factory=lambda: MachinePresence(_GRACE_SECONDS))
    asking: asyncio.Task[None] | None = field(default=None)
    # The version, and what it lacks, that the log has a line about.
    logged_version: str = ""


def _forwarding(kind: type[Backend]) -> Any:
    """Gives the backend the verbs about one sandbox, each of which goes to the machine that its id names."""
    for verb in Backend.__abstractmethods__ - vars(kind).keys():
        setattr(kind, verb, _forwarded(verb))

    return abc.update_abstractmethods(kind)


def _forwarded(verb: str) -> Callable[..., Any]:
    async def ask(self: ClusterBackend, sandbox_id: str, *args: Any, **options: Any) -> Any:
        return await getattr(self._backend_of(sandbox_id), verb)(sandbox_id, *args, **options)

    def stream(
        self: ClusterBackend, sandbox_id: str, *args: Any, **options: Any
    ) -> AsyncGenerator[Any, None]:
        try:
            backend = self._backend_of(sandbox_id)
        except FumehoodError as error:
            return _failing(error)

        items: AsyncGenerator[Any, None] = getattr(backend, verb)(sandbox_id, *args, **options)
        return items

    declared = getattr(Backend, verb)
    method: Any = ask if inspect.iscoroutinefunction(declared) else stream
    method.__name__, method.__doc__ = verb, declared.__doc__
    return method  # type: ignore[no-any-return]


async def _failing(error: FumehoodError) -> AsyncGenerator[Any, None]:
    raise error
    yield


@_forwarding
class ClusterBackend(LoopBound, Backend, RecordKeeping):
    """The sandboxes of all machines of a cluster.

    Args:
        address: The address of Ray's head, HOST:PORT.
        loop: The loop of the calls; it runs, or will.

    Attributes:
        on_cores: Called with the number of processors of all machines that answer, whenever it may have changed.
    """

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._placement = Placement(SystemRandom())
        self._sites: dict[str, _Site] = {}
        self._templates = Templates(
            loop, lambda: self._placement.machines, lambda host_id: self._sites[host_id].backend
        )
        self._has_looked = False
        self.on_cores: Callable[[float], None] = lambda _: None
        self._polling: asyncio.Task[None] | None = None
        self._members = Members(address, lambda seen: loop.call_soon_threadsafe(self._note_members, seen))

    def start(self) -> None:
        """Begins to look for machines; on the backend's loop. Returns at once."""
        self._members.start()
        self._polling = asyncio.create_task(self._poll())

    # -- sandboxes

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        placed = _without_labels(spec)
        return await self._do(self._placed, _wish_of(spec), lambda site: site.backend.create(placed))

    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        placed = replace(request, spec=_without_labels(request.spec))
        return await self._do(
            self._placed, _wish_of(request.spec), lambda site: site.backend.load(placed, archive)
        )

    async def list(self, owner: str | None = None) -> tuple[SandboxInfo, ...]:
        """Describe the living sandboxes of all machines that answer; those of the others are left out."""

        async def listed(site: _Site) -> tuple[SandboxInfo, ...]:
            try:
                return await site.backend.list(owner)
            except HostUnavailableError as error:
                events.MACHINE_LEFT_OUT.log(host_id=site.machine.host_id, reason=error.reason)
                return ()

        found = await asyncio.gather(*(listed(site) for site in self._sites_present))
        return tuple(sorted((info for infos in found for info in infos), key=lambda info: info.started_at))

    async def page(self, request: ListSandboxes) -> SandboxList:
        """Return one page of the sandboxes of all machines that answer: merges the pages of the machines."""

        async def asked(site: _Site) -> tuple[ListedSandbox, ...]:
            try:
                return (await site.backend.page(request)).items
            except HostUnavailableError as error:
                events.MACHINE_LEFT_OUT.log(host_id=site.machine.host_id, reason=error.reason)
                return ()

        found = await asyncio.gather(*(asked(site) for site in self._sites_present))
        return merged(request, [item for items in found for item in items])

    async def watch_sandboxes(
        self, owner: str | None = None, after: int | None = None
    ) -> AsyncGenerator[WatchEvents, None]:
        """Yield the events of all machines that answer now; each counts by itself, so none is given by its number."""
        coming: asyncio.Queue[WatchEvents] = asyncio.Queue(_WAITING_EVENTS)

        async def follow(site: _Site) -> None:
            with suppress(FumehoodError):
                async with aclosing(site.backend.watch_sandboxes(owner)) as coming_of_site:
                    async for events_of_site in coming_of_site:
                        events = [replace(event, seq=0) for event in events_of_site if event.type != "here"]

                        if events:
                            await coming.put(WatchEvents(events))

        followers = [asyncio.create_task(follow(site)) for site in self._sites_present]
        try:
            yield WatchEvents([WatchEvent(type="here")])

            while True:
                yield await coming.get()
        finally:
            await cancel_and_wait(*followers)

    async def kill(self, sandbox_id: str, *, wait: bool = True) -> bool:
        try:
            return await self._backend_of(sandbox_id).kill(sandbox_id, wait=wait)
        except (SandboxNotFoundError, SandboxClosedError):
            return False

    async def capacity(self) -> Capacity:
        """Return the sums of the last reports of all machines that answer."""
        reports = list(self._placement.machines.values())

        if not reports:
            raise HostUnavailableError(
                host=_CLUSTER, reason="no machine of it answers", outcome_unknown=False
            )

        return _sum_of([report.capacity for report in reports])

    @property
    def machines(self) -> tuple[MachineInfo, ...]:
        """All known machines, by the names of their hosts."""
        return tuple(self._machine(name) for name in sorted(self._sites))

    def _machine(self, host_id: str) -> MachineInfo:
        report, machine = self._placement.machines.get(host_id), self._sites[host_id].machine

        if report is None:
            reason = machine.fault or "it has not reported yet"
            return MachineInfo(host_id=host_id, state="absent", reason=reason, labels=machine.labels)

        return machine_of(report.capacity, report.labels, tuple(sorted(report.templates)))

    async def drain(self, host_id: str, is_draining: bool) -> None:
        """Stop a machine from taking new sandboxes, or let it take them again.

        Raises:
            InvalidArgumentError: No machine has this name.
            HostUnavailableError: The machine does not answer.
        """
        site = self._sites.get(host_id)

        if site is None:
            known = ", ".join(sorted(self._sites)) or "there is none"
            raise InvalidArgumentError(
                field="machine", value=host_id, allowed=f"one of the cluster's: {known}"
            )

        await site.backend.set_draining(is_draining)

    # -- records of sandboxes that have ended, on the machines that had them

    async def find_records(self, request: ListRecords) -> RecordList:
        """Return a page of those on all machines that answer; it names the others."""

        async def asked(site: _Site) -> RecordList:
            left_out = RecordList(is_kept=False, left_out_hosts=(site.machine.host_id,))

            if site.presence.is_gone:
                return left_out

            try:
                return await site.backend.find_records(request)
            except (HostUnavailableError, HostVersionError) as error:
                events.MACHINE_LEFT_OUT.log(host_id=site.machine.host_id, reason=error.log_reason)
                return left_out

        pages = await asyncio.gather(*map(asked, self._sites.values()))

        try:
            return merged_records(request, pages)
        except DataError as error:
            raise self._unknown(str(error)) from None

    async def ended_sandbox(self, sandbox_id: str) -> EndedSandbox:
        return await self._record_host(sandbox_id).ended_sandbox(sandbox_id)

    async def look_back(self, sandbox_id: str, request: Look[_T]) -> _T:
        return await self._record_host(sandbox_id).look_back(sandbox_id, request)

    async def kept_record(self, sandbox_id: str, context_id: str | None = None) -> Record:
        return await self._record_host(sandbox_id).kept_record(sandbox_id, context_id)

    async def kept_audit(self, sandbox_id: str) -> AuditLog:
        return await self._record_host(sandbox_id).kept_audit(sandbox_id)

    async def delete_record(self, sandbox_id: str) -> None:
        await self._record_host(sandbox_id).delete_record(sandbox_id)

    def _record_host(self, sandbox_id: str) -> HttpBackend:
        """Returns the port to the machine that has the record of a sandbox."""
        try:
            return self._backend_of(sandbox_id)
        except SandboxNotFoundError:
            raise RecordNotFoundError(sandbox_id=sandbox_id) from None
        except SandboxClosedError:
            raise self._unknown("the machine with the record has left it") from None

    # -- runs in sandboxes of their own

    async def run_once(self, request: StatelessRequest) -> StatelessReply:
        placed = replace(request, spec=_without_labels(request.spec))
        return await self._do(self._placed, _wish_of(request.spec), lambda site: self._run_on(site, placed))

    async def _run_on(self, site: _Site, request: StatelessRequest) -> StatelessReply:
        """Runs code on a machine, together with other runs where its host daemon knows how."""
        report = self._placement.machines.get(site.machine.host_id)

        if report is not None and GROUPED_RUNS in report.abilities:
            return await site.runs.run(request)

        return await site.backend.run_once(request)

    async def stream_once(self, request: StatelessRequest) -> AsyncGenerator[Event | StatelessReply, None]:
        placed = replace(request, spec=_without_labels(request.spec))
        begun: list[tuple[Any, AsyncGenerator[Event | StatelessReply, None]]] = []

        async def begin(site: _Site) -> None:
            items = site.backend.stream_once(placed)
            begun.append((await anext(items), items))

        await self._do(self._placed, _wish_of(request.spec), begin)
        first, items = begun[0]

        async with aclosing(items):
            yield first

            async for item in items:
                yield item

    def run_many(
        self, requests: Iterable[StatelessRequest], concurrency: int | None = None
    ) -> AsyncGenerator[tuple[int, StatelessReply | FumehoodError], None]:
        return super().run_many(requests, concurrency or max(1, int(_RUNS_PER_CORE * self._cores())))

    async def aclose(self) -> None:
        """Close the connections; the sandboxes live on."""
        self._members.close()

        if self._polling is not None:
            await stop(self._polling)

        await self._templates.aclose()

        for site in self._sites.values():
            await cancel_and_wait(*([site.asking] if site.asking else []))
            await site.backend.aclose()

    # -- which machine

    async def _placed(self, wish: Wish, make: Callable[[_Site], Awaitable[_T]]) -> _T:
        """Has a machine make something; one that refuses is followed by another."""
        refused: list[str] = []
        refusal: FumehoodError | None = None

        if not self._placement.machines:
            raise self._unknown("no machine of it answers")

        while True:
            try:
                host_id = self._placement.choose(wish, but=refused)
            except CapacityError as full:
                self._members.want_hosts(len(self._sites) + 1)
                raise (refusal or full) from None

            if not await self._templates.are_there(wish.template, host_id):
                refused.append(host_id)
                continue

            try:
                return await make(self._sites[host_id])
            except (CapacityError, HostVersionError) as error:
                refusal = error
            except HostUnavailableError as error:
                if error.outcome_unknown:
                    raise

                refusal = error

            refused.append(host_id)

    def _cores(self) -> float:
        """Returns the number of processors of the machines that answer."""
        return sum(report.capacity.cpu_cores for report in self._placement.machines.values())

    def _backend_of(self, sandbox_id: str) -> HttpBackend:
        name = parse_name(sandbox_id)

        if name is None:
            raise SandboxNotFoundError(sandbox_id=sandbox_id)

        site = self._sites.get(name.host_id)

        if site is None:
            if not self._has_looked:
                raise self._unknown("this server does not know its machines yet")

            raise SandboxNotFoundError(sandbox_id=sandbox_id)

        if site.presence.is_lost:
            raise SandboxClosedError(sandbox_id=sandbox_id, reason="lost")

        return site.backend

    def _unknown(self, reason: str) -> HostUnavailableError:
        return HostUnavailableError(host=_CLUSTER, reason=reason, outcome_unknown=False)

    @property
    def _sites_present(self) -> tuple[_Site, ...]:
        return tuple(site for site in self._sites.values() if not site.presence.is_gone)

    # -- what is seen of the machines

    def _note_members(self, seen: ClusterView) -> None:
        """Updates the known machines by those that Ray reports as alive."""
        self._has_looked = True

        for host_id, member in seen.alive.items():
            site = self._sites.get(host_id) or self._new_site(host_id)
            site.machine.labels = dict(member.labels)
            site.machine.adapter = member.adapter

            if site.presence.is_gone:
                events.MACHINE_JOINED.log(host_id=host_id)

            site.presence.note_there(seen.began_at, seen.ended.get(host_id, 0))

        for host_id, site in self._sites.items():
            if host_id in seen.alive:
                continue

            if not site.presence.is_gone:
                self._note_gone(site)

            site.presence.note_away(seen.began_at, seen.ended.get(host_id, 0))

    def _new_site(self, host_id: str) -> _Site:
        machine = Machine(host_id, self._loop)
        carrier = AdapterCarrier(machine)
        address = ServerAddress(url="http://host", is_host=True)
        backend = HttpBackend(address, self._loop, carrier)
        site = _Site(machine, carrier, backend, Grouping(backend, self._loop))
        self._sites[host_id] = site
        events.MACHINE_JOINED.log(host_id=host_id)
        return site

    def _note_gone(self, site: _Site) -> None:
        site.machine.adapter = None
        self._placement.forget(site.machine.host_id)
        self.on_cores(self._cores())
        broken = site.machine.break_off("its machine has left the cluster, or died")
        events.MACHINE_GONE.log(host_id=site.machine.host_id, calls=broken)

    async def _poll(self) -> None:
        while True:
            for site in self._sites_present:
                if site.asking is None or site.asking.done():
                    site.asking = asyncio.create_task(self._ask(site))

            await asyncio.sleep(_POLL_SECONDS)

    async def _ask(self, site: _Site) -> None:
        """Asks a machine for its figures, and handles a missing answer."""
        machine, was_lost = site.machine, site.presence.was_lost
        asked = query_of(
            lease=site.presence.take_token() or None,
            lost="true" if was_lost else None,
            since=site.presence.last_token or None if was_lost else None,
        )
        target = f"{_FIGURES}?{urlencode(asked)}" if asked else _FIGURES

        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await machine.call("GET", target, b"", b"", "", is_probe=True)

            report, token = _report_of(answer.body, machine.labels)

            if report.capacity.host_id != machine.host_id:
                raise DataError("it reports the figures of another machine")

            # What was lost has ended there now: calls may be sent to it again.
            site.presence.was_lost = site.presence.was_lost and not was_lost
            site.presence.note_token(token, time.monotonic())
            self._note_version(site, report)
            self._placement.note(report)
            self._templates.note(report)
            machine.note_answer()
            self.on_cores(self._cores())
        except (NotSentError, BrokenOffError, TimeoutError, DataError) as error:
            self._note_silence(site, str(error) or "it does not answer in time")

    def _note_version(self, site: _Site, report: Report) -> None:
        """Logs once that a machine has another version, or that its daemon lacks what this server knows."""
        version = report.capacity.version
        missing = sorted(set(ABILITIES) - report.abilities)
        difference = f"{version} {missing}"

        if difference != site.logged_version and (missing or version != metadata.version("fumehood")):
            events.MACHINE_VERSION.log(host_id=site.machine.host_id, version=version, missing=missing)

        site.logged_version = difference

    def _note_silence(self, site: _Site, reason: str) -> None:
        machine = site.machine
        # No new sandbox until it answers again.
        self._placement.forget(machine.host_id)
        self.on_cores(self._cores())
        silence = self._loop.time() - machine.heard_at

        if silence >= _QUIET_SECONDS:
            machine.note_fault(reason)
            self._members.renew_adapter(machine.host_id)

        if silence >= _SILENT_SECONDS and (broken := machine.break_off(reason)):
            events.MACHINE_SILENT.log(host_id=machine.host_id, seconds=round(silence, 1), calls=broken)


def _wish_of(spec: SandboxSpec) -> Wish:
    return Wish(
        memory_bytes=_SANDBOX_BYTES, owner=spec.owner, template=spec.template_name, labels=spec.labels
    )


def _without_labels(spec: SandboxSpec) -> SandboxSpec:
    """Returns a spec for the host daemon of the machine that was chosen, which knows no labels."""
    return replace(spec, labels={}) if spec.labels else spec


def _report_of(body: bytes, labels: dict[str, str]) -> tuple[Report, str]:
    """Returns the figures of a machine, and the token of its lease; "" from a host daemon that has none."""
    try:
        figures = json.loads(body)
        report = Report(
            capacity=read_value(Capacity, figures["capacity"]),
            labels=labels,
            templates=frozenset(figures["templates"]),
            built_at={str(name): float(built) for name, built in figures.get("built_at", {}).items()},
            key_sandboxes={str(name): int(count) for name, count in figures["owners"].items()},
            is_draining=figures["capacity"]["is_draining"],
            abilities=frozenset(map(str, figures.get("abilities", ()))),
        )
        return report, str(figures.get("lease", ""))
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"the figures of a host do not fit: {error}") from None


def _sum_of(capacities: list[Capacity]) -> Capacity:
    """Returns the capacity of all machines together."""
    levels = [one.isolation_level for one in capacities if one.isolation_level]
    return Capacity(
        sandboxes=sum(one.sandboxes for one in capacities),
        max_sandboxes=sum(one.max_sandboxes for one in capacities),
        memory_available_bytes=sum(one.memory_available_bytes for one in capacities),
        memory_total_bytes=sum(one.memory_total_bytes for one in capacities),
        cpu_cores=sum(one.cpu_cores for one in capacities),
        load=sum(one.load for one in capacities),
        host_id="",
        incarnation="",
        version=min(one.version for one in capacities),
        isolation_level=levels[0] if levels else "",
        is_warm=any(one.is_warm for one in capacities),
        cold_reason=next((one.cold_reason for one in capacities if one.cold_reason), ""),
        pool_ready=sum(one.pool_ready for one in capacities),
        pool_hits=sum(one.pool_hits for one in capacities),
        pool_misses=sum(one.pool_misses for one in capacities),
        is_draining=all(one.is_draining for one in capacities),
    )
