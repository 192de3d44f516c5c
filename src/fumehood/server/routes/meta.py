"""The server itself: its front page, description, liveness, readiness, metrics and settings.

The page, the description and the health routes need no token, so they reveal nothing about callers, sandboxes or
settings.
"""

from __future__ import annotations

import asyncio
import json
import math
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response

from fumehood.cluster.backend import ClusterBackend
from fumehood.errors import ForbiddenError
from fumehood.server.auth import AnyCaller, KeysCaller, MetricsCaller, ServicesOf, StoresOf
from fumehood.server.principal import Principal
from fumehood.server.routes.audit import LINES, written
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import answer, items
from fumehood.server.schemas.meta import (
    CapacityAnswer,
    Health,
    MachineRow,
    MachineRows,
    QueueAnswer,
    QueueOfKey,
    Readiness,
    SecurityEventCount,
    SecurityEventCounts,
    ServerInfo,
    SettingList,
)
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.sandboxes import AuditAnswer
from fumehood.setting_fields import describe_settings

router = APIRouter(tags=["server"])
# What callers ask, also by the login of a browser.
guarded = guarded_router("server")
# What its owner asks of the whole server; a host daemon has no such answers.
of_owner = guarded_router("server")
_REASON_CHARACTERS = 500
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_HTML = "text/html"
_NO_CONTENT = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_FRONT_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>fumehood</title>
<h1>fumehood</h1>
<p>This server runs Python that a language model wrote, in sandboxes. It answers programs that have a token.
<ul>
<li>Documentation: <a href="docs/">of this version</a>, where it is installed, or
<a href="https://github.com/fumehood/fumehood/blob/main/docs/README.md">of the newest</a>
<li>The API: <a href="openapi/">to read and to try</a>, <a href="openapi.json">for programs</a> (OpenAPI)
<li>Health: <a href="healthz">healthz</a> (the server lives), <a href="readyz">readyz</a> (it takes work)
</ul>
</html>
"""


@router.get("/healthz", summary="Whether the server lives")
async def healthz() -> Health:
    """Answers as long as the server's event loop runs; needs no token."""
    return Health(status="ok")


@router.get(
    "/readyz",
    summary="Whether the server takes work",
    response_model=Readiness,
    responses={503: {"description": "It starts, ends, or its host does not answer.", "model": Readiness}},
)
async def readyz(services: ServicesOf) -> Response:
    """Answers 200 if the server accepts new work and its pool of sandboxes has been full once; needs no token."""
    if services.drain.begun:
        return JSONResponse({"status": "draining"}, 503)

    try:
        capacity = await services.backend.capacity()
    except ConnectionError:
        return JSONResponse({"status": "no host"}, 503)

    if not capacity.is_warm:
        reason = {"reason": capacity.cold_reason[:_REASON_CHARACTERS]} if capacity.cold_reason else {}
        return JSONResponse({"status": "starting"} | reason, 503)

    return JSONResponse({"status": "ok"})


@router.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse)
async def metrics(principal: MetricsCaller, services: ServicesOf) -> Response:
    """Returns the counters of this server, for all keys, in the text format of Prometheus.

    Needs the scope `metrics`.
    """
    services.metrics.queue_waiting.set(services.queue.waiting)
    services.metrics.queue_running.set(services.queue.running)
    services.metrics.tasks.set(len(asyncio.all_tasks()))

    if isinstance(services.backend, ClusterBackend):
        services.metrics.note_machines(services.backend.machines)

    try:
        capacity = await services.backend.capacity()
        services.metrics.sandboxes.set(capacity.sandboxes)
        services.metrics.pool_ready.set(capacity.pool_ready)
    except ConnectionError:
        # The server's own counters are of most use just then.
        services.metrics.sandboxes.set(math.nan)
        services.metrics.pool_ready.set(math.nan)

    return Response(services.metrics.text(), media_type=_PROMETHEUS)


@router.get("/openapi.json", include_in_schema=False)
async def description(request: Request) -> Response:
    """Returns the OpenAPI description of the native routes; needs no token."""
    state = request.app.state

    # Rendered once, since callers without a token can request it as often as they like.
    if not hasattr(state, "description"):
        state.description = json.dumps(request.app.openapi()).encode()

    return Response(state.description, media_type="application/json")


@router.get("/", include_in_schema=False)
async def front_page(request: Request) -> Response:
    """Redirects browsers to the console.

    Returns to programs a page with the addresses of the documentation, the API and the health checks.

    Needs no token.
    """
    if getattr(request.app.state, "has_console", False) and _HTML in request.headers.get("accept", ""):
        return RedirectResponse("console/", HTTPStatus.SEE_OTHER, headers={"Vary": "Accept"})

    return HTMLResponse(_FRONT_PAGE, headers={"Content-Security-Policy": _NO_CONTENT})


@guarded.get("/v1/info", summary="What the server can do")
async def info(principal: AnyCaller, services: ServicesOf) -> ServerInfo:
    """Returns the version, the isolation level and the free capacity."""
    capacity = await services.backend.capacity()
    return ServerInfo.of(capacity, services.settings.dialects)


@guarded.get("/v1/queue", summary="Tell what stateless runs wait for")
async def queue(principal: KeysCaller, services: ServicesOf) -> QueueAnswer:
    """Returns the number of places for stateless runs, and how many runs are active or waiting and for how long.

    For the server's owner.
    """
    waiting = services.queue
    return QueueAnswer(
        places=waiting.places,
        capacity=waiting.capacity,
        running=waiting.running,
        waiting=waiting.waiting,
        mean_seconds=waiting.mean_seconds,
        oldest_wait_seconds=waiting.oldest_wait_seconds,
        refused=waiting.refused,
        timed_out=waiting.timed_out,
        keys=[
            QueueOfKey(key_id=key_id, waiting=count)
            for key_id, count in waiting.waiting_by_key.items()
            if principal.is_owner or key_id == principal.key_id
        ],
    )


@guarded.get("/v1/capacity", summary="What the host has left", response_model=CapacityAnswer)
async def capacity(principal: KeysCaller, services: ServicesOf) -> Response:
    """Returns the capacity of the host and how much of it is taken, for the server's owner and for placement."""
    return answer(await services.backend.capacity())


@of_owner.get("/v1/settings", summary="List the settings of the server", response_model=SettingList)
async def settings(principal: AnyCaller, services: StoresOf) -> Response:
    """Returns every setting and where it came from, for the owner of the server; secrets are not shown."""
    _check_owner(principal)
    return items(describe_settings(services.settings, services.sources))


@of_owner.get("/v1/doctor", summary="Tell what the machine offers", responses=problems(401, 403, 503))
async def doctor(principal: AnyCaller, services: StoresOf) -> MachineRows:
    """Returns the rows of `fumehood doctor` for the machine of the server, at most a minute old, for its owner.

    The report tries each layer of isolation and starts a sandbox of its own, which takes seconds. If a host daemon
    keeps the sandboxes, its machine may differ: run the command there.
    """
    _check_owner(principal)
    settings = services.settings
    rows = [MachineRow.model_validate(row) for row in await services.machine.rows()]
    return MachineRows(items=rows, is_of_sandboxes=not (settings.host_socket or settings.cluster))


@of_owner.get("/v1/security-events", summary="Count the security events of the server")
async def security_events(principal: AnyCaller, services: ServicesOf) -> SecurityEventCounts:
    """Returns how often each kind of security event has occurred since the start, for the owner of the server."""
    _check_owner(principal)
    counted = services.metrics.counted_security_events()
    settings = services.settings
    return SecurityEventCounts(
        items=[SecurityEventCount(kind=kind, action=action, count=count) for kind, action, count in counted],
        are_counted=not (settings.host_socket or settings.cluster),
    )


@of_owner.get(
    "/v1/audit",
    summary="Tell what happened to the server's rights",
    response_model=AuditAnswer,
    responses=problems(401, 403, 422) | {200: {"content": {LINES: {"schema": {"type": "string"}}}}},
)
async def audit_log(
    principal: AnyCaller,
    services: StoresOf,
    form: Annotated[
        Literal["json", "lines"],
        Query(description="`lines`: JSON lines, as `fumehood audit verify` reads them."),
    ] = "json",
) -> Response:
    """Returns the server's own audit record: logins, keys, shares, and sandboxes that its owner killed for others."""
    _check_owner(principal)
    read = services.audit.reading()
    # In a thread: thousands of entries would block the loop.
    return await asyncio.to_thread(lambda: written(read(), form))


def _check_owner(principal: Principal) -> None:
    if not principal.is_owner:
        raise ForbiddenError(
            reason="the settings, events and audit record of the whole server are for its owner"
        )
