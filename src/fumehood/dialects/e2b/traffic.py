"""Routing of requests to a sandbox and a port of it: by E2B's headers, by the Host, or by a signed URL.

It comes before every other route, because a sandbox may serve any path; a request that names a sandbox never reaches a
route of the server. Ports other than envd's and the interpreter's are those of guest programs: a request that names
one by headers needs one of the sandbox's tokens, and by a host name a key opens it as well. The server's own proxy
carries the bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cachetools import LRUCache
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from fumehood.dialects.e2b.answers import (
    answered,
    closed_port_answer,
    forbidden_answer,
    plain_answer,
    sandbox_answer,
)
from fumehood.dialects.e2b.auth import E2BAuthenticator, SandboxTokens
from fumehood.dialects.e2b.envd import Envd, SignedUrls, signed_path
from fumehood.dialects.e2b.environment import ENVD_PORT, INTERPRETER_PORT
from fumehood.dialects.e2b.interpreter import InterpreterApp
from fumehood.dialects.e2b.sandboxes import port_rules
from fumehood.errors import FumehoodError, PortClosedError, UnauthenticatedError
from fumehood.port.backend import Backend
from fumehood.server.admission import while_right_lasts
from fumehood.server.port_rules import PortRules
from fumehood.server.ports.access import MAX_PORT, address_of_host
from fumehood.server.ports.headers import PortTarget
from fumehood.server.ports.proxy import proxy_http, proxy_websocket
from fumehood.server.routes.ports import refuse_websocket

_REMEMBERED = 10_000


class Ports:
    """Passes requests on to the ports of sandboxes.

    Args:
        callers: Finds the backend for a sandbox.
        tokens: The sandboxes' tokens.
    """

    def __init__(self, callers: E2BAuthenticator, tokens: SandboxTokens) -> None:
        self._callers = callers
        self._tokens = tokens
        # The rules are chosen when a sandbox is made, and never change.
        self._rules: LRUCache[str, PortRules] = LRUCache(_REMEMBERED)

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
            target = await self._target(websocket, sandbox_id, port)
            await while_right_lasts(proxy_websocket(backend, target, websocket))
        except FumehoodError as error:
            if websocket.application_state is not WebSocketState.CONNECTING:
                await refuse_websocket(websocket, error)
                return

            await websocket.send_denial_response(_refusal(websocket, error, sandbox_id, port))

    async def opened(self, connection: HTTPConnection, sandbox_id: str) -> Backend | None:
        """Returns the backend for a request by a host name, if it has one of the sandbox's tokens."""
        access = connection.headers.get("x-access-token")
        traffic = connection.headers.get("e2b-traffic-access-token")

        if not self._tokens.opens_traffic(sandbox_id, access, traffic):
            return None

        return await self._callers.backend_of(sandbox_id, is_visit=True)

    async def rules(self, sandbox_id: str) -> PortRules:
        """Returns the rules for the ports of a sandbox; the default for an unknown one."""
        known = self._rules.get(sandbox_id)

        if known is None:
            try:
                known = port_rules(await self._callers.info(sandbox_id))
            except FumehoodError:
                return PortRules()

            self._rules[sandbox_id] = known

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
            UnauthenticatedError: The request has neither token.
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


_SANDBOX_ID = re.compile(r"[a-z0-9]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PortRequest:
    """The sandbox and port that a request is for.

    Attributes:
        sandbox_id: The sandbox; empty if the name cannot be one.
        port: The port; 0 if the name cannot be one.
    """

    sandbox_id: str
    port: int


def target_of(headers: Headers, domain: str) -> PortRequest | None:
    """Returns the target of a request, or None if it names no sandbox."""
    given = headers.get("e2b-sandbox-id")

    if given is not None:
        sandbox_id = given if _SANDBOX_ID.fullmatch(given) else ""
        return PortRequest(sandbox_id, _port(headers.get("e2b-sandbox-port", str(ENVD_PORT))))

    # The server itself answers host names of all other ports, before any route.
    address = address_of_host(headers.get("host", ""), domain)
    return PortRequest(address.sandbox_id, address.port) if address is not None else None


def _port(text: str) -> int:
    is_port = text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) <= MAX_PORT
    return int(text) if is_port else 0


class TrafficRoute(BaseRoute):
    """The route of every request to a sandbox.

    Args:
        envd: Answers for the daemons.
        interpreter: Answers for the interpreters.
        ports: Passes requests on to all other ports.
        domain: The domain under which ports are reached; empty if there is none.
    """

    # Matched before routes by path, and counted under a name.
    is_first = True
    path = "e2b sandbox"

    def __init__(self, envd: Envd, interpreter: InterpreterApp, ports: Ports, domain: str) -> None:
        self._envd = envd
        self._interpreter = interpreter
        self._ports = ports
        self._domain = domain

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Matches every request that names a sandbox."""
        if scope["type"] not in ("http", "websocket"):
            return Match.NONE, {}

        target = target_of(Headers(scope=scope), self._domain)
        return (Match.NONE, {}) if target is None else (Match.FULL, {"target": target, "route": self})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or one WebSocket."""
        target: PortRequest = scope["target"]

        if scope["type"] == "websocket":
            await self._ports.websocket(WebSocket(scope, receive, send), target.sandbox_id, target.port)
            return

        await answered(scope, receive, send, lambda request: self._answer(request, target))

    async def _answer(self, request: Request, target: PortRequest) -> Response:
        if not target.sandbox_id or not target.port:
            return plain_answer(400, "E2b-Sandbox-Id and E2b-Sandbox-Port name no sandbox and port")

        if target.port == ENVD_PORT:
            return await self._envd.answer(request, target.sandbox_id)

        if target.port == INTERPRETER_PORT:
            return await self._interpreter.answer(request, target.sandbox_id)

        return await self._ports.answer(request, target.sandbox_id, target.port)


class SignedRoute(BaseRoute):
    """The route of signed URLs, which name a file and no sandbox.

    Args:
        files: Finds the sandbox that a URL was signed for.
    """

    is_first = True
    path = "e2b signed file"

    def __init__(self, files: SignedUrls) -> None:
        self._files = files

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Matches `/files` with a signature."""
        if scope["type"] != "http" or scope["path"] != "/files":
            return Match.NONE, {}

        is_signed = signed_path(Request(scope)) is not None
        return (Match.FULL, {"route": self}) if is_signed else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        await answered(scope, receive, send, self._files.answer)
