"""Forks: sandboxes that continue from the state of another one.

Translation only; when the client disconnects, the forks of its request are killed.
"""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from fumehood.server.auth import CallersBackend
from fumehood.server.idempotency import IdempotencyKey, once
from fumehood.server.responses import GONE, unless_gone
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.sandboxes import Adoption, ForkedAnswer, NewForks, SandboxAnswer

router = guarded_router("forks", "/v1/sandboxes/{sandbox_id}")


@router.post(
    "/forks",
    summary="Fork a sandbox",
    status_code=201,
    response_model=ForkedAnswer,
    responses=SANDBOX_PROBLEMS | problems(400, 413, 429),
)
async def fork_sandbox(
    sandbox_id: SandboxId,
    body: NewForks,
    backend: CallersBackend,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Makes sandboxes that go on from this one's variables and files, each on its own; this one goes on as well."""

    async def fork() -> Response:
        forked = await unless_gone(request, backend.fork(sandbox_id, body.request()))
        return Response(status_code=GONE) if forked is None else answer(forked, 201)

    return await once(request, idempotency_key, fork)


@router.post(
    "/adopt",
    summary="Let a fork take a sandbox's place",
    response_model=SandboxAnswer,
    responses=SANDBOX_PROBLEMS | problems(400, 413),
)
async def adopt_sandbox(sandbox_id: SandboxId, body: Adoption, backend: CallersBackend) -> Response:
    """Puts a fork in the place of its parent, under the parent's id; what was there is killed."""
    return answer(await backend.adopt(sandbox_id, body.child_id))
