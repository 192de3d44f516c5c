"""The routes of the dialect: those of a SandboxFusion server that runs code.

It answers 200 to any result of a program. A run waits in the fair queue when the server is full, and is then a 504, the
one status after which verl tries again. The clients have no token, so it is read from their address: from the query,
where it is removed before anything can log it, or from the user part, which arrives as HTTP basic and is never logged.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from fumehood.dialects.fusion.bodies import RunCodeCall, RunJupyterCall
from fumehood.dialects.fusion.notebook import jupyter_error_answer, run_jupyter
from fumehood.dialects.fusion.run_code import error_answer, run_code
from fumehood.errors import FumehoodError, QuotaError, UnauthenticatedError
from fumehood.server.auth import take_token_from_query, token_of
from fumehood.server.authenticator import Authenticator
from fumehood.server.json_bodies import DialectBody, read_body
from fumehood.server.principal import Principal
from fumehood.server.problems import headers_of, message_with_hint, status_of
from fumehood.server.responses import unless_gone
from fumehood.server.services import Services

_WAYS = (
    "give the address as http://fumehood:TOKEN@HOST:PORT/run_code or http://HOST:PORT/run_code?token=TOKEN, "
    "or send `Authorization: Bearer TOKEN` or `X-API-Key: TOKEN`"
)


async def principal_of_call(authenticator: Authenticator, connection: HTTPConnection) -> Principal:
    """Returns the authenticated caller, if it may run code.

    Raises:
        UnauthenticatedError: The token is missing or not known; the message says where to put it.
        ForbiddenError: The key may not run code.
    """
    in_query = take_token_from_query(connection)
    given = token_of(connection) or _basic_token(connection) or in_query

    try:
        principal = await authenticator.authenticate(given)
    except UnauthenticatedError as error:
        raise UnauthenticatedError(reason=f"{error.reason}; {_WAYS}") from None

    principal.require("execute")
    return principal


def _basic_token(connection: HTTPConnection) -> str | None:
    """Returns the password of HTTP basic, or the user's name where there is no password."""
    kind, _, value = connection.headers.get("authorization", "").partition(" ")

    if kind.lower() != "basic":
        return None

    try:
        user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None

    return password or user


# Nothing was done, and a later attempt may succeed.
_BUSY = ("overloaded", "queue_timeout", "capacity", "host_unavailable")
_REFUSED = ("unauthenticated", "forbidden", "quota", "rate_limited", "invalid_argument", "request_too_large")
_BUSY_QUOTAS = ("sandboxes", "executions at once")
Run = Callable[[Services, Principal, Any], Awaitable[dict[str, Any]]]
Failed = Callable[[FumehoodError], dict[str, Any]]


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of SandboxFusion's API."""

    async def ping(request: Request) -> Response:
        # As FastAPI encodes a text: as JSON, with quotes.
        return JSONResponse("pong")

    async def code(request: Request) -> Response:
        return await _answered(services, request, RunCodeCall, run_code, lambda e: error_answer(e.message))

    async def jupyter(request: Request) -> Response:
        return await _answered(services, request, RunJupyterCall, run_jupyter, jupyter_error_answer)

    return [
        Route("/run_code", code, methods=["POST"]),
        Route("/run_jupyter", jupyter, methods=["POST"]),
        Route("/v1/ping", ping, methods=["GET"]),
    ]


async def _answered(
    services: Services, request: Request, kind: type[DialectBody], run: Run, failed: Failed
) -> Response:
    try:
        principal = await principal_of_call(services.authenticator, request)
        call = read_body(kind, await request.body())
        answer = await unless_gone(request, run(services, principal, call))
        return JSONResponse(answer)
    except FumehoodError as error:
        if (status := _status(error)) != 200:
            detail = error.message if error.code == "unauthenticated" else message_with_hint(error)
            return JSONResponse({"detail": detail}, status, headers=headers_of(error))

        return JSONResponse(failed(error))


def _status(error: FumehoodError) -> int:
    if error.code in _BUSY or (isinstance(error, QuotaError) and error.quota in _BUSY_QUOTAS):
        return 504

    return status_of(error) if error.code in _REFUSED else 200
