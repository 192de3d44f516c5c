"""Past and running executions of a sandbox: pages of its records, one execution, the bytes of one result.

Translation only. Reading changes nothing: it resumes no sandbox and extends no lifetime. Bytes of a result come from a
guest: they are sent as a download, with a policy under which no content of them can run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request
from starlette.responses import Response

from fumehood.server.auth import CallersBackend, principal_of
from fumehood.server.detached import PREFIX
from fumehood.server.downloads import span_of
from fumehood.server.problems import no_such_part
from fumehood.server.responses import off_loop_answer
from fumehood.server.routes.contexts import ContextId
from fumehood.server.routes.executions import ExecutionId
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer
from fumehood.server.schemas.cells import CellAnswer, CellPageAnswer
from fumehood.server.schemas.problem import problems
from fumehood.server.services import services_of
from fumehood.values.looking import MAX_CELLS, ReadCell, ReadCells, ReadResult

router = guarded_router("executions", "/v1/sandboxes/{sandbox_id}")
Position = Annotated[int | None, Query(ge=-1, le=1 << 53)]
# What a route answers whose response is bytes of a guest.
BYTES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The bytes; a part of them (206) where `Range` asks for one.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
    206: {"description": "The part that was asked for."},
}
ResultNumber = Annotated[int, Path(ge=0, le=1 << 53, description="Which of its results, from 0.")]
Mime = Annotated[
    str, Path(max_length=255, pattern=r"^[ -~]+$", description="The format, such as `image/png`.")
]
# Formats that no browser takes for a page; any other is given as bytes without a type.
_PLAIN_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
# Of bytes of the guest: they are never a page of ours.
INERT = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "attachment",
    "Cache-Control": "no-store",
}
_IN_PARTS = {**INERT, "Accept-Ranges": "bytes"}


@router.get(
    "/contexts/{context_id}/executions",
    summary="Read what ran in a context",
    response_model=CellPageAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def read_cells(
    sandbox_id: SandboxId,
    context_id: ContextId,
    backend: CallersBackend,
    before: Annotated[Position, Query(description="Only those before this position.")] = None,
    after: Annotated[Position, Query(description="Only those after this position.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_CELLS, description="How many at most.")] = 50,
    what: Annotated[
        Literal["summary", "whole"], Query(description="`whole`: each with its whole `execution`.")
    ] = "summary",
) -> Response:
    """Returns a page of a context's executions in order, including a running one.

    The newest ones if no position is given.
    """
    request = ReadCells(context_id=context_id, before=before, after=after, limit=limit, whole=what == "whole")
    page = await backend.look(sandbox_id, request)
    return await off_loop_answer(page) if request.whole else answer(page)


@router.get(
    "/executions/{execution_id}",
    summary="Read one execution",
    response_model=CellAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def read_cell(
    sandbox_id: SandboxId, execution_id: ExecutionId, backend: CallersBackend, request: Request
) -> Response:
    """Returns an execution with its outputs; if it is still running, with its outputs so far."""
    if execution_id.startswith(PREFIX):
        run = services_of(request).detached.find(await principal_of(request), sandbox_id, execution_id)

        if run.execution_id is None:
            return answer(run.waiting_cell())

        execution_id = run.execution_id

    cell = await backend.look(sandbox_id, ReadCell(execution_id=execution_id))
    return await off_loop_answer(cell)


@router.get(
    "/executions/{execution_id}/results/{number}/{mime:path}",
    summary="Read one format of a result",
    response_class=Response,
    responses=BYTES | SANDBOX_PROBLEMS | problems(416),
)
async def read_result(
    sandbox_id: SandboxId,
    execution_id: ExecutionId,
    number: ResultNumber,
    mime: Mime,
    backend: CallersBackend,
    request: Request,
) -> Response:
    """Returns the bytes of one format of a result, as the code produced them, as a download."""
    data = await backend.look(sandbox_id, ReadResult(execution_id=execution_id, number=number, mime=mime))
    return bytes_answer(request, data, mime)


def bytes_answer(request: Request, data: bytes, mime: str) -> Response:
    """Returns the requested part of a guest's bytes, as an answer in which no content can run."""
    media_type = mime if mime in _PLAIN_TYPES else "application/octet-stream"
    span = span_of(request.headers, len(data))

    if span is None:
        return Response(data, headers=_IN_PARTS, media_type=media_type)

    if not span.size:
        return no_such_part(request, "result", len(data))

    headers = {**_IN_PARTS, "Content-Range": f"bytes {span.start}-{span.end - 1}/{len(data)}"}
    return Response(data[span.start : span.end], 206, headers=headers, media_type=media_type)
