"""Forks in the words of a server's routes.

Runs in the process that asks one. Translation only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fumehood.backends.fork_requests import ForkRequest
from fumehood.backends.http_paths import sandbox_path

Ask = Callable[..., Awaitable[Any]]


async def ask_to_fork(ask: Ask, sandbox_id: str, request: ForkRequest) -> object:
    """Asks a server to fork a sandbox; returns what it answered, a `Forked` as data."""
    body = {
        "count": request.count,
        "checkpoint_id": request.checkpoint_id,
        "reseed": request.reseed,
        "timeout_seconds": request.timeout_seconds,
        "metadata": None if request.metadata is None else dict(request.metadata),
    }
    return await ask("POST", sandbox_path(sandbox_id, "forks"), json=body)


async def ask_to_adopt(ask: Ask, sandbox_id: str, child_id: str) -> object:
    """Asks a server to let a fork take a sandbox's place; returns what it answered, a `SandboxInfo` as data."""
    return await ask("POST", sandbox_path(sandbox_id, "adopt"), json={"child_id": child_id})
