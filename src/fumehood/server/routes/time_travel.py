"""Time travel: checkpoints to go back to, forks that continue from one state, and one program judged by many inputs.

Translation only. When the client disconnects, the forks of its request are killed, and its judging ends.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from fumehood.server.auth import CallersBackend
from fumehood.server.idempotency import IdempotencyKey, once
from fumehood.server.responses import GONE, unless_gone
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer, items
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.sandboxes import (
    Adoption,
    CaseRunList,
    CheckpointAnswer,
    CheckpointList,
    ForkedAnswer,
    NewCheckpoint,
    NewForks,
    NewJudgement,
    SandboxAnswer,
)
from fumehood.values.requests import DropCheckpoint, ListCheckpoints, RollBack

checkpoints_router = guarded_router("checkpoints", "/v1/sandboxes/{sandbox_id}/checkpoints")
CheckpointId = Annotated[str, Path(max_length=255, description="The checkpoint's id, or its name.")]


@checkpoints_router.get(
    "", summary="List checkpoints", response_model=CheckpointList, responses=SANDBOX_PROBLEMS
)
async def list_checkpoints(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Lists the checkpoints of a sandbox, the oldest first."""
    return items(await backend.checkpoint_call(sandbox_id, ListCheckpoints()))


@checkpoints_router.post(
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


@checkpoints_router.post(
    "/{checkpoint_id}/rollback",
    summary="Go back to a checkpoint",
    response_model=CheckpointAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def roll_back(sandbox_id: SandboxId, checkpoint_id: CheckpointId, backend: CallersBackend) -> Response:
    """Puts state and files back to what they were; the checkpoint stays."""
    (checkpoint,) = await backend.checkpoint_call(sandbox_id, RollBack(checkpoint_id=checkpoint_id))
    return answer(checkpoint)


@checkpoints_router.delete(
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


forks_router = guarded_router("forks", "/v1/sandboxes/{sandbox_id}")


@forks_router.post(
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
    """Makes sandboxes that continue from this one's variables and files, each on its own; so does this one."""

    async def fork() -> Response:
        forked = await unless_gone(request, backend.fork(sandbox_id, body.request()))
        return Response(status_code=GONE) if forked is None else answer(forked, 201)

    return await once(request, idempotency_key, fork)


@forks_router.post(
    "/adopt",
    summary="Let a fork take a sandbox's place",
    response_model=SandboxAnswer,
    responses=SANDBOX_PROBLEMS | problems(400, 413),
)
async def adopt_sandbox(sandbox_id: SandboxId, body: Adoption, backend: CallersBackend) -> Response:
    """Puts a fork in the place of its parent, under the parent's id; what was there is killed."""
    return answer(await backend.adopt(sandbox_id, body.child_id))


judging_router = guarded_router("judging", "/v1/sandboxes/{sandbox_id}/judge")


@judging_router.post(
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
