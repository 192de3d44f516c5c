"""Routes of shares: the key of a sandbox makes, lists and revokes them, and a reader who has the address opens them.

A secret is only in the answer that makes a share; the routes for readers are in `shared.py`.
"""

from __future__ import annotations

import json
import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import ValidationError

from fumehood.errors import InvalidArgumentError
from fumehood.log import events
from fumehood.server.auth import AnyCaller, CallersBackend, StoresOf
from fumehood.server.json_bodies import bounded_body
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.shared import shared_answer
from fumehood.server.schemas.problem import problems
from fumehood.server.schemas.shares import (
    NewShare,
    NewShareAnswer,
    OpenedShare,
    ShareAnswer,
    ShareList,
    ShareSecret,
)
from fumehood.storage.shares import OF_ALL_CONTEXTS, SharedView
from fumehood.values.requests import DEFAULT_CONTEXT_ID
from fumehood.values.sandbox import SandboxInfo

router = guarded_router("shares", "/v1")
# A reader has no token before it has opened one.
open_router = APIRouter(tags=["shares"], prefix="/v1")
ShareId = Annotated[str, Path(pattern=r"^[0-9a-z]{1,64}$", description="The share.")]
_PROBLEMS = problems(401, 403, 404, 410, 422, 429)
_MAX_BODY_BYTES = 4096
# Of a clock that goes ahead of this server's.
_SLACK_SECONDS = 60.0
_OF_NOW = frozenset({"variables", "files"})


@router.post(
    "/shares",
    summary="Share a sandbox",
    status_code=201,
    response_model=NewShareAnswer,
    responses=_PROBLEMS,
)
async def make_share(
    wanted: NewShare, principal: AnyCaller, backend: CallersBackend, services: StoresOf, request: Request
) -> NewShareAnswer:
    """Makes a read-only view of one sandbox for readers with its address, without an account.

    It shows the chosen parts of one context, in the chosen time; it ends when its time is over, when the key that made
    it ends, or within two seconds of `DELETE /v1/shares/{share_id}`. A key may have 200 shares.
    """
    services.shares.require_on()
    _check(wanted, await backend.info(wanted.sandbox_id))
    now = time.time()
    view = SharedView(
        sandbox_id=wanted.sandbox_id,
        context_id=wanted.context_id,
        shows=tuple(wanted.shows),
        from_at=None if wanted.from_at is None else wanted.from_at.timestamp(),
        until_at=None if wanted.until_at is None else min(now, wanted.until_at.timestamp()),
    )
    share, secret = await services.shares.stored.make(principal.key_id, view, wanted.seconds)
    events.SHARE_MADE.log(
        key_id=share.key_id,
        share_id=share.id,
        sandbox_id=share.sandbox_id,
        shows=list(share.shows),
        seconds=wanted.seconds,
    )
    services.audit.note(
        "share_made",
        share_id=share.id,
        by=share.key_id,
        sandbox_id=share.sandbox_id,
        shows=list(share.shows),
        seconds=wanted.seconds,
    )
    base = (services.settings.public_url or str(request.base_url)).rstrip("/")
    return NewShareAnswer(
        share=ShareAnswer.of(share, 0), secret=secret, url=f"{base}/share/{share.id}#{secret}"
    )


def _check(wanted: NewShare, info: SandboxInfo) -> None:
    latest = time.time() + _SLACK_SECONDS

    for name in ("from_at", "until_at"):
        at = getattr(wanted, name)

        if at is not None and at.timestamp() > latest:
            raise InvalidArgumentError(
                field=name, value=at.isoformat(), allowed="a time that is not in the future"
            )

    if wanted.until_at is not None and (shown := sorted(_OF_NOW.intersection(wanted.shows))):
        raise InvalidArgumentError(
            field="shows",
            value=", ".join(shown),
            allowed="these only without `until_at`: they are those of now",
        )

    if wanted.context_id != DEFAULT_CONTEXT_ID and (
        shown := sorted(OF_ALL_CONTEXTS.intersection(wanted.shows))
    ):
        raise InvalidArgumentError(
            field="shows",
            value=", ".join(shown),
            allowed=f"these only with the context {DEFAULT_CONTEXT_ID}: they are of the whole sandbox",
        )

    if "files" in wanted.shows and info.idle_timeout_seconds is not None:
        # Reading a file is a use of the sandbox, and looking must not lengthen a life.
        raise InvalidArgumentError(
            field="shows", value="files", allowed="no files of a sandbox that ends when it is not used"
        )


@router.get("/shares", summary="List shares", response_model=ShareList, responses=problems(401, 403, 422))
async def list_shares(
    principal: AnyCaller,
    services: StoresOf,
    sandbox_id: Annotated[str | None, Query(max_length=64, description="Only those of this sandbox.")] = None,
) -> ShareList:
    """Lists the shares of the caller's key that have not ended; the server's owner sees the shares of all keys."""
    principal.require("sandboxes")
    key_id = None if principal.is_owner else principal.key_id
    found = await services.shares.stored.list(key_id, sandbox_id)
    return ShareList(items=[ShareAnswer.of(share, services.shares.readers[share.id]) for share in found])


@router.delete("/shares/{share_id}", summary="Revoke a share", status_code=204, responses=_PROBLEMS)
async def revoke_share(share_id: ShareId, principal: AnyCaller, services: StoresOf) -> None:
    """Ends a share of the caller's key, and the connections of its readers; does nothing if it has ended."""
    principal.require("sandboxes")
    count = await services.shares.end(share_id, None if principal.is_owner else principal.key_id)
    events.SHARE_REVOKED.log(share_id=share_id, by=principal.key_id, count=count)

    if count:
        services.audit.note("share_revoked", share_id=share_id, by=principal.key_id)


@open_router.post(
    "/shares/{share_id}/open",
    summary="Open a share",
    response_model=OpenedShare,
    responses=problems(401, 403, 413, 422, 429),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": ShareSecret.model_json_schema()}},
        }
    },
)
async def open_share(share_id: ShareId, services: StoresOf, request: Request) -> OpenedShare:
    """Exchanges the secret of a share for a token that is accepted only on the routes of this share.

    Accounts, cookies and other tokens are ignored.
    """
    body = await bounded_body(request, _MAX_BODY_BYTES)

    async with services.rate_limits.login():
        share, token = await services.shares.open(share_id, _secret_of(body))

    services.audit.note("share_opened", share_id=share.id, of=share.key_id)
    shown = await shared_answer(services, share)
    return OpenedShare(token=token, share=shown)


def _secret_of(body: bytes) -> str:
    """Returns the secret in a body; an empty text, which opens no share, if there is none."""
    try:
        return ShareSecret.model_validate(json.loads(body)).secret
    except (ValueError, RecursionError, ValidationError):
        return ""
