"""What happened in and around a sandbox: its audit record.

Runs in the server process. Translation only.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import Response

from fumehood.server.auth import CallersBackend
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer
from fumehood.server.schemas.audit import AuditAnswer

router = guarded_router("audit", "/v1/sandboxes/{sandbox_id}/audit")
_LINES = "application/x-ndjson"


@router.get(
    "",
    summary="Tell what happened in and around a sandbox",
    response_model=AuditAnswer,
    responses={**SANDBOX_PROBLEMS, 200: {"content": {_LINES: {"schema": {"type": "string"}}}}},
)
async def audit_log(
    sandbox_id: SandboxId,
    backend: CallersBackend,
    form: Annotated[
        Literal["json", "lines"],
        Query(description="`lines`: JSON lines, as `fumehood audit verify` reads them."),
    ] = "json",
) -> Response:
    """Tells the newest entries of the record, each chained to the one before. It may have ended lately."""
    log = await backend.audit_log(sandbox_id)
    return Response(log.to_jsonl(), media_type=_LINES) if form == "lines" else answer(log)
