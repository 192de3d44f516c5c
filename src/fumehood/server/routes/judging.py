"""Judging: one program, many inputs.

Translation only; the judging ends when the client disconnects.
"""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from fumehood.server.auth import CallersBackend
from fumehood.server.responses import GONE, unless_gone
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, items
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.sandboxes import CaseRunList, NewJudgement

router = guarded_router("judging", "/v1/sandboxes/{sandbox_id}/judge")


@router.post(
    "",
    summary="Run a program for many inputs",
    response_model=CaseRunList,
    responses=SANDBOX_PROBLEMS | problems(400, 413, 429),
)
async def judge(
    sandbox_id: SandboxId, body: NewJudgement, backend: CallersBackend, request: Request
) -> Response:
    """Runs a program once for each input, each time in a process of its own; its imports are imported once, before."""
    runs = await unless_gone(request, backend.judge(sandbox_id, body.request()))
    return Response(status_code=GONE) if runs is None else items(runs)
