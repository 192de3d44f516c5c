"""The machines behind a server: lists them with their load, and drains one of them.

For callers with the scope `keys`. A server without a cluster has one machine.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from fumehood.client.backend import HttpBackend
from fumehood.cluster.backend import ClusterBackend
from fumehood.engine.backend import LocalBackend
from fumehood.errors import InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.server.auth import KeysCaller, ServicesOf
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import answer
from fumehood.server.schemas.machines import MachinePage, NewDraining
from fumehood.server.schemas.problem import problems
from fumehood.values.machines import MachineInfo, machine_of

router = guarded_router("machines", "/v1/machines")
_HostId = Annotated[str, Path(max_length=64, description="The name of its host.")]


@router.get("", summary="List the machines", response_model=MachinePage, responses=problems(403, 503))
async def list_machines(principal: KeysCaller, services: ServicesOf) -> Response:
    """Returns the machines of the server, with the last report of each."""
    return answer(
        {
            "items": await _machines(services.backend),
            "runs_running": services.queue.running,
            "runs_waiting": services.queue.waiting,
        }
    )


@router.put(
    "/{host_id}/draining",
    summary="Empty a machine, or use it again",
    status_code=204,
    responses=problems(403, 422, 503),
)
async def set_draining(
    host_id: _HostId, body: NewDraining, principal: KeysCaller, services: ServicesOf
) -> Response:
    """Stops or resumes new sandboxes on a machine; forks of its sandboxes are still made there.

    Its sandboxes continue to live until their ends. The setting holds for all servers of the cluster, also after a
    restart.
    """
    backend = services.backend

    if isinstance(backend, ClusterBackend):
        await backend.drain(host_id, body.is_draining)
        return Response(status_code=204)

    here = (await backend.capacity()).host_id

    if host_id != here:
        raise InvalidArgumentError(field="machine", value=host_id, allowed=f"the only one here: {here}")

    assert isinstance(backend, HttpBackend | LocalBackend)
    await backend.set_draining(body.is_draining)
    return Response(status_code=204)


async def _machines(backend: Backend) -> tuple[MachineInfo, ...]:
    return (
        backend.machines if isinstance(backend, ClusterBackend) else (machine_of(await backend.capacity()),)
    )
