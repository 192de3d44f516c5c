"""Requests of clients, and the queue in which those of the shell channel wait, bounded in number and size."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.dialects.jupyter.messages import JupyterMessage
from fumehood.port.backend import Backend

_MAX_REQUESTS = 1000
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """A message of a client, its size, and the session that gets the reply."""

    message: JupyterMessage
    size_bytes: int
    session: str
    backend: Backend

    @property
    def msg_type(self) -> str:
        """The type of the request."""
        return self.message.msg_type

    @property
    def content(self) -> Mapping[str, Any]:
        """The content of the request."""
        return self.message.content


class RequestQueue:
    """The requests that wait to be answered, in order."""

    def __init__(self) -> None:
        self._requests: deque[KernelRequest] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()

    def put(self, request: KernelRequest) -> bool:
        """Queues a request; false if there is no room for it."""
        if len(self._requests) >= _MAX_REQUESTS or self._bytes + request.size_bytes > _MAX_BYTES:
            return False

        self._requests.append(request)
        self._bytes += request.size_bytes
        self._arrived.set()
        return True

    async def wait(self) -> None:
        """Returns when a request waits."""
        while not self._requests:
            self._arrived.clear()
            await self._arrived.wait()

    def take(self) -> KernelRequest | None:
        """Returns the first request, or None if there is none any more."""
        if not self._requests:
            return None

        request = self._requests.popleft()
        self._bytes -= request.size_bytes
        return request

    def take_all(self) -> list[KernelRequest]:
        """Removes and returns all waiting requests, the first one first."""
        requests = list(self._requests)
        self._requests.clear()
        self._bytes = 0
        return requests
