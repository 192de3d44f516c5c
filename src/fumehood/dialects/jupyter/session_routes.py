"""The REST routes of notebook sessions.

They answer as a Jupyter server does; a session's kernel is started and ended with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fumehood.dialects.jupyter.answers import answering, read_object
from fumehood.dialects.jupyter.callers import Callers
from fumehood.dialects.jupyter.kernel import Kernel
from fumehood.dialects.jupyter.kernels import Kernels
from fumehood.dialects.jupyter.sessions import NotebookSession, NotebookSessions, read_text
from fumehood.dialects.jupyter.spec import DEFAULT_SPEC
from fumehood.errors import InvalidArgumentError
from fumehood.server.principal import Principal
from fumehood.server.services import Services


class SessionRoutes:
    """Answers `/api/sessions`.

    Args:
        services: The services of the handlers.
        callers: Authenticates callers.
        kernels: The kernels.
    """

    def __init__(self, services: Services, callers: Callers, kernels: Kernels) -> None:
        self._services = services
        self._callers = callers
        self._kernels = kernels
        self._sessions = NotebookSessions()

    def routes(self) -> list[Route]:
        """Returns the routes."""
        one = "/api/sessions/{session_id}"
        return [
            Route("/api/sessions", answering(self._list), methods=["GET"]),
            Route("/api/sessions", answering(self._create), methods=["POST"]),
            Route(one, answering(self._describe), methods=["GET"]),
            Route(one, answering(self._change), methods=["PATCH"]),
            Route(one, answering(self._end), methods=["DELETE"]),
        ]

    async def _list(self, request: Request) -> Response:
        caller = await self._callers.principal_of(request)
        return JSONResponse([session.model() for session in self._sessions.all_of(caller.key_id)])

    async def _create(self, request: Request) -> Response:
        caller = await self._callers.principal_of(request)
        content = _modern(await read_object(request))
        session = self._sessions.find_by_path(caller.key_id, read_text(content, "path"))

        if session is None:
            kernel = await self._kernel(caller, content)
            kernel = kernel or await self._kernels.start(caller, DEFAULT_SPEC, {})
            session = self._sessions.add(caller.key_id, content, kernel)

        headers = {"Location": f"/api/sessions/{session.id}"}
        return JSONResponse(session.model(), 201, headers=headers)

    async def _describe(self, request: Request) -> Response:
        _, session = await self._find(request)
        return _not_found() if session is None else JSONResponse(session.model())

    async def _change(self, request: Request) -> Response:
        caller, session = await self._find(request)

        if session is None:
            return _not_found()

        content = _modern(await read_object(request))
        before = session.kernel
        kernel = await self._kernel(caller, content)
        changed = self._sessions.change(session, content, kernel)

        if changed.kernel is not before and not self._sessions.is_used(before):
            await before.end(self._services.backend_for(caller))

        return JSONResponse(changed.model())

    async def _end(self, request: Request) -> Response:
        caller, session = await self._find(request)

        if session is None:
            return _not_found()

        self._sessions.remove(session)

        if not self._sessions.is_used(session.kernel):
            await session.kernel.end(self._services.backend_for(caller))

        return Response(status_code=204)

    async def _find(self, request: Request) -> tuple[Principal, NotebookSession | None]:
        caller = await self._callers.principal_of(request)
        return caller, self._sessions.find(caller.key_id, request.path_params["session_id"])

    async def _kernel(self, caller: Principal, content: Mapping[str, Any]) -> Kernel | None:
        """Returns the kernel that a body names by its id, or starts one by its spec."""
        wanted = content.get("kernel")

        if wanted is None:
            return None

        if not isinstance(wanted, dict):
            raise InvalidArgumentError(field="kernel", value=wanted, allowed="an object with a name or an id")

        if wanted.get("id") is not None:
            return await self._kernels.find(caller, read_text(wanted, "id"))

        if wanted.get("name") is not None:
            return await self._kernels.start(caller, read_text(wanted, "name"), {})

        return None


def _modern(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Converts a body in the form of before 2017, which had the path in `notebook`, to that of today."""
    notebook = content.get("notebook")

    if not isinstance(notebook, dict):
        return content

    return {"type": "notebook", "path": notebook.get("path") or notebook.get("name"), **content}


def _not_found() -> Response:
    return JSONResponse({"message": "no such session", "reason": "Not Found"}, 404)
