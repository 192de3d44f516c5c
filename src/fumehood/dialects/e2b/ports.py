"""The ports of guest programs, apart from envd's and the interpreter's, as E2B's headers name them.

A request that names a port by headers needs one of the sandbox's tokens; by a host name a key opens it as well. The
server's own proxy carries the bytes.
"""

from __future__ import annotations

from collections import OrderedDict

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from fumehood.dialects.e2b.answers import closed_port_answer, forbidden_answer, sandbox_answer
from fumehood.dialects.e2b.callers import Callers
from fumehood.dialects.e2b.sandbox_words import port_rules
from fumehood.dialects.e2b.tokens import SandboxTokens
from fumehood.errors import FumehoodError, PortClosedError, UnauthenticatedError
from fumehood.port.backend import Backend
from fumehood.server.port_dialects import PortRules
from fumehood.server.port_headers import PortTarget
from fumehood.server.port_proxy import proxy_http, proxy_websocket

_REMEMBERED = 10_000


class Ports:
    """Passes requests on to the ports of sandboxes.

    Args:
        callers: Finds the backend for a sandbox.
        tokens: The sandboxes' tokens.
    """

    def __init__(self, callers: Callers, tokens: SandboxTokens) -> None:
        self._callers = callers
        self._tokens = tokens
        # The rules are chosen when a sandbox is made, and never change.
        self._rules: OrderedDict[str, PortRules] = OrderedDict()

    async def answer(self, request: Request, sandbox_id: str, port: int) -> Response:
        """Passes one request on."""
        try:
            backend = await self.allowed(request, sandbox_id)
            return await proxy_http(backend, await self._target(request, sandbox_id, port), request)
        except FumehoodError as error:
            return _refusal(request, error, sandbox_id, port)

    async def websocket(self, websocket: WebSocket, sandbox_id: str, port: int) -> None:
        """Passes one WebSocket on."""
        try:
            backend = await self.allowed(websocket, sandbox_id)
            await proxy_websocket(backend, await self._target(websocket, sandbox_id, port), websocket)
        except FumehoodError as error:
            await websocket.send_denial_response(_refusal(websocket, error, sandbox_id, port))

    async def opened(self, connection: HTTPConnection, sandbox_id: str) -> Backend | None:
        """Returns the backend for a request by a host name, if it brings one of the sandbox's tokens."""
        access = connection.headers.get("x-access-token")
        traffic = connection.headers.get("e2b-traffic-access-token")

        if not self._tokens.opens_traffic(sandbox_id, access, traffic):
            return None

        return await self._callers.backend_of(sandbox_id)

    async def rules(self, sandbox_id: str) -> PortRules:
        """Returns the rules for the ports of a sandbox; the default for an unknown one."""
        known = self._rules.get(sandbox_id)

        if known is None:
            try:
                known = port_rules(await self._callers.info(sandbox_id))
            except FumehoodError:
                return PortRules()

            self._rules[sandbox_id] = known

            if len(self._rules) > _REMEMBERED:
                self._rules.popitem(last=False)

        return known

    def refused(
        self, connection: HTTPConnection, error: FumehoodError, sandbox_id: str, port: int
    ) -> Response | None:
        """Answers a request by a host name in E2B's form, unless it brings a key, as clients of the native API do."""
        if "x-api-key" in connection.headers or "authorization" in connection.headers:
            return None

        return _refusal(connection, error, sandbox_id, port)

    async def allowed(self, connection: HTTPConnection, sandbox_id: str) -> Backend:
        """Returns the backend for a caller with one of the sandbox's tokens.

        Raises:
            UnauthenticatedError: It brings none of them.
        """
        backend = await self.opened(connection, sandbox_id)

        if backend is None:
            raise UnauthenticatedError(reason="the header e2b-traffic-access-token is missing or wrong")

        return backend

    async def _target(self, connection: HTTPConnection, sandbox_id: str, port: int) -> PortTarget:
        scope = connection.scope
        # As it was sent: escaped characters must reach the server inside escaped.
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
        query = scope.get("query_string", b"").decode("latin-1")
        return PortTarget(
            sandbox_id=sandbox_id,
            port=port,
            path=f"{path}?{query}" if query else path,
            host=(await self.rules(sandbox_id)).host,
        )


def _refusal(connection: HTTPConnection, error: FumehoodError, sandbox_id: str, port: int) -> Response:
    if isinstance(error, UnauthenticatedError):
        is_sent = "e2b-traffic-access-token" in connection.headers or "x-access-token" in connection.headers
        return forbidden_answer(sandbox_id, "wrong" if is_sent else "missing")

    if isinstance(error, PortClosedError):
        return closed_port_answer(sandbox_id, port)

    return sandbox_answer(error, sandbox_id)
