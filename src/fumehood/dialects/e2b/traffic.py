"""Routing of requests to a sandbox and a port of it: by E2B's headers, by the Host, or by a signed URL.

Runs in the server process, before every other route: a sandbox may serve any path. A request that names a sandbox never
reaches a route of the server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from fumehood.dialects.e2b.answering import answered
from fumehood.dialects.e2b.answers import plain_answer
from fumehood.dialects.e2b.envd import Envd, signed_path
from fumehood.dialects.e2b.interpreter import Interpreter
from fumehood.dialects.e2b.ports import Ports
from fumehood.dialects.e2b.signed_files import SignedFiles
from fumehood.dialects.e2b.surroundings import ENVD_PORT, INTERPRETER_PORT
from fumehood.server.port_access import MAX_PORT, address_of_host

_SANDBOX_ID = re.compile(r"[a-z0-9]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """The sandbox and port that a request is for.

    Attributes:
        sandbox_id: The sandbox; empty if the name cannot be one.
        port: The port; 0 if the name cannot be one.
    """

    sandbox_id: str
    port: int


def target_of(headers: Headers, domain: str) -> Target | None:
    """Returns the target of a request, or None if it names no sandbox."""
    given = headers.get("e2b-sandbox-id")

    if given is not None:
        sandbox_id = given if _SANDBOX_ID.fullmatch(given) else ""
        return Target(sandbox_id, _port(headers.get("e2b-sandbox-port", str(ENVD_PORT))))

    # The server itself answers host names of all other ports, before any route.
    address = address_of_host(headers.get("host", ""), domain)
    return Target(address.sandbox_id, address.port) if address is not None else None


def _port(text: str) -> int:
    is_port = text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) <= MAX_PORT
    return int(text) if is_port else 0


class TrafficRoute(BaseRoute):
    """The route of every request to a sandbox.

    Args:
        envd: Answers for the daemons.
        interpreter: Answers for the interpreters.
        ports: Passes on to all other ports.
        domain: Under which ports are reached; empty for none.
    """

    # Matched before routes by path, and counted under a name.
    is_first = True
    path = "e2b sandbox"

    def __init__(self, envd: Envd, interpreter: Interpreter, ports: Ports, domain: str) -> None:
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
        target: Target = scope["target"]

        if scope["type"] == "websocket":
            await self._ports.websocket(WebSocket(scope, receive, send), target.sandbox_id, target.port)
            return

        await answered(scope, receive, send, lambda request: self._answer(request, target))

    async def _answer(self, request: Request, target: Target) -> Response:
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

    def __init__(self, files: SignedFiles) -> None:
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
