"""Turns an error of the tree into a response: its status, and a body of problem details (RFC 9457).

A body holds the fields of the error: code, message, hint, the typed fields, whether the outcome is unknown. It never
holds a path, a stack or a secret of the host: an error outside of the tree becomes `internal` and a line in the log
under the request's id, which the ingress logs.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from fumehood.client.connection import UNKNOWN_FIELD
from fumehood.errors import FumehoodError, RateLimitError
from fumehood.text import visible_line
from fumehood.values.plain_data import as_data

Handler = Callable[[Request], Awaitable[Response]]
MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:fumehood:problem:"

_FAULTS = 20
_DEPTH = 16
_NAME = 200
# By stable code; a code that is missing here is the server's own fault.
STATUS_BY_CODE: Mapping[str, int] = {
    "language_unavailable": 400,
    "no_screenshot": 404,
    "invalid_argument": 422,
    "unauthenticated": 401,
    "forbidden": 403,
    "network_forbidden": 403,
    "limit_forbidden": 403,
    "quota": 429,
    "rate_limited": 429,
    "overloaded": 503,
    "server_ending": 503,
    "queue_timeout": 504,
    "request_too_large": 413,
    "idempotency_conflict": 409,
    "host_unavailable": 503,
    "host_version": 501,
    "capacity": 503,
    "sandbox_start": 503,
    "isolation_unavailable": 503,
    "template": 422,
    "template_store": 422,
    "image": 422,
    "image_not_found": 422,
    "image_access": 422,
    "image_platform": 422,
    "image_damaged": 422,
    "sandbox_not_found": 404,
    "sandbox_closed": 410,
    "sandbox_paused": 409,
    "checkpoint": 409,
    "checkpoint_not_found": 404,
    "checkpoint_lost": 409,
    "checkpoint_unavailable": 409,
    "language_checkpoint": 409,
    "save": 409,
    "load": 422,
    "saved_state_damaged": 422,
    "saved_state_version": 422,
    "fork_failed": 409,
    "fork_too_deep": 409,
    "fork_unavailable": 409,
    "port_closed": 502,
    "bad_gateway": 502,
    "slow_reader": 408,
    "protocol_violation": 502,
    "context_not_found": 404,
    "execution_not_found": 404,
    "record_not_found": 404,
    "command_start": 422,
    "command_timeout": 504,
    "process_not_found": 404,
    "file_error": 422,
    "path_not_found": 404,
    "path_exists": 409,
    "path_is_directory": 409,
    "path_not_directory": 409,
    "path_permission": 403,
    "path_not_text": 422,
    "file_too_large": 413,
    "disk_full": 507,
    "batch_not_found": 404,
    "batch_lines_lost": 410,
    "batch_taken_over": 409,
    "key_not_found": 404,
    "blob_not_found": 404,
    "no_host_name": 404,
    "storage": 503,
}
# Fields of every error, or of Python's, that have places of their own in the body or none.
_NOT_FIELDS = ("message", "hint", "outcome_unknown", "errno", "args", "stdout", "stderr")


def status_of(error: FumehoodError) -> int:
    """Returns the HTTP status for an error, also for dialects, which make bodies of their own."""
    return STATUS_BY_CODE.get(error.code, 500)


def headers_of(error: FumehoodError) -> dict[str, str]:
    """Returns the headers of the response to an error: `Retry-After`, `WWW-Authenticate`."""
    if error.code == "unauthenticated":
        return {"WWW-Authenticate": "Bearer"}

    seconds = getattr(error, "retry_after_seconds", None)

    if seconds is None and error.code in ("capacity", "host_unavailable"):
        seconds = 1.0

    if seconds is None:
        return {}

    wait = str(max(1, math.ceil(seconds)))

    if isinstance(error, RateLimitError):
        # draft-ietf-httpapi-ratelimit-headers: the quota and its window, what is left of it, and until when.
        policy = f'"{error.limit}"'
        return {
            "Retry-After": wait,
            "RateLimit-Policy": f"{policy};q={error.maximum};w=60",
            "RateLimit": f"{policy};r=0;t={wait}",
        }

    return {"Retry-After": wait}


def _is_field(name: str) -> bool:
    return not name.startswith("_") and name not in _NOT_FIELDS


def problem_data(error: FumehoodError, request_id: str) -> dict[str, Any]:
    """Returns the body for an error."""
    status = status_of(error)
    given = {name: value for name, value in vars(error).items() if _is_field(name)}

    if isinstance(error, OSError) and error.errno is not None:
        given["errno"] = error.errno

    return {
        "type": f"{_TYPE}{error.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.message,
        "code": error.code,
        "hint": error.hint,
        "outcome_unknown": error.outcome_unknown,
        "request_id": request_id,
        "fields": as_data(given),
    }


def plain_problem(status: int, code: str, detail: str, request_id: str, hint: str = "") -> dict[str, Any]:
    """Returns the body for a fault outside of the error tree: an unknown route, a malformed request."""
    return {
        "type": f"{_TYPE}{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "hint": hint,
        "outcome_unknown": status == 500,
        "request_id": request_id,
        "fields": {},
    }


def no_such_part(request: HTTPConnection, what: str, size_bytes: int) -> JSONResponse:
    """Returns the response to a `Range` outside the content."""
    detail = f"the {what} has {size_bytes:,} bytes and no such range"
    body = plain_problem(416, "range_not_satisfiable", detail, request_id_of(request))
    return JSONResponse(body, 416, headers={"Content-Range": f"bytes */{size_bytes}"}, media_type=MEDIA_TYPE)


def request_id_of(request: HTTPConnection) -> str:
    """Returns the id that the ingress gave to this request."""
    return str(request.scope.get("state", {}).get("request_id", ""))


# Plainer texts for those of the framework that need one of its manuals.
_REASONS = {
    "extra_forbidden": UNKNOWN_FIELD,
    "missing": "it must be given",
    "json_invalid": "it is not valid JSON",
    "model_attributes_type": "it must be a JSON object",
}
_SHOWN = (bool, int, float)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Returns the response to an error of the tree."""
    assert isinstance(error, FumehoodError)
    return _response(problem_data(error, request_id_of(request)), headers_of(error))


async def answer_http_error(request: Request, error: Exception) -> JSONResponse:
    """Returns the response to a refusal of the framework: unknown routes and methods."""
    assert isinstance(error, HTTPException)
    named = {413: "request_too_large"}
    code = named.get(error.status_code) or HTTPStatus(error.status_code).name.lower()
    headers = dict(error.headers or {})
    detail, hint = str(error.detail), ""

    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(_allowed_methods(request)))
        detail = f"{visible_line(request.url.path)} does not take {visible_line(request.method)}"
        hint = f"it takes {headers['Allow']}"
    elif detail == HTTPStatus.NOT_FOUND.phrase:
        # The framework's own text for an unknown route; no error of ours has it.
        detail = f"there is no {visible_line(request.method)} {visible_line(request.url.path)} here"
        hint = "`GET /openapi.json` lists the routes"

    body = plain_problem(error.status_code, code, detail, request_id_of(request), hint)
    return _response(body, headers)


async def answer_invalid(request: Request, error: Exception) -> JSONResponse:
    """Returns the response to a request that does not have the described form: which field, and why."""
    assert isinstance(error, RequestValidationError)
    faults = [_fault(fault) for fault in error.errors()[:_FAULTS]]
    detail = "; ".join(f"{fault['field']}: {fault['reason']}" for fault in faults)
    sent = request.headers.get("content-type", "").partition(";")[0].strip()
    hint = "`GET /openapi.json` describes the form of each request"

    if faults[0]["field"] == "body" and not sent.endswith("json"):
        # The default of `curl -d`.
        hint = f"send `Content-Type: application/json`, not {visible_line(repr(sent))}"

    body = plain_problem(422, "invalid_argument", detail, request_id_of(request), hint)
    return _response({**body, "fields": {"faults": faults}}, {})


def _fault(fault: Mapping[str, Any]) -> dict[str, str]:
    """Returns the wrong field and the reason; unknown names are cut to one line."""
    kind, given = fault["type"], fault.get("input")
    place = () if kind == "json_invalid" else fault["loc"][1:][:_DEPTH]
    reason = _REASONS.get(kind, fault["msg"])

    if kind == "json_invalid":
        reason = f"{reason} from character {int(fault['loc'][-1]) + 1} on: {fault['ctx']['error']}"
    elif kind not in _REASONS and isinstance(given, _SHOWN if kind != "literal_error" else (*_SHOWN, str)):
        # Another text may be a secret.
        reason = f"{reason}, not {given!r}"

    return {
        "field": visible_line(".".join(str(part)[:_NAME] for part in place) or str(fault["loc"][0])),
        "reason": visible_line(reason),
    }


def _allowed_methods(request: Request) -> set[str]:
    """Returns the methods of all routes of this path; the framework names only those of the first route."""
    routes: list[Any] = []

    for route in request.app.routes:
        # FastAPI keeps the routes of an included router with that router.
        router = getattr(route, "original_router", None)
        routes.extend([route] if router is None else router.routes)

    fitting = [route for route in routes if route.matches(request.scope)[0] is Match.PARTIAL]
    return {method for route in fitting for method in getattr(route, "methods", None) or ()}


def _response(body: dict[str, Any], headers: Mapping[str, str]) -> JSONResponse:
    return JSONResponse(body, body["status"], headers=dict(headers), media_type=MEDIA_TYPE)


def answering(refuse: Callable[[FumehoodError], Response]) -> Callable[[Handler], Handler]:
    """Returns a decorator for handlers of a dialect, by which `refuse` answers errors in the dialect's form."""

    def decorate(handler: Handler) -> Handler:
        # The name and the module of the handler: tests find the routes of a dialect by them.
        @wraps(handler)
        async def endpoint(request: Request) -> Response:
            try:
                return await handler(request)
            except FumehoodError as error:
                return refuse(error)

        return endpoint

    return decorate


def message_with_hint(error: FumehoodError) -> str:
    """Returns the message of an error and its hint, in one line."""
    return f"{error.message}: {error.hint}" if error.hint else error.message
