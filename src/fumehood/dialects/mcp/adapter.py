"""The route of the dialect: `POST /mcp`, one message a request, its answer as JSON or as a stream.

There are no sessions, so there is nothing to GET and nothing to DELETE.
"""

from __future__ import annotations

import importlib.util

from starlette.routing import BaseRoute, Route

from fumehood.log import events
from fumehood.server.services import Services

_PATH = "/mcp"


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of the dialect; none where the extra `mcp` is not installed."""
    if importlib.util.find_spec("mcp") is None:
        events.DIALECT_MISSING.log(dialect="mcp", extra="mcp")
        return []

    # Imported late: a server works without the SDK.
    from fumehood.dialects.mcp.endpoint import McpEndpoint

    return [Route(_PATH, McpEndpoint(services), methods=["POST"])]
