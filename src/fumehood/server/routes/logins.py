"""Routes of the console's logins, and the route that describes the caller.

Only the answer that begins a login sets a cookie; `fumehood.server.logins` says which requests it authenticates.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import ValidationError
from starlette.responses import Response

from fumehood.errors import InvalidArgumentError
from fumehood.log import events
from fumehood.server.auth import AnyCaller, KeysCaller, StoresOf, login_of
from fumehood.server.json_bodies import bounded_body
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.routes.keys import KeyId, check_is_under
from fumehood.server.schemas.logins import KeyUse, LoginAnswer, LoginCode, LoginList, Me, NewLogin, Used
from fumehood.server.schemas.problem import problems
from fumehood.server.services import Services
from fumehood.storage.policy import KeyPolicy

# A caller without a token begins a login.
open_router = APIRouter(tags=["logins"], prefix="/v1")
router = guarded_router("logins", "/v1")
_PROBLEMS = problems(401, 403, 404, 422)
_NO_STORE = {"Cache-Control": "no-store"}
_MAX_BODY_BYTES = 4096
LoginId = Annotated[str, Path(pattern=r"^[a-z0-9]{1,64}$", description="The login.")]


@open_router.post(
    "/login",
    summary="Log a browser in",
    status_code=204,
    response_class=Response,
    responses=problems(401, 403, 413, 422, 429),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": NewLogin.model_json_schema()}},
        }
    },
)
async def log_in(request: Request, services: StoresOf) -> Response:
    """Begins a login with a token or a code, and sets its cookie; for the console's own pages.

    The cookie is accepted on native routes only, and only together with the header `X-Fumehood-Console: 1`.
    """
    services.logins.check_page(request)
    wanted = _read(await bounded_body(request, _MAX_BODY_BYTES))

    async with services.rate_limits.login():
        if wanted.token is not None:
            cookie = await services.logins.begin_with_token(wanted.token, request)
        else:
            cookie = await services.logins.begin_with_code(wanted.code or "", request)

    response = Response(status_code=204, headers=_NO_STORE)
    services.logins.set_cookie(request, response, cookie)
    return response


def _read(body: bytes) -> NewLogin:
    try:
        wanted = NewLogin.model_validate(json.loads(body))
    except (ValueError, RecursionError, ValidationError):
        wanted = NewLogin()

    if (wanted.token is None) == (wanted.code is None):
        # What was sent may be a token, and is not repeated.
        raise InvalidArgumentError(field="body", value=..., allowed='{"token": TOKEN} or {"code": CODE}')

    return wanted


@router.delete("/login", summary="Log this browser out", status_code=204, response_class=Response)
async def log_out(principal: AnyCaller, services: StoresOf, request: Request) -> Response:
    """Ends the login of the request, and deletes its cookie."""
    login = login_of(request)

    if login is not None:
        await _end(services, principal.key_id, login.id)

    response = Response(status_code=204, headers=_NO_STORE)
    services.logins.set_cookie(request, response, "")
    return response


@router.post("/login/codes", summary="Make a code for a login", status_code=201, responses=_PROBLEMS)
async def make_code(principal: AnyCaller, services: StoresOf, request: Request) -> LoginCode:
    """Makes a code with which a browser logs in once, within ten minutes, as the caller of this request."""
    code, expires_at = await services.logins.new_code(principal.key_id, login_of(request))
    base = (services.settings.public_url or str(request.base_url)).rstrip("/")
    return LoginCode(
        code=code, expires_at=datetime.fromtimestamp(expires_at, UTC), url=f"{base}/console/#login={code}"
    )


@router.get("/logins", summary="List the logins", responses=problems(401))
async def list_logins(principal: AnyCaller, services: StoresOf, request: Request) -> LoginList:
    """Lists the living logins of the caller's key."""
    current = login_of(request)
    found = await services.logins.stored.list(principal.key_id)
    return LoginList(items=[LoginAnswer.of(login, current) for login in found])


@router.delete("/logins", summary="Log out everywhere", status_code=204, response_class=Response)
async def log_out_everywhere(principal: AnyCaller, services: StoresOf) -> Response:
    """Ends all logins of the caller's key, including the one of this request."""
    await _end(services, principal.key_id)
    return Response(status_code=204)


@router.delete(
    "/logins/{login_id}", summary="End a login", status_code=204, response_class=Response, responses=_PROBLEMS
)
async def end_login(login_id: LoginId, principal: AnyCaller, services: StoresOf) -> Response:
    """Ends one login of the caller's key; does nothing if it has ended."""
    await _end(services, principal.key_id, login_id)
    return Response(status_code=204)


async def _end(services: Services, key_id: str, login_id: str | None = None) -> None:
    count = await services.logins.end(key_id, login_id)
    events.LOGIN_ENDED.log(key_id=key_id, count=count)

    if count:
        services.audit.note("login_ended", key_id=key_id, login_id=login_id, count=count)


@router.get("/me", summary="Tell who the caller is", responses=problems(401))
async def get_me(principal: AnyCaller, services: StoresOf, request: Request) -> Me:
    """Returns the caller's key, its scopes, and the present use of its quotas."""
    name = "owner" if principal.is_owner else (await services.keys.get(principal.key_id)).name
    use = await _use_of(principal.key_id, principal.policy, services)
    return Me.of(principal, name, login_of(request), use)


@router.get("/keys/{key_id}/use", summary="Tell what a key uses now", responses=_PROBLEMS)
async def get_use(key_id: KeyId, principal: KeysCaller, services: StoresOf) -> KeyUse:
    """Returns the use of a key's quotas: so far today (UTC), and at this moment."""
    await check_is_under(key_id, principal, services)
    policy = KeyPolicy() if key_id == "owner" else (await services.keys.get(key_id)).policy
    return await _use_of(key_id, policy, services)


async def _use_of(key_id: str, policy: KeyPolicy, services: Services) -> KeyUse:
    today = services.ledger.today(key_id)
    return KeyUse(
        sandboxes=Used(used=len(await services.backend.list(key_id)), maximum=policy.max_sandboxes),
        executions_at_once=Used(
            used=services.spending.executions.get(key_id, 0), maximum=policy.max_concurrent_executions
        ),
        executions_today=Used(used=today.executions, maximum=policy.executions_per_day),
        cpu_seconds_today=Used(used=today.cpu_seconds, maximum=policy.cpu_seconds_per_day),
    )
