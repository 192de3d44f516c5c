"""Sandboxes: create, describe, list, change, pause and end.

Translation only: a body becomes a request of the port, and its answer JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from fastapi import Path, Query, Request
from starlette.responses import Response

from fumehood.api.screenshots import take_screenshot
from fumehood.errors import InvalidArgumentError
from fumehood.server.auth import CallersBackend
from fumehood.server.idempotency import IdempotencyKey, once
from fumehood.server.responses import GONE, unless_gone
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.sandboxes import (
    Changed,
    ChangeSandbox,
    FamilyAnswer,
    MetricsAnswer,
    NewSandbox,
    NewTimeout,
    SandboxAnswer,
    SandboxPage,
    UseAnswer,
)
from fumehood.values.charts import JsonValue
from fumehood.values.json_text import json_bytes
from fumehood.values.looking import MAX_LISTED, ListedSandbox, ListOrder, ListSandboxes, ReadFamily, ReadUse
from fumehood.values.plain_data import as_data, fields_data

router = guarded_router("sandboxes", "/v1/sandboxes")
FilesOnly = Annotated[
    bool, Query(description="Keep the files only: its processes end, and its contexts begin anew afterwards.")
]
SandboxId = Annotated[str, Path(max_length=64, description="The sandbox.")]

# The problems that every route with a sandbox in its path may answer.
SANDBOX_PROBLEMS = problems(401, 403, 404, 409, 410, 422, 502, 503)
_PAGE = 100
_FILTERS = ("state", "template", "owner", "parent_id", "q", "order", "with", "limit", "cursor")
_MAX_FILTERS = 20
_LABEL = "metadata."
_LABELS_PARAMETER = {
    "name": "metadata",
    "in": "query",
    "description": "`metadata.NAME=VALUE`: only sandboxes with this label; several are all needed.",
    "style": "form",
    "explode": True,
    "schema": {
        "type": "object",
        "propertyNames": {"pattern": r"^metadata\.[A-Za-z0-9_-]+$"},
        "additionalProperties": {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"},
        "maxProperties": _MAX_FILTERS,
    },
}


def answer(value: object, status: int = 200) -> Response:
    """Returns a value of the port as an answer."""
    return Response(json_bytes(as_data(value)), status, media_type="application/json")


def items(values: Iterable[object]) -> Response:
    """Returns values of the port as a list."""
    return answer({"items": tuple(values)})


@router.post(
    "",
    summary="Make a sandbox",
    status_code=201,
    response_model=SandboxAnswer,
    responses=problems(400, 401, 403, 409, 413, 422, 429, 503),
)
async def create_sandbox(
    body: NewSandbox, backend: CallersBackend, request: Request, idempotency_key: IdempotencyKey = None
) -> Response:
    """Creates a sandbox that belongs to the caller's key, and answers when it is ready to run code."""
    for name in request.query_params:
        # The owner, for one, is the caller's key and cannot be chosen.
        raise InvalidArgumentError(field="query", value=name, allowed="nothing: everything is in the body")

    async def create() -> Response:
        info = await unless_gone(request, backend.create(body.spec()))
        return Response(status_code=GONE) if info is None else answer(info, 201)

    return await once(request, idempotency_key, create)


@router.get(
    "",
    summary="List sandboxes",
    response_model=SandboxPage,
    responses=problems(401, 403, 422, 503),
    openapi_extra={"parameters": [_LABELS_PARAMETER]},
)
async def list_sandboxes(
    backend: CallersBackend,
    request: Request,
    state: Annotated[
        Literal["running", "paused", "ending"] | None, Query(description="Only those in this state.")
    ] = None,
    template: Annotated[str | None, Query(max_length=255, description="Only those of this template.")] = None,
    owner: Annotated[
        str | None,
        Query(max_length=255, description="Only those of this key; others than the owner have their own."),
    ] = None,
    parent_id: Annotated[str | None, Query(max_length=64, description="Only forks of this sandbox.")] = None,
    q: Annotated[
        str, Query(max_length=60, description="Only those with this text in id, template, key or a label.")
    ] = "",
    order: Annotated[
        ListOrder, Query(description="The oldest first, the newest first, or by when they end.")
    ] = "started",
    with_: Annotated[
        Literal["use"] | None, Query(alias="with", description="`use`: with what each uses and does now.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="How many at most.")] = _PAGE,
    cursor: Annotated[
        str | None, Query(max_length=255, description="`next_cursor` of the page before.")
    ] = None,
) -> Response:
    """Lists the caller's living sandboxes, the oldest first; the server's owner sees the sandboxes of all keys.

    A page begins after the last sandbox of the previous page, even if sandboxes were made or ended meanwhile: none is
    listed twice, and none that lives throughout is left out.
    """
    page = await backend.page(
        ListSandboxes(
            owner=owner,
            state=state,
            template=template,
            parent_id=parent_id,
            labels=_labels(request),
            text=q,
            order=order,
            cursor=cursor,
            limit=limit,
            with_use=with_ is not None,
        )
    )
    return answer({"items": [_listed(item) for item in page.items], "next_cursor": page.next_cursor})


def _listed(item: ListedSandbox) -> dict[str, JsonValue]:
    return fields_data(item.info) | ({} if item.use is None else {"use": as_data(item.use)})


@router.get(
    "/{sandbox_id}",
    summary="Describe a sandbox",
    response_model=SandboxAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def get_sandbox(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Describes a living sandbox, paused or not: its limits, its time, and its isolation from the host."""
    return answer(await backend.info(sandbox_id))


@router.delete(
    "/{sandbox_id}",
    summary="End a sandbox",
    status_code=204,
    response_class=Response,
    responses=SANDBOX_PROBLEMS,
)
async def kill_sandbox(
    sandbox_id: SandboxId,
    backend: CallersBackend,
    wait: Annotated[bool, Query(description="False: answer as soon as its end is certain.")] = True,
) -> Response:
    """Ends a sandbox and everything in it, and answers when no process of it is left."""
    if not await backend.kill(sandbox_id, wait=wait):
        # Raises the reason: there is no such sandbox, another key owns it, or it has ended.
        await backend.info(sandbox_id)

    return Response(status_code=204)


@router.patch(
    "/{sandbox_id}",
    summary="Change the labels of a sandbox",
    response_model=SandboxAnswer,
    responses=SANDBOX_PROBLEMS | problems(400, 413),
)
async def change_sandbox(sandbox_id: SandboxId, body: ChangeSandbox, backend: CallersBackend) -> Response:
    """Changes labels of a living sandbox, paused or not, for lists, their filters and its record."""
    await backend.set_labels(sandbox_id, body.metadata)
    return answer(await backend.info(sandbox_id))


@router.post(
    "/{sandbox_id}/timeout",
    summary="Give a sandbox time",
    response_model=SandboxAnswer,
    responses=SANDBOX_PROBLEMS | problems(400, 413),
)
async def set_timeout(sandbox_id: SandboxId, body: NewTimeout, backend: CallersBackend) -> Response:
    """Sets the remaining lifetime of a sandbox, up to the server's maximum; `ends_at` in the answer is the new end."""
    await backend.set_timeout(sandbox_id, body.timeout_seconds)
    return answer(await backend.info(sandbox_id))


@router.post(
    "/{sandbox_id}/pause", summary="Pause a sandbox", response_model=Changed, responses=SANDBOX_PROBLEMS
)
async def pause_sandbox(
    sandbox_id: SandboxId, backend: CallersBackend, files_only: FilesOnly = False
) -> Response:
    """Freezes a sandbox: no process in it runs, and its clocks are stopped. Its memory is kept."""
    return answer({"changed": await backend.pause(sandbox_id, files_only=files_only)})


@router.post(
    "/{sandbox_id}/resume", summary="Resume a sandbox", response_model=Changed, responses=SANDBOX_PROBLEMS
)
async def resume_sandbox(
    sandbox_id: SandboxId, backend: CallersBackend, files_only: FilesOnly = False
) -> Response:
    """Resumes a paused sandbox, with the lifetime that it had left."""
    return answer({"changed": await backend.resume(sandbox_id, files_only=files_only)})


@router.get(
    "/{sandbox_id}/metrics",
    summary="Tell what a sandbox uses",
    response_model=MetricsAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def get_metrics(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Returns the current resource use of a sandbox."""
    return answer(await backend.metrics(sandbox_id))


@router.get(
    "/{sandbox_id}/use",
    summary="Tell what a sandbox uses, without asking it",
    response_model=UseAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def get_use(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Returns the current usage and activity of a sandbox, as known to the host.

    No code runs in the sandbox for that.
    """
    use = await backend.look(sandbox_id, ReadUse())
    return answer(use)


@router.get(
    "/{sandbox_id}/family",
    summary="Show the family of a sandbox",
    response_model=FamilyAnswer,
    responses=SANDBOX_PROBLEMS,
)
async def get_family(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Returns a sandbox, its ancestors and all their forks with their states, including recently ended ones."""
    family = await backend.look(sandbox_id, ReadFamily())
    return answer(family)


@router.get(
    "/{sandbox_id}/screenshot",
    summary="Show the display of a sandbox",
    response_class=Response,
    responses={
        200: {
            "description": "The picture.",
            "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
        },
        **SANDBOX_PROBLEMS,
    },
)
async def get_screenshot(sandbox_id: SandboxId, backend: CallersBackend) -> Response:
    """Returns the screen of a sandbox's display as a PNG; its template must have been built with a display."""
    picture = await take_screenshot(backend, sandbox_id)
    return Response(picture, media_type="image/png", headers={"Cache-Control": "no-store"})


def _labels(request: Request) -> dict[str, str]:
    """Returns the labels to filter a list by.

    An unknown filter is refused, because ignoring it would return too many sandboxes.
    """
    known = set(_FILTERS)
    labels: dict[str, str] = {}

    for name, value in request.query_params.multi_items():
        if name.startswith(_LABEL) and name != _LABEL and name not in labels and len(labels) < _MAX_FILTERS:
            labels[name] = value
        elif name in known:
            known.remove(name)
        else:
            raise InvalidArgumentError(
                field="filter",
                value=name,
                allowed=f"{', '.join(_FILTERS)} and up to {_MAX_FILTERS} of metadata.NAME, each once",
            )

    return {name.removeprefix(_LABEL): value for name, value in labels.items()}
