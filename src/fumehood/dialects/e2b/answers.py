"""Errors as responses that E2B's clients understand: on the control plane, in a sandbox, in a Connect call.

Bodies are `{code, message}`; the message says what failed and the way out, and never holds a stack, a path of the host
or a secret. An unexpected error becomes such a body and a line in the log; a refusal is sent when the client has sent
its body.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from fumehood.dialects.e2b.bodies import Inbox
from fumehood.errors import FumehoodError
from fumehood.log import events
from fumehood.server.body_limits import IngressRefusalError
from fumehood.server.problems import headers_of, request_id_of, status_of

NOT_FOUND = "The sandbox was not found"
PORT_CLOSED = "The sandbox is running but port is not open"

# A sandbox that has ended or is paused answers like E2B's proxy without a sandbox.
DEAD_CODES = frozenset({"sandbox_not_found", "sandbox_closed", "sandbox_paused", "protocol_violation"})

# E2B's clients know these statuses; all others are those of the native API.
_CONTROL: Mapping[str, int] = {
    "invalid_argument": 400,
    "template": 404,
    "sandbox_closed": 404,
    "protocol_violation": 404,
}
_SANDBOX: Mapping[str, int] = {
    "invalid_argument": 400,
    "path_is_directory": 400,
    "path_not_directory": 400,
    "file_error": 400,
    "command_start": 400,
}
# Nothing was done, and a later attempt may succeed: the clients try again by themselves.
_RETRIED = frozenset({"overloaded", "host_unavailable"})

# Codes of Connect, and the HTTP status that goes with each in a call without a stream.
CONNECT_STATUS: Mapping[str, int] = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
_CONNECT: Mapping[str, str] = {
    "invalid_argument": "invalid_argument",
    "unauthenticated": "unauthenticated",
    "forbidden": "permission_denied",
    "quota": "resource_exhausted",
    "rate_limited": "resource_exhausted",
    "overloaded": "resource_exhausted",
    "capacity": "resource_exhausted",
    "request_too_large": "resource_exhausted",
    "host_unavailable": "unavailable",
    "command_start": "invalid_argument",
    "process_not_found": "not_found",
    "path_not_found": "not_found",
    "path_exists": "already_exists",
    "path_is_directory": "invalid_argument",
    "path_not_directory": "invalid_argument",
    "path_permission": "permission_denied",
    "disk_full": "resource_exhausted",
    "file_error": "failed_precondition",
    "not_offered": "unimplemented",
}


class NotOfferedError(FumehoodError):
    """A feature of E2B that this server does not have."""

    code = "not_offered"

    def __init__(self, *, what: str, instead: str = "") -> None:
        self.what = what
        super().__init__(f"this server does not offer {what}", hint=instead)


class VolumeError(FumehoodError):
    """A volume, or a path in one, does not exist or cannot be used in this way.

    Attributes:
        status: The status of the response.
    """

    code = "volume"

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        self.status = status
        super().__init__(message, hint=hint)


def message_of(error: FumehoodError) -> str:
    """Returns the message of an error, with its hint, in one line."""
    return f"{error.message} ({error.hint})" if error.hint else error.message


def control_answer(error: FumehoodError) -> Response:
    """Returns the response to an error on the control plane."""
    status = _CONTROL.get(error.code, status_of(error))

    if isinstance(error, NotOfferedError):
        status = 501
    elif isinstance(error, VolumeError):
        status = error.status

    headers = {"Should-Retry": "true" if error.code in _RETRIED else "false"}

    if getattr(error, "retry_after_seconds", None) is not None:
        headers |= headers_of(error)

    return plain_answer(status, message_of(error), headers)


def sandbox_answer(error: FumehoodError, sandbox_id: str) -> Response:
    """Returns the response to an error of a plain HTTP request to a sandbox."""
    if error.code in DEAD_CODES:
        return dead_answer(sandbox_id)

    status = 501 if isinstance(error, NotOfferedError) else _SANDBOX.get(error.code, status_of(error))
    return plain_answer(status, message_of(error), headers_of(error) if status == 429 else {})


def connect_answer(error: FumehoodError, sandbox_id: str) -> Response:
    """Returns the response to an error of a Connect call before its stream has begun."""
    if error.code in DEAD_CODES:
        return dead_answer(sandbox_id)

    body = connect_error(error)
    status = CONNECT_STATUS[body["code"]]
    return JSONResponse(body, status, headers=headers_of(error) if status == 429 else {})


def connect_error(error: FumehoodError) -> dict[str, Any]:
    """Returns an error in the JSON form of the Connect protocol."""
    return {"code": _CONNECT.get(error.code, "internal"), "message": message_of(error)}


def dead_answer(sandbox_id: str) -> Response:
    """Returns the response for a sandbox that does not exist or is paused."""
    return JSONResponse({"sandboxId": sandbox_id, "message": NOT_FOUND, "code": 502}, 502)


def closed_port_answer(sandbox_id: str, port: int) -> Response:
    """Returns the response for a port on which nothing listens."""
    return JSONResponse({"sandboxId": sandbox_id, "message": PORT_CLOSED, "port": port, "code": 502}, 502)


def forbidden_answer(sandbox_id: str, state: str) -> Response:
    """Returns the response to a request for a private port whose token is missing or wrong."""
    message = f"the port is private, and the header e2b-traffic-access-token is {state}"
    return JSONResponse({"sandboxId": sandbox_id, "message": message, "code": 403}, 403)


def fault_answer(request_id: str, error: Exception) -> Response:
    """Returns the response to a fault of this server, without internal details."""
    events.REQUEST_FAILED.log(exc_info=error)
    return plain_answer(500, "the server failed; its log says more", {"Should-Retry": "false"})


class GuestJSON(JSONResponse):
    """A response with names of a guest's files, in which bytes that are not UTF-8 are escaped for all clients."""

    def render(self, content: Any) -> bytes:
        """Returns the body in ASCII."""
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def plain_answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a response with a status and a message."""
    return JSONResponse({"code": status, "message": message}, status, headers=dict(headers or {}))


_FIRST_REFUSAL = 400


async def answered(
    scope: Scope, receive: Receive, send: Send, handler: Callable[[Request], Awaitable[Response]]
) -> None:
    """Calls a handler and returns its response; answers its errors."""
    inbox = Inbox(receive)
    request = Request(scope, inbox, send)

    try:
        response = await handler(request)
    except (ClientDisconnect, IngressRefusalError):
        # Handled by the ingress.
        raise
    except Exception as error:  # noqa: BLE001 - the clients understand bodies of their own kind alone
        response = fault_answer(request_id_of(request), error)

    if response.status_code >= _FIRST_REFUSAL:
        await inbox.empty()

    await response(scope, inbox, send)
