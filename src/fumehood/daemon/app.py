"""The app of the daemon: the server's routes over the engine of this process, on the daemon's socket.

There is no database, no key and no tenant guard: sandboxes are made for an owner in the request, and
lifetimes are those of the request; the server in front checks all of them. `fumehood.server.http_server` says how the
daemon ends; all its sandboxes end with it.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response, StreamingResponse

from fumehood.assemble import backend_on_loop, template_store
from fumehood.cancellation import stop
from fumehood.client.abilities import ABILITIES
from fumehood.client.stateless import GroupedRun
from fumehood.daemon.lease import Lease, boot_seconds
from fumehood.daemon.peers import PeerAuthenticator, PeerProtocol
from fumehood.daemon.runs import RunGroups, RunIndex, RunName
from fumehood.daemon.settings import HostSettings
from fumehood.daemon.templates import BuildTimes, sent_template, taken_template
from fumehood.engine.backend import LocalBackend
from fumehood.engine.identity import kept_host_id
from fumehood.log import events
from fumehood.log.setup import configure
from fumehood.port.backend import Backend
from fumehood.server.app import assemble_app
from fumehood.server.auth import CallersBackend
from fumehood.server.batches import Batches
from fumehood.server.detached import DetachedRuns
from fumehood.server.http_server import serve_app
from fumehood.server.idempotency import IdempotencyKey, once
from fumehood.server.metrics import ServerMetrics
from fumehood.server.principal import Principal
from fumehood.server.queue import FairQueue
from fumehood.server.responses import GONE, stream_response, unless_gone
from fumehood.server.routes import HOST_ROUTERS
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.ports import ROUTES as PORT_ROUTES
from fumehood.server.routes.sandboxes import SandboxId, answer
from fumehood.server.routes.saved import load_for
from fumehood.server.schemas.commands import CommandAnswer, NewCommand
from fumehood.server.schemas.execute import RunGroupBody
from fumehood.server.schemas.machines import NewDraining
from fumehood.server.schemas.sandboxes import HostSandbox, LoadedAnswer, SandboxAnswer
from fumehood.server.services import AppServices
from fumehood.server.settings import ServerSettings
from fumehood.server.tracing import trace
from fumehood.setting_fields import changed_settings, logged_settings

# The server in front has bounded the request; only base64 makes a body larger than that.
_MAX_BYTES = 1 << 40
_HOST_NAME = "host"
# In the state folder while the host is drained.
_DRAINING = "draining"

# Servers ask for these again and again, and for no caller.
_UNTRACED = r"/v1/host/figures(\?.*)?$"
# Servers of a cluster ask twice a second each, and one answer serves them all.
_FIGURES_SECONDS = 0.3
_LEASE_LOOK_SECONDS = 1.0


@dataclass(kw_only=True)
class HostServices(AppServices):
    """The services of the daemon's routes.

    Attributes:
        engine: The engine of this process.
        lease: How long its sandboxes count on not being made again elsewhere.
        run_groups: The runs that servers of a cluster have begun together.
    """

    engine: LocalBackend
    lease: Lease
    run_groups: RunGroups = field(default_factory=RunGroups)
    _figures: dict[str, Any] = field(default_factory=dict)
    _figures_at: float = -math.inf
    _builds: BuildTimes = field(default_factory=BuildTimes)

    async def figures(self) -> dict[str, Any]:
        """Returns the figures of this machine that placement needs, at most 0.3 s old."""
        now = asyncio.get_running_loop().time()

        if now - self._figures_at >= _FIGURES_SECONDS:
            self._figures = {
                "capacity": await self.engine.capacity(),
                "templates": sorted({"default", *template_store().names()}),
                "built_at": self._builds.times(template_store()),
                "owners": await self.engine.owners(),
                "abilities": ABILITIES,
            }
            self._figures_at = now

        return {**self._figures, "lease": self.lease.token()}

    async def keep_lease(self) -> None:
        """Ends the sandboxes that may be restored elsewhere while the lease is over."""
        while True:
            await asyncio.sleep(_LEASE_LOOK_SECONDS)
            await self.end_cut_off()

    async def end_cut_off(self) -> None:
        """Ends the sandboxes that may be restored elsewhere if the lease is over."""
        if self.lease.is_over:
            await self.end_lost("it was cut off from the cluster")

    async def leave_cluster(self) -> None:
        """Ends a lease that is over for good, and first what it was about."""
        await self.end_cut_off()
        self.lease.leave()

    async def end_lost(self, reason: str) -> None:
        """Ends the sandboxes that are restored elsewhere when this machine is lost."""
        if count := await self.engine.end_restorable():
            events.SANDBOXES_LOST.log(count=count, reason=reason)

    async def set_draining(self, is_draining: bool) -> None:
        """Stops or resumes making new sandboxes; the setting outlives a restart of the daemon."""
        mark = self.state / _DRAINING

        if is_draining:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

        await self.engine.set_draining(is_draining)
        self._figures_at = -math.inf

    def count_request(self, principal: Principal) -> None:
        """Counts nothing: the servers in front count the requests of their keys."""

    def backend_for(self, principal: Principal) -> Backend:
        """Returns the engine itself: each request names the owner."""
        return self.backend


@asynccontextmanager
async def open_host_services(
    settings: HostSettings, state: Path, clock: Callable[[], float] = boot_seconds
) -> AsyncGenerator[HostServices, None]:
    """Starts the engine, and ends it with all its sandboxes at the end of the block; `clock` is that of the lease."""
    engine = replace(
        settings,
        host_id=settings.host_id or kept_host_id(state),
        records_folder=settings.records_folder or str(state / "records"),
    )
    metrics = ServerMetrics()
    backend = backend_on_loop(engine, asyncio.get_running_loop(), metrics.note_security_event)

    await backend.set_draining((state / _DRAINING).exists())
    warming = asyncio.create_task(backend.warm())
    batches, detached = Batches(), DetachedRuns()
    lease = Lease((await backend.capacity()).incarnation, clock)
    await backend.set_cut_off(lambda: lease.is_over)
    services = HostServices(
        settings=_app_settings(settings),
        state=state,
        backend=backend,
        engine=backend,
        lease=lease,
        authenticator=PeerAuthenticator(),
        # The server in front has a queue; the engine refuses a sandbox beyond its capacity.
        queue=FairQueue(places=settings.max_sandboxes, capacity=settings.max_sandboxes),
        metrics=metrics,
        batches=batches,
        detached=detached,
    )
    leasing = asyncio.create_task(services.keep_lease())

    try:
        yield services
    finally:
        await batches.close()
        await detached.close()
        await stop(warming)
        await stop(leasing)
        await backend.aclose()


def _app_settings(settings: HostSettings) -> ServerSettings:
    return ServerSettings(
        allowed_hosts=(_HOST_NAME,),
        dialects=(),
        sandbox_seconds=0,
        max_sandbox_seconds=0,
        max_body_bytes=_MAX_BYTES,
        max_upload_bytes=_MAX_BYTES,
        drain_seconds=settings.drain_seconds,
        log_level=settings.log_level,
        log_format=settings.log_format,
        slow_request_seconds=settings.slow_request_seconds,
    )


_own_router = guarded_router("sandboxes", "/v1/sandboxes")
_Owner = Annotated[str | None, Query(max_length=255, description="Whose.")]
_Alone = Annotated[bool, Query(description="The server is none of a cluster: it has this machine alone.")]


@_own_router.post("", status_code=201, response_model=SandboxAnswer)
async def create_for(
    body: HostSandbox,
    backend: CallersBackend,
    request: Request,
    owner: _Owner = None,
    alone: _Alone = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Makes a sandbox that belongs to `owner`; an idempotency key is refused, since no answer is kept."""

    if alone:
        await _services(request).leave_cluster()

    async def create() -> Response:
        spec = replace(body.spec(), owner=owner or "", is_recorded=body.is_recorded)
        info = await unless_gone(request, backend.create(spec))
        return Response(status_code=GONE) if info is None else answer(info, 201)

    return await once(request, idempotency_key, create)


@_own_router.post("/{sandbox_id}/commands", status_code=201, response_model=CommandAnswer)
async def start_command_for(
    sandbox_id: SandboxId, body: NewCommand, backend: CallersBackend, own: bool = False
) -> Response:
    """Starts a command; `own`: the server in front starts it for itself."""
    return answer(await backend.start_process(sandbox_id, replace(body.spec(), is_own=own)), 201)


@_own_router.post("/load", status_code=201, response_model=LoadedAnswer)
async def load_as(
    backend: CallersBackend, request: Request, owner: _Owner = None, alone: _Alone = False
) -> Response:
    """Makes a sandbox from a saved state; it belongs to `owner`."""
    if alone:
        await _services(request).leave_cluster()

    return await load_for(backend, request, owner or "")


_cluster_router = guarded_router("cluster", "/v1/host")


@_cluster_router.get("/figures")
async def figures(
    request: Request,
    lease: Annotated[str, Query(max_length=64)] = "",
    lost: bool = False,
    since: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Gives the capacity, the templates, and how many sandboxes each owner has.

    `lease` is that of an earlier answer, from a server that has seen since that this machine is in the cluster. `lost`
    says that its sandboxes were called lost: those that may be restored elsewhere have to end, unless the lease was
    over since the answer with the token `since`, the last before the loss: then they have ended, and all are new.
    """
    services = _services(request)
    # Before the lease begins again, or they would live on.
    await services.end_cut_off()

    if lost and not services.lease.was_over_since(since):
        await services.end_lost("it was lost, and is back")

    services.lease.note_request(lease)
    return answer(await services.figures())


@_cluster_router.put("/draining", status_code=204)
async def set_draining(body: NewDraining, request: Request) -> Response:
    """Stops or resumes making new sandboxes."""
    await _services(request).set_draining(body.is_draining)
    return Response(status_code=204)


@_cluster_router.get("/templates/{name}")
async def send_template(name: str) -> Response:
    """Sends a template to another machine, as one stream."""
    pieces = sent_template(name)
    # The first piece is read now, so that a refusal becomes an answer of its own and not a broken stream.
    first = await anext(pieces)
    return StreamingResponse(_with_first(first, pieces), media_type="application/x-tar")


@_cluster_router.put("/templates/{name}", status_code=204)
async def take_template(name: str, request: Request) -> Response:
    """Takes a template from another machine; the same one is no error."""
    await taken_template(name, request.stream())
    return Response(status_code=204)


@_cluster_router.post("/runs")
async def run_together(body: RunGroupBody, request: Request) -> Response:
    """Runs each piece of code in a sandbox of its own, and streams a line for each as they end."""
    services = _services(request)
    runs = [GroupedRun(run.request.request(), run.request_id, run.trace) for run in body.runs]
    return await stream_response(request, services.run_groups.lines(body.name, services.engine, runs))


@_cluster_router.delete("/runs/{name}/{index}", status_code=204)
async def end_run(name: RunName, index: RunIndex, request: Request) -> Response:
    """Ends one of them; the others go on."""
    _services(request).run_groups.end(name, index)
    return Response(status_code=204)


async def _with_first(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        yield first

        async for piece in pieces:
            yield piece


def _services(request: Request) -> HostServices:
    services = request.app.state.services
    assert isinstance(services, HostServices)
    return services


ROUTERS = (_cluster_router, _own_router, *HOST_ROUTERS)


async def keep_sandboxes(
    settings: HostSettings, sources: Mapping[str, str], state: Path, listener: socket.socket
) -> int:
    """Serves sandboxes until a signal ends it, and returns the exit code."""
    configure(settings.log_level, settings.log_format)

    async with open_host_services(settings, state) as services:
        app = assemble_app(services, ROUTERS, PORT_ROUTES)
        finish_traces = trace(app, os.environ, "fumehood-host", _UNTRACED)
        events.HOST_STARTED.log(
            address=settings.socket,
            version=metadata.version("fumehood"),
            pid=os.getpid(),
            settings=logged_settings(settings, all_of_them=settings.log_format == "json"),
        )

        if settings.log_format == "console":
            changed = changed_settings(settings, sources, "host")
            sys.stderr.write("\n".join([f"fumehood host listens on {settings.socket}", *changed, ""]))
            sys.stderr.flush()

        code = await serve_app(app, services, listener, PeerProtocol)
        await asyncio.to_thread(finish_traces)
        return code
