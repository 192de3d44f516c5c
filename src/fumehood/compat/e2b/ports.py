"""The ports of what runs in a sandbox, but envd's and the interpreter's, as E2B's headers name them.

Runs in the server process. Whoever names a port by headers brings one of the sandbox's tokens; by a host name a key
opens it as well. How bytes get there is the business of the server's own proxy.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from fumehood.backends.base import Backend
from fumehood.compat.e2b.answers import closed_port_answer, plain_answer, sandbox_answer
from fumehood.compat.e2b.callers import Callers
from fumehood.compat.e2b.tokens import SandboxTokens
from fumehood.errors import FumehoodError, PortClosedError
from fumehood.server.port_headers import PortTarget
from fumehood.server.port_proxy import proxy_http, proxy_websocket
from fumehood.service_errors import ForbiddenError


class Ports:
    """Passes requests on to the ports of sandboxes.

    Args:
        callers: Finds the backend for a sandbox.
        tokens: The sandboxes' tokens.
    """

    def __init__(self, callers: Callers, tokens: SandboxTokens) -> None:
        self._callers = callers
        self._tokens = tokens

    async def answer(self, request: Request, sandbox_id: str, port: int) -> Response:
        """Passes one request on."""
        try:
            backend = await self.allowed(request, sandbox_id)
            return await proxy_http(backend, _target(request, sandbox_id, port), request)
        except FumehoodError as error:
            return _refusal(error, sandbox_id, port)

    async def websocket(self, websocket: WebSocket, sandbox_id: str, port: int) -> None:
        """Passes one WebSocket on."""
        try:
            backend = await self.allowed(websocket, sandbox_id)
            await proxy_websocket(backend, _target(websocket, sandbox_id, port), websocket)
        except FumehoodError as error:
            await websocket.send_denial_response(_refusal(error, sandbox_id, port))

    async def opened(self, connection: HTTPConnection, sandbox_id: str) -> Backend | None:
        """Returns the backend for a request by a host name, if it brings one of the sandbox's tokens."""
        access = connection.headers.get("x-access-token")
        traffic = connection.headers.get("e2b-traffic-access-token")

        if not self._tokens.opens_traffic(sandbox_id, access, traffic):
            return None

        return await self._callers.backend_of(sandbox_id)

    async def allowed(self, connection: HTTPConnection, sandbox_id: str) -> Backend:
        """Returns the backend for a caller with one of the sandbox's tokens.

        Raises:
            ForbiddenError: Nobody does.
        """
        backend = await self.opened(connection, sandbox_id)

        if backend is None:
            raise ForbiddenError(reason="the header e2b-traffic-access-token is missing or wrong")

        return backend


def _refusal(error: FumehoodError, sandbox_id: str, port: int) -> Response:
    if isinstance(error, PortClosedError):
        return closed_port_answer(sandbox_id, port)

    return (
        plain_answer(403, error.message)
        if isinstance(error, ForbiddenError)
        else sandbox_answer(error, sandbox_id)
    )


def _target(connection: HTTPConnection, sandbox_id: str, port: int) -> PortTarget:
    scope = connection.scope
    # As it was sent: what is escaped in it must reach the server inside escaped.
    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
    query = scope.get("query_string", b"").decode("latin-1")
    return PortTarget(sandbox_id=sandbox_id, port=port, path=f"{path}?{query}" if query else path)
