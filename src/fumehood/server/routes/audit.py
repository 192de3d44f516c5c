"""The route of a sandbox's audit record.

Translation only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal

from fastapi import Query, Request
from starlette.responses import Response

from fumehood.port.backend import Backend
from fumehood.server.auth import CallersBackend, until_refused
from fumehood.server.openapi import stream_of
from fumehood.server.responses import Line, stream_response
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer
from fumehood.server.schemas.sandboxes import AuditAnswer
from fumehood.values.audit import AuditLog
from fumehood.values.plain_data import as_data

router = guarded_router("audit", "/v1/sandboxes/{sandbox_id}/audit")
LINES = "application/x-ndjson"
AuditForm = Annotated[
    Literal["json", "lines"],
    Query(description="`lines`: JSON lines, as `fumehood audit verify` reads them."),
]


@router.get(
    "",
    summary="Tell what happened in and around a sandbox",
    response_model=AuditAnswer,
    responses={**SANDBOX_PROBLEMS, 200: {"content": {LINES: {"schema": {"type": "string"}}}}},
)
async def audit_log(
    sandbox_id: SandboxId,
    backend: CallersBackend,
    form: AuditForm = "json",
) -> Response:
    """Returns the newest entries of the record, each chained to the previous one.

    The sandbox may have ended recently.
    """
    log = await backend.audit_log(sandbox_id)
    # In a thread: thousands of entries would block the loop.
    return await asyncio.to_thread(written, log, form)


@router.get(
    "/events",
    summary="Follow the security events of a sandbox",
    response_class=Response,
    responses=SANDBOX_PROBLEMS
    | {200: {"description": "Events as they happen.", "content": stream_of("SecurityLine")}},
)
async def security_events(sandbox_id: SandboxId, backend: CallersBackend, request: Request) -> Response:
    """Streams the last 1000 events as lines, then each new one, until the sandbox ends or the client disconnects."""
    # Raises at once when there is no such sandbox.
    await backend.info(sandbox_id)
    return await stream_response(request, _lines(backend, sandbox_id), until_refused=until_refused)


def written(log: AuditLog, form: str) -> Response:
    """Returns a record as an answer, as JSON or as lines."""
    return Response(log.to_jsonl(), media_type=LINES) if form == "lines" else answer(log)


async def _lines(backend: Backend, sandbox_id: str) -> AsyncGenerator[Line, None]:
    async with aclosing(backend.security_events(sandbox_id)) as events:
        async for event in events:
            data = as_data(event)
            assert isinstance(data, dict)
            yield {"type": "security_event", **data}
