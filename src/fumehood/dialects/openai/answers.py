"""Refusals as OpenAI's clients read them, the authentication of callers, and the JSON of a body.

A refusal holds the message of the error, and no internal detail.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from fumehood.errors import FumehoodError, InvalidArgumentError, PathNotFoundError
from fumehood.port.backend import Backend
from fumehood.server import problems
from fumehood.server.auth import principal_of
from fumehood.server.problems import headers_of, message_with_hint, status_of
from fumehood.server.services import Services

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
# The clients know no ended sandbox: a container exists or it does not.
_NOT_THERE = ("sandbox_not_found", "sandbox_closed")
_STATUS_BY_STATUS = {422: 400, 507: 400}


class UnknownFileError(InvalidArgumentError):
    """A file id of the request names no file of the container."""


def refusal(error: FumehoodError) -> JSONResponse:
    """Returns an error as an answer."""
    is_missing = error.code in _NOT_THERE or isinstance(error, (UnknownFileError, PathNotFoundError))
    status = 404 if is_missing else status_of(error)
    status = _STATUS_BY_STATUS.get(status, status)
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {
        "message": message_with_hint(error),
        "type": _TYPES.get(status, kind),
        "param": getattr(error, "field", None),
        "code": error.code,
    }
    return JSONResponse({"error": body}, status, headers=headers_of(error))


answering = problems.answering(refusal)


async def backend_of(services: Services, request: Request) -> Backend:
    """Returns the backend as the caller may see it.

    Raises:
        UnauthenticatedError: The key is missing or not known.
        ForbiddenError: The key may not use sandboxes.
    """
    principal = await principal_of(request)
    principal.require("sandboxes")
    return services.backend_for(principal)
