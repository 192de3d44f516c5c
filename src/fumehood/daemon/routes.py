"""Routes of the daemon that differ from a server's: sandboxes are made, and listed, for an owner in the request.

Runs in the host daemon. These routes stand before the server's own of the same addresses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from fumehood.server.auth import CallersBackend
from fumehood.server.responses import GONE, unless_gone
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.sandboxes import answer
from fumehood.server.routes.saved import load_for
from fumehood.server.schemas.sandboxes import LoadedAnswer, NewSandbox, SandboxAnswer, SandboxPage

router = guarded_router("sandboxes", "/v1/sandboxes")
_Owner = Annotated[str | None, Query(max_length=255, description="Whose.")]


@router.post("", status_code=201, response_model=SandboxAnswer)
async def create_for(
    body: NewSandbox, backend: CallersBackend, request: Request, owner: _Owner = None
) -> Response:
    """Makes a sandbox that belongs to `owner`."""
    spec = replace(body.spec(), owner=owner or "")
    info = await unless_gone(request, backend.create(spec))
    return Response(status_code=GONE) if info is None else answer(info, 201)


@router.post("/load", status_code=201, response_model=LoadedAnswer)
async def load_as(backend: CallersBackend, request: Request, owner: _Owner = None) -> Response:
    """Makes a sandbox from a saved state; it belongs to `owner`."""
    return await load_for(backend, request, owner or "")


@router.get("", response_model=SandboxPage)
async def list_of(backend: CallersBackend, owner: _Owner = None) -> Response:
    """Lists all sandboxes, or those of `owner`, on one page."""
    return answer({"items": await backend.list(owner), "next_cursor": None})
