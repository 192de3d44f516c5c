"""Responses whose body is read from a sandbox while it is sent: a file, or a saved state.

At most one piece is in memory, and reading stops when the client disconnects.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fumehood.errors import FumehoodError
from fumehood.server.connections import break_off
from fumehood.server.streaming import send_bytes, send_unless_gone


class Download(Response):
    """An answer that comes in pieces.

    Args:
        first: Its first piece.
        pieces: What comes after that; closed at the end, and when the client goes. An error breaks the answer off.
        headers: Headers of the answer; without a length among them it ends where the pieces do.
        status: Its status.
    """

    def __init__(
        self,
        first: bytes,
        pieces: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        status: int = 200,
    ) -> None:
        super().__init__(status_code=status, headers=headers)

        if "Content-Length" not in headers:
            del self.headers["content-length"]

        self._first = first
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer, until it ends or the client goes."""
        async with aclosing(self._pieces):
            await send_unless_gone(self._send(scope, send), receive)

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send_bytes(self._first, send)

        try:
            async for piece in self._pieces:
                await send_bytes(piece, send)
        except FumehoodError as error:
            await break_off(scope, error.message)
            return

        await send({"type": "http.response.body", "body": b"", "more_body": False})
