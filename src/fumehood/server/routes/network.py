"""The network of a sandbox: its rules, and the log of its connections.

Translation only: the tenant's backend decides which network a key may request.
"""

from __future__ import annotations

from starlette.responses import Response

from fumehood.server.auth import CallersBackend
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer, items
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.sandboxes import EgressLog, NewNetwork, SandboxAnswer

router = guarded_router("network", "/v1/sandboxes/{sandbox_id}/network")


@router.put(
    "",
    summary="Change what a sandbox may reach",
    response_model=SandboxAnswer,
    responses=SANDBOX_PROBLEMS | problems(400, 413),
)
async def set_network(sandbox_id: SandboxId, body: NewNetwork, backend: CallersBackend) -> Response:
    """Changes the network that a sandbox may reach; connections that the new rules forbid are closed."""
    await backend.set_network(sandbox_id, body.network())
    return answer(await backend.info(sandbox_id))


@router.get(
    "/log",
    summary="Tell what a sandbox reached and tried to reach",
    response_model=EgressLog,
    responses=SANDBOX_PROBLEMS,
)
async def egress_log(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Returns the last 1000 allowed and the last 1000 refused connections, each with the rule that applied."""
    return items(await backend.egress_log(sandbox_id))
