"""The variables of a context, for readers: the routes never wait for running code, and run no code of the guest.

Translation only.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.responses import Response

from fumehood.server.auth import CallersBackend
from fumehood.server.routes.contexts import ContextId
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import SANDBOX_PROBLEMS, SandboxId, answer
from fumehood.server.schemas.base import model_of
from fumehood.values.looking import MAX_LISTED, ReadVariable, ReadVariables, VariablePage

router = guarded_router("contexts", "/v1/sandboxes/{sandbox_id}/contexts/{context_id}/variables")
_NO_NUL = r"^[^\x00]*$"
_PageAnswer = model_of(VariablePage)
AtCheckpoint = Annotated[
    str | None,
    Query(
        min_length=1, max_length=255, pattern=_NO_NUL, description="As they were at this checkpoint, not now."
    ),
]


@router.get("", summary="List variables", response_model=_PageAnswer, responses=SANDBOX_PROBLEMS)
async def list_variables(
    sandbox_id: SandboxId,
    context_id: ContextId,
    backend: CallersBackend,
    q: Annotated[
        str,
        Query(
            max_length=60, pattern=_NO_NUL, description="Only those with this text in name, type or summary."
        ),
    ] = "",
    cursor: Annotated[
        str | None, Query(max_length=200, pattern=_NO_NUL, description="`next_cursor` of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="How many at most.")] = 200,
    at: AtCheckpoint = None,
) -> Response:
    """Lists the variables of a Python context by name, without running code of their classes.

    If the context runs code or is paused, the last known variables are listed, with their time, so that the request
    does not wait.
    """
    request = ReadVariables(context_id=context_id, text=q, after=cursor, limit=limit, at=at)
    page = await backend.look(sandbox_id, request)
    return answer(page)


@router.get("/{name}", summary="Show a variable", response_model=_PageAnswer, responses=SANDBOX_PROBLEMS)
async def show_variable(
    sandbox_id: SandboxId,
    context_id: ContextId,
    name: Annotated[str, Path(max_length=200, pattern=_NO_NUL, description="The variable.")],
    backend: CallersBackend,
    at: AtCheckpoint = None,
) -> Response:
    """Returns one variable in detail, as the only item of the answer: text, shape, columns and rows, or elements."""
    page = await backend.look(sandbox_id, ReadVariable(name=name, context_id=context_id, at=at))
    return answer(page)
