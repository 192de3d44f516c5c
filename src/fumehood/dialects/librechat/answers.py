"""Refusals as LibreChat's clients read them, and the authentication of callers.

A refusal holds the message of the error, and no internal detail.
"""

from __future__ import annotations

import math

from starlette.requests import Request
from starlette.responses import JSONResponse

from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.server import problems
from fumehood.server.auth import token_of
from fumehood.server.principal import Principal
from fumehood.server.problems import headers_of, message_with_hint, status_of
from fumehood.server.services import Services

# Nothing was done, and a later attempt may succeed: the one refusal that the clients report to their users as such.
_BUSY = ("overloaded", "queue_timeout", "capacity", "quota", "rate_limited")
_ERROR_BY_STATUS = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    410: "gone",
    413: "file_too_large",
    422: "invalid_request",
}


class NotThereError(InvalidArgumentError):
    """A file, a session or a token of the request does not exist, or belongs to another key."""


def refusal(error: FumehoodError) -> JSONResponse:
    """Returns an error as an answer."""
    if error.code in _BUSY:
        seconds = getattr(error, "retry_after_seconds", None)
        body = {
            "error": "rate_limited",
            "retry_after_seconds": math.ceil(max(1.0, 1.0 if seconds is None else seconds)),
            "details": error.message,
        }
        return JSONResponse(body, 429, headers=headers_of(error))

    if isinstance(error, NotThereError):
        return JSONResponse({"error": "not_found", "code": "not_found", "details": error.hint}, 404)

    status = status_of(error)
    return JSONResponse(
        {
            "error": _ERROR_BY_STATUS.get(status, error.code),
            "code": error.code,
            "details": message_with_hint(error),
        },
        status,
        headers=headers_of(error),
    )


answering = problems.answering(refusal)


async def caller_of(services: Services, request: Request) -> Principal:
    """Returns the authenticated caller, by `X-API-Key` as older clients send it, or by `Authorization: Bearer`.

    Raises:
        UnauthenticatedError: The key is missing or not known.
        ForbiddenError: The key may not run code.
    """
    # A newer client may send a token of its own as Bearer, beside the key that its operator has set.
    given = request.headers.get("x-api-key") or token_of(request)
    principal = await services.authenticator.authenticate(given)
    principal.require("execute")
    return principal
