"""The MCP server over streamable HTTP, without sessions: every request is independent.

Runs in the process of a server that has checked the request before: its Host, its origin, its size and its caller. Each
request gets a transport of its own that ends with it, so that no state of a client outlives its request.
"""

from __future__ import annotations

from typing import Any

from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from fumehood import Backend
from fumehood.mcp.caller import CALLER_STATE, Caller
from fumehood.mcp.server import make_server
from fumehood.mcp.toolbox import TOOL_NAMES


class HttpTransport:
    """Answers requests to the server.

    Args:
        max_body_bytes: The largest body that is read.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._server: Server[Any] = make_server()
        self._max_body_bytes = max_body_bytes

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, backend: Backend, max_network: str
    ) -> None:
        """Answer one request of a caller, with the sandboxes of this backend, and at most this network."""
        scope.setdefault("state", {})[CALLER_STATE] = Caller(
            backend=backend, max_network=max_network, tools=TOOL_NAMES
        )
        exchange = StreamableHTTPSessionManager(
            self._server, stateless=True, max_request_body_size=self._max_body_bytes
        )

        async with exchange.run():
            await exchange.handle_request(scope, receive, send)
