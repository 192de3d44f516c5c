"""Time travel: checkpoints, forks that continue from one state, and one program judged with many inputs.

Translation only. If the client disconnects, the forks of its request are killed, and its judging ends.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from fumehood.server.auth import CallersBackend
from fumehood.server.idempotency import IdempotencyKey, once
from fumehood.server.responses import GONE, unless_gone
from fumehood.server.routes.cells import INERT
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer, items
from fumehood.server.schemas.base import model_of
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
from fumehood.values.moments import NOW, Comparison, ReadDifferences, ReadKeptFile
from fumehood.values.requests import DropCheckpoint, ListCheckpoints, RollBack

checkpoints_router = guarded_router("checkpoints", "/v1/sandboxes/{sandbox_id}/checkpoints")
_NO_NUL = r"^[^\x00]*$"
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
    """Saves the state of a context together with all writable files. At most 16 checkpoints are kept.

    Then the oldest is dropped.
    """
    (checkpoint,) = await backend.checkpoint_call(sandbox_id, body.call())
    return answer(checkpoint, 201)


@checkpoints_router.post(
    "/{checkpoint_id}/rollback",
    summary="Go back to a checkpoint",
    response_model=CheckpointAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def roll_back(sandbox_id: SandboxId, checkpoint_id: CheckpointId, backend: CallersBackend) -> Response:
    """Restores the state and the files of a checkpoint, which is kept."""
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
    """Removes a checkpoint, and frees its memory and disk space."""
    await backend.checkpoint_call(sandbox_id, DropCheckpoint(checkpoint_id=checkpoint_id))
    return Response(status_code=204)


@checkpoints_router.get(
    "/{checkpoint_id}/file",
    summary="Read a file of a checkpoint",
    response_class=Response,
    responses={
        200: {
            "description": "The first 1 MiB of the file.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        **SANDBOX_PROBLEMS,
    },
)
async def read_kept_file(
    sandbox_id: SandboxId,
    checkpoint_id: CheckpointId,
    path: Annotated[str, Query(min_length=1, max_length=4096, pattern=_NO_NUL, description="Its path.")],
    backend: CallersBackend,
) -> Response:
    """Returns the first 1 MiB of a file as it was at a checkpoint, as a download."""
    data = await backend.look(sandbox_id, ReadKeptFile(checkpoint_id=checkpoint_id, path=path))
    return Response(data, headers=INERT, media_type="application/octet-stream")


compare_router = guarded_router("checkpoints", "/v1/sandboxes/{sandbox_id}/compare")
_Comparison = model_of(Comparison)
_Moment = Annotated[str, Query(min_length=1, max_length=255, pattern=_NO_NUL)]


@compare_router.get(
    "", summary="Compare two moments", response_model=_Comparison, responses=SANDBOX_PROBLEMS | problems(400)
)
async def compare_moments(
    sandbox_id: SandboxId,
    backend: CallersBackend,
    before: Annotated[_Moment, Query(description="The earlier one: a checkpoint, by its id or its name.")],
    after: Annotated[_Moment, Query(description="The later one: a checkpoint, or `now`.")] = NOW,
) -> Response:
    """Returns the differences between two moments: variables of a context and files.

    Nothing in the sandbox is changed.
    """
    compared = await backend.look(sandbox_id, ReadDifferences(before=before, after=after))
    return answer(compared)


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
    """Creates sandboxes that continue independently from this one's variables and files; this one continues as well."""

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
    """Replaces a sandbox by one of its forks, which takes over its id; the replaced sandbox is killed."""
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
    """Runs a program once for each input, each time in a process of its own.

    Its imports are made once, before the first run.
    """
    runs = await unless_gone(request, backend.judge(sandbox_id, body.request()))
    return Response(status_code=GONE) if runs is None else items(runs)
