"""Sessions of Jupyter's REST API, the kernel of each notebook or console, and their routes.

They are kept here, in memory. A session belongs to the key that made it; its kernel is started and ended with it, and
it lasts as long as that.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fumehood.dialects.jupyter.answers import answering
from fumehood.dialects.jupyter.auth import JupyterAuthenticator
from fumehood.dialects.jupyter.bodies import SessionBody, body_of
from fumehood.dialects.jupyter.kernel import Kernel
from fumehood.dialects.jupyter.kernels import Kernels
from fumehood.dialects.jupyter.spec import DEFAULT_SPEC
from fumehood.errors import OverloadedError
from fumehood.server.json_bodies import read_body
from fumehood.server.principal import Principal
from fumehood.server.services import Services

_MAX_SESSIONS = 10_000
# So that one key cannot use up the sessions of all others.
_MAX_SESSIONS_OF_KEY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookSession:
    """One session.

    Attributes:
        id: Its name in every call.
        owner: The key that owns the session.
        path: The notebook, or another name of the client that has the kernel.
        name: Its name for display.
        kind: notebook, console or another word of the client's.
        kernel: Its kernel.
    """

    id: str
    owner: str
    path: str
    name: str
    kind: str
    kernel: Kernel

    def model(self) -> dict[str, Any]:
        """Returns the session as the JSON model of Jupyter's REST API."""
        return {
            "id": self.id,
            "path": self.path,
            "name": self.name,
            "type": self.kind,
            "kernel": self.kernel.model(),
            # For clients of before 2017.
            "notebook": {"path": self.path, "name": self.name},
        }


class NotebookSessions:
    """The sessions of one server."""

    def __init__(self) -> None:
        self._sessions: dict[str, NotebookSession] = {}

    def all_of(self, owner: str) -> list[NotebookSession]:
        """Returns the sessions of a key whose kernels live."""
        self._sweep()
        return [session for session in self._sessions.values() if session.owner == owner]

    def is_used(self, kernel: Kernel) -> bool:
        """Returns whether a session has this kernel; all that have it belong to one key."""
        return any(session.kernel is kernel for session in self._sessions.values())

    def find(self, owner: str, session_id: str) -> NotebookSession | None:
        """Returns a session by its id."""
        return next((session for session in self.all_of(owner) if session.id == session_id), None)

    def find_by_path(self, owner: str, path: str) -> NotebookSession | None:
        """Returns a session by its path."""
        return next((session for session in self.all_of(owner) if session.path == path), None)

    def add(self, owner: str, body: SessionBody, kernel: Kernel) -> NotebookSession:
        """Makes a session.

        Raises:
            OverloadedError: There are too many sessions.
        """
        if len(self._sessions) >= _MAX_SESSIONS or len(self.all_of(owner)) >= _MAX_SESSIONS_OF_KEY:
            raise OverloadedError(
                reason="it keeps as many notebook sessions as it may", retry_after_seconds=60.0
            )

        session = NotebookSession(
            id=str(uuid.uuid4()),
            owner=owner,
            path=body.required_path(),
            name=body.name or "",
            kind="notebook" if body.kind is None else body.kind,
            kernel=kernel,
        )
        self._sessions[session.id] = session
        return session

    def change(self, session: NotebookSession, body: SessionBody, kernel: Kernel | None) -> NotebookSession:
        """Gives a session another path, name, kind or kernel."""
        changed = replace(
            session,
            path=session.path if body.path is None else body.path,
            name=session.name if body.name is None else body.name,
            kind=session.kind if body.kind is None else body.kind,
            kernel=kernel or session.kernel,
        )
        self._sessions[session.id] = changed
        return changed

    def remove(self, session: NotebookSession) -> None:
        """Removes a session."""
        self._sessions.pop(session.id, None)

    def _sweep(self) -> None:
        for session in list(self._sessions.values()):
            if session.kernel.state == "dead":
                self.remove(session)


class SessionRoutes:
    """Answers `/api/sessions`.

    Args:
        services: The services of the handlers.
        callers: Authenticates callers.
        kernels: The kernels.
    """

    def __init__(self, services: Services, callers: JupyterAuthenticator, kernels: Kernels) -> None:
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
        body = read_body(SessionBody, await body_of(request))
        session = self._sessions.find_by_path(caller.key_id, body.required_path())

        if session is None:
            kernel = await self._kernel(caller, body)
            kernel = kernel or await self._kernels.start(caller, DEFAULT_SPEC, {})
            session = self._sessions.add(caller.key_id, body, kernel)

        headers = {"Location": f"/api/sessions/{session.id}"}
        return JSONResponse(session.model(), 201, headers=headers)

    async def _describe(self, request: Request) -> Response:
        _, session = await self._find(request)
        return _not_found() if session is None else JSONResponse(session.model())

    async def _change(self, request: Request) -> Response:
        caller, session = await self._find(request)

        if session is None:
            return _not_found()

        body = read_body(SessionBody, await body_of(request))
        before = session.kernel
        kernel = await self._kernel(caller, body)
        changed = self._sessions.change(session, body, kernel)

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

    async def _kernel(self, caller: Principal, body: SessionBody) -> Kernel | None:
        """Returns the kernel that a body names by its id, or starts one by its spec."""
        wanted = body.kernel

        if wanted is not None and wanted.id is not None:
            return await self._kernels.find(caller, wanted.id)

        if wanted is not None and wanted.name is not None:
            return await self._kernels.start(caller, wanted.name, {})

        return None


def _not_found() -> Response:
    return JSONResponse({"message": "no such session", "reason": "Not Found"}, 404)
