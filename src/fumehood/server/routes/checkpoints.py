"""Checkpoints: points of a context, together with the files, to go back to.

Translation only.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from fumehood.server.auth import CallersBackend
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer, items
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.sandboxes import CheckpointAnswer, CheckpointList, NewCheckpoint
from fumehood.values.requests import DropCheckpoint, ListCheckpoints, RollBack

router = guarded_router("checkpoints", "/v1/sandboxes/{sandbox_id}/checkpoints")
CheckpointId = Annotated[str, Path(max_length=255, description="The checkpoint's id, or its name.")]


@router.get("", summary="List checkpoints", response_model=CheckpointList, responses=SANDBOX_PROBLEMS)
async def list_checkpoints(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Lists the checkpoints of a sandbox, the oldest first."""
    return items(await backend.checkpoint_call(sandbox_id, ListCheckpoints()))


@router.post(
    "",
    summary="Make a checkpoint",
    status_code=201,
    response_model=CheckpointAnswer,
    responses=SANDBOX_PROBLEMS | problems(400, 413),
)
async def create_checkpoint(sandbox_id: SandboxId, body: NewCheckpoint, backend: CallersBackend) -> Response:
    """Keeps the state of a context together with all writable files. Of more than 16 the oldest is dropped."""
    (checkpoint,) = await backend.checkpoint_call(sandbox_id, body.call())
    return answer(checkpoint, 201)


@router.post(
    "/{checkpoint_id}/rollback",
    summary="Go back to a checkpoint",
    response_model=CheckpointAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def roll_back(sandbox_id: SandboxId, checkpoint_id: CheckpointId, backend: CallersBackend) -> Response:
    """Puts state and files back to what they were; the checkpoint stays."""
    (checkpoint,) = await backend.checkpoint_call(sandbox_id, RollBack(checkpoint_id=checkpoint_id))
    return answer(checkpoint)


@router.delete(
    "/{checkpoint_id}",
    summary="Drop a checkpoint",
    status_code=204,
    response_class=Response,
    responses=SANDBOX_PROBLEMS,
)
async def drop_checkpoint(
    sandbox_id: SandboxId, checkpoint_id: CheckpointId, backend: CallersBackend
) -> Response:
    """Forgets a checkpoint, and frees what it holds."""
    await backend.checkpoint_call(sandbox_id, DropCheckpoint(checkpoint_id=checkpoint_id))
    return Response(status_code=204)
