"""The route of the dialect: `POST /replit`, with the code as JSON and the answer as plain text.

The client reads no status: every error is in the text as well.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from fumehood.dialects.replit.bodies import CodeExecCall
from fumehood.dialects.replit.code_exec import run_code_exec
from fumehood.errors import FumehoodError
from fumehood.server.auth import principal_of
from fumehood.server.json_bodies import read_body
from fumehood.server.problems import headers_of, status_of
from fumehood.server.services import Services
from fumehood.server.streaming import unless_gone

_PATHS = ("/replit", "/replit/")


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of a server that speaks code-exec."""

    async def code_exec(request: Request) -> Response:
        try:
            principal = await principal_of(request)
            principal.require("execute")
            call = read_body(CodeExecCall, await request.body())
            text = await unless_gone(request, run_code_exec(services, principal, call))
            return PlainTextResponse(text)
        except FumehoodError as error:
            said = f"{error.message}\n" + (f"hint: {error.hint}\n" if error.hint else "")
            return PlainTextResponse(said, status_of(error), headers=headers_of(error))

    return [Route(path, code_exec, methods=["POST"]) for path in _PATHS]
