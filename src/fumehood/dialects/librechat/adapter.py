"""The routes of the dialect: those of LibreChat's code API, below `/librechat` and `/librechat/v1`.

It puts the parts of this folder together and holds nothing itself.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from fumehood.dialects.librechat.answers import answering, caller_of
from fumehood.dialects.librechat.bodies import ExecCall
from fumehood.dialects.librechat.exec_code import run_exec
from fumehood.dialects.librechat.file_routes import FileRoutes
from fumehood.dialects.librechat.tool_runs import ToolRuns
from fumehood.server.json_bodies import read_body
from fumehood.server.responses import unless_gone
from fumehood.server.services import Services

# The hosted service has its version in its address; users write ours either way.
_PREFIXES = ("/librechat", "/librechat/v1")
_PROFILE_HEADER = "x-codeapi-expected-profile"


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of LibreChat's code API."""
    files, runs = FileRoutes(services), ToolRuns(services)

    async def exec_code(request: Request) -> Response:
        principal = await caller_of(services, request)

        if (mismatch := _profile_mismatch(request)) is not None:
            return mismatch

        call = read_body(ExecCall, await request.body())
        return JSONResponse(await unless_gone(request, run_exec(services, principal, call)))

    async def programmatic(request: Request) -> Response:
        return _profile_mismatch(request) or await runs.answer(request)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return [
        route
        for prefix in _PREFIXES
        for route in (
            Route(f"{prefix}/exec", answering(exec_code), methods=["POST"]),
            Route(f"{prefix}/exec/programmatic", answering(programmatic), methods=["POST"]),
            Route(f"{prefix}/exec/programmatic/cancel", answering(runs.cancel), methods=["POST"]),
            Route(f"{prefix}/health", health, methods=["GET"]),
            *files.routes(prefix),
        )
    ]


def _profile_mismatch(request: Request) -> Response | None:
    """Returns a 409 if the client requests an execution profile, such as a warm machine; None for the default one.

    Every run has a sandbox of its own here.
    """
    profile = request.headers.get(_PROFILE_HEADER, "default")

    if profile == "default":
        return None

    details = f"profile {profile[:40]!r} is not offered: every execution has a sandbox of its own"
    return JSONResponse({"error": "execution_profile_mismatch", "details": details}, 409)
