"""Responses over HTTP as Jupyter's clients read them: JSON models, and refusals with a `message`.

A refusal holds the message of the error, and no internal detail.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.errors import FumehoodError, InvalidArgumentError, RequestTooLargeError
from fumehood.server.problems import headers_of, status_of

_MAX_BODY_BYTES = 1 << 20
# Where Jupyter's servers answer with other statuses than ours.
_STATUS_BY_CODE = {"unauthenticated": 403, "invalid_argument": 400, "sandbox_closed": 404}
Handler = Callable[[Request], Awaitable[Response]]


def answering(handler: Handler) -> Handler:
    """Returns the handler with errors of the tree answered in Jupyter's form."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except FumehoodError as error:
            return refusal_response(error)

    return endpoint


def refusal_response(error: FumehoodError) -> JSONResponse:
    """Returns an error as an answer."""
    status = _STATUS_BY_CODE.get(error.code, status_of(error))
    body = {"message": error.message, "reason": HTTPStatus(status).phrase, "code": error.code}
    headers = {name: value for name, value in headers_of(error).items() if name != "WWW-Authenticate"}
    return JSONResponse(body, status, headers=headers)


async def read_object(request: Request) -> Mapping[str, Any]:
    """Returns the JSON object of a body; an empty body is an empty object.

    Raises:
        InvalidArgumentError: It is something else.
        RequestTooLargeError: It is too large to be that.
    """
    body = await read_body(request, _MAX_BODY_BYTES)

    if not body.strip():
        return {}

    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None

    if not isinstance(value, dict):
        raise InvalidArgumentError(
            field="body", value=body[:80].decode("utf-8", "replace"), allowed="a JSON object"
        )

    return value


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Returns a body of bounded size.

    Raises:
        RequestTooLargeError: It is larger.
    """
    body = bytearray()

    async for piece in request.stream():
        body += piece

        if len(body) > max_bytes:
            raise RequestTooLargeError(what="request", maximum=max_bytes)

    return bytes(body)
