"""The interface by which a dialect decides about the ports of its sandboxes: rules, tokens, the form of a refusal.

The routes of ports call it for requests by a host name, which no dialect sees first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from starlette.requests import HTTPConnection
from starlette.responses import Response

from fumehood.errors import FumehoodError
from fumehood.port.backend import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRules:
    """The rules for the ports of one sandbox, chosen when it was made.

    Attributes:
        is_private: Whether a token is needed even if the server makes ports public.
        host: The Host header that a server inside receives, with `${PORT}` for its port; empty for the usual one.
    """

    is_private: bool = False
    host: str = ""


class PortDialect(Protocol):
    """The rules of a dialect for the ports of its sandboxes, for requests by a host name."""

    async def opened(self, connection: HTTPConnection, sandbox_id: str) -> Backend | None:
        """Returns the backend for a request with the dialect's token for this sandbox, or None."""

    async def rules(self, sandbox_id: str) -> PortRules:
        """Returns the rules of a sandbox's ports; the default rules for an unknown sandbox."""

    def refused(
        self, connection: HTTPConnection, error: FumehoodError, sandbox_id: str, port: int
    ) -> Response | None:
        """Returns how the dialect answers a request that was refused, or None for a client that is not its own."""
