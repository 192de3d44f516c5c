"""The interpreter at port 49999 inside a sandbox, for programs in it, as in E2B's own template.

Runs in the server process, where `interpreter_inside` is set; otherwise it does nothing. A request from inside is
treated as that of a client that has only this sandbox's token: headers that could name another sandbox or a caller are
removed, and only the interpreter's paths are allowed. It is then handled like any other request, with the quotas of the
sandbox's key. It never resumes a sandbox: a sandbox that is resumed by requests has no interpreter inside.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from cachetools import LRUCache
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from fumehood.cancellation import cancel_and_wait
from fumehood.dialects.e2b.answers import plain_answer
from fumehood.dialects.e2b.auth import SandboxTokens
from fumehood.dialects.e2b.environment import INTERPRETER_PORT
from fumehood.dialects.e2b.sandboxes import has_interpreter
from fumehood.errors import FumehoodError, HostUnavailableError, InvalidArgumentError
from fumehood.log import events
from fumehood.port.backend import Backend
from fumehood.server.http_over_streams import Pace, StreamServer
from fumehood.server.services import Services
from fumehood.token_bucket import TokenBucket
from fumehood.values.sandbox import SandboxInfo

MAX_EXECUTIONS = 4
_REQUESTS_AT_ONCE = 30
_REQUESTS_PER_SECOND = 10.0
_AGAIN_SECONDS = 1.0
_REMEMBERED = 20_000
_VISITOR = "fumehood.e2b.inside"
_KEPT_HEADERS = frozenset({b"accept", b"content-length", b"content-type", b"user-agent"})
_CLOSING = {"connection": "close", "retry-after": "1"}


def is_from_inside(request: Request) -> bool:
    """Returns whether the request was made by a program in the sandbox."""
    return isinstance(request.scope.get("state", {}).get(_VISITOR), _Visitor)


@dataclass(slots=True)
class _Visitor:
    """The programs of one sandbox, as clients of this server.

    Attributes:
        headers: The headers that name the sandbox and authorise its interpreter.
        app: Answers the requests.
        rate: Requests that they may make now.
        pace: Bytes that they may send now.
        executions: How many of their requests run code, or wait to do so.
    """

    headers: list[tuple[bytes, bytes]]
    app: ASGIApp
    rate: TokenBucket = field(default_factory=lambda: TokenBucket(_REQUESTS_AT_ONCE, _REQUESTS_PER_SECOND))
    pace: Pace = field(default_factory=Pace)
    executions: int = 0


class InsideInterpreters:
    """The interpreters inside all sandboxes of this dialect.

    Args:
        services: The services of the server.
        tokens: The sandboxes' tokens.
    """

    def __init__(self, services: Services, tokens: SandboxTokens) -> None:
        self._is_on = services.settings.interpreter_inside
        self._backend: Backend = services.backend
        self._tokens = tokens
        self._server: StreamServer | None = None
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._looked_at: LRUCache[str, None] = LRUCache(_REMEMBERED)
        services.at_end.push_async_callback(self._close)

    async def ensure(self, info: SandboxInfo, app: ASGIApp) -> None:
        """Begins to listen in a sandbox that is to have an interpreter inside, unless that was done before.

        A port on which a program listens already stays that program's.

        Args:
            info: The sandbox.
            app: Answers requests.
        """
        if not self._is_on or info.id in self._serving or info.state != "running":
            return

        self._looked_at[info.id] = None

        if not has_interpreter(info):
            return

        try:
            await self._backend.listen_port(info.id, INTERPRETER_PORT)
        except InvalidArgumentError as error:
            events.INTERPRETER_NOT_INSIDE.log(sandbox_id=info.id, reason=error.log_reason)
            return

        if info.id not in self._serving:
            self._serving[info.id] = asyncio.create_task(self._serve(info.id, app))

    async def ensure_for(self, sandbox_id: str, app: ASGIApp) -> None:
        """Does what `ensure` does, for a sandbox that may have been made before this server was started."""
        if self._is_on and sandbox_id not in self._looked_at:
            await self.ensure(await self._backend.info(sandbox_id), app)

    async def _close(self) -> None:
        await cancel_and_wait(*self._serving.values())

    async def _serve(self, sandbox_id: str, app: ASGIApp) -> None:
        """Accepts the connections of programs in a sandbox and answers their requests, until the sandbox ends."""
        self._server = self._server or StreamServer(_answer)
        visitor = _Visitor(self._headers(sandbox_id), app)
        connections: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    stream = await self._backend.accept_port(sandbox_id, INTERPRETER_PORT)
                except HostUnavailableError:
                    await asyncio.sleep(_AGAIN_SECONDS)
                    continue

                one = asyncio.create_task(self._server.serve(stream, visitor.pace, {_VISITOR: visitor}))
                connections.add(one)
                one.add_done_callback(connections.discard)
        except FumehoodError:
            # The sandbox has ended.
            return
        finally:
            self._serving.pop(sandbox_id, None)
            # A fork may have taken the id over: it is looked at again.
            self._looked_at.pop(sandbox_id, None)
            await cancel_and_wait(*connections)

    def _headers(self, sandbox_id: str) -> list[tuple[bytes, bytes]]:
        named = {
            "host": "localhost",
            "e2b-sandbox-id": sandbox_id,
            "e2b-sandbox-port": str(INTERPRETER_PORT),
            "x-access-token": self._tokens.access_token(sandbox_id),
        }
        return [(name.encode(), value.encode()) for name, value in named.items()]


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers one HTTP request of a program in the sandbox (an ASGI app)."""
    visitor = scope["state"][_VISITOR]
    is_execution = scope["path"].strip("/") == "execute"

    if not visitor.rate.take():
        # A new connection costs the program its turn, so that a flood of requests is as slow as one of connections.
        await plain_answer(429, "too many requests from inside this sandbox", _CLOSING)(scope, receive, send)
        return

    if scope["path"].split("/")[1] not in ("health", "execute", "contexts"):
        await plain_answer(404, "no such route")(scope, receive, send)
        return

    if not is_execution:
        await visitor.app(_outside(scope, visitor), receive, send)
        return

    if visitor.executions >= MAX_EXECUTIONS:
        said = f"{MAX_EXECUTIONS} requests from inside this sandbox run code already"
        await plain_answer(429, said, _CLOSING)(scope, receive, send)
        return

    visitor.executions += 1
    try:
        await visitor.app(_outside(scope, visitor), receive, send)
    finally:
        visitor.executions -= 1


def _outside(scope: Scope, visitor: _Visitor) -> dict[str, Any]:
    """Returns the ASGI scope that an outside client with this sandbox's token would have sent."""
    kept = [(name, value) for name, value in scope["headers"] if name in _KEPT_HEADERS]
    return {**scope, "headers": [*kept, *visitor.headers], "query_string": b"", "client": None}
