"""Signed addresses of files at a server: no verb of the port, because only a server can sign.

Runs in the process that asks the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from fumehood.backends.base import Backend
from fumehood.backends.http import HttpBackend

# A sandbox, a path and seconds; the address and its end.
SignFile = Callable[[str, str, int], Awaitable[tuple[str, datetime]]]


def signer_of(backend: Backend) -> SignFile | None:
    """Return what signs addresses for reading files, or None where no server keeps the sandboxes."""
    if not isinstance(backend, HttpBackend):
        return None

    async def sign(sandbox_id: str, path: str, expires_seconds: int) -> tuple[str, datetime]:
        body = {"path": path, "expires_in_seconds": expires_seconds}
        signed = await backend._ask("POST", f"/v1/sandboxes/{sandbox_id}/files/sign", json=body)
        return str(signed["url"]), backend._checked(datetime.fromisoformat, signed["expires_at"])

    return sign
