"""Refusals over HTTP as Jupyter's clients read them: JSON with a `message`."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import JSONResponse

from fumehood.errors import FumehoodError
from fumehood.server import problems
from fumehood.server.problems import headers_of, status_of

# Where Jupyter's servers answer with other statuses than ours.
_STATUS_BY_CODE = {"unauthenticated": 403, "invalid_argument": 400, "sandbox_closed": 404}


def refusal_response(error: FumehoodError) -> JSONResponse:
    """Returns an error as an answer."""
    status = _STATUS_BY_CODE.get(error.code, status_of(error))
    body = {"message": error.message, "reason": HTTPStatus(status).phrase, "code": error.code}
    headers = {name: value for name, value in headers_of(error).items() if name != "WWW-Authenticate"}
    return JSONResponse(body, status, headers=headers)


answering = problems.answering(refusal_response)
