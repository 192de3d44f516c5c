"""The host's client of a sandbox's init: one reply per request, and events in between.

Replies are matched by number; a reply to a request that is not open, or that the message table does not contain, ends
the sandbox.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

from fumehood.cancellation import wait_shared
from fumehood.engine.channel import Channel
from fumehood.engine.loop_share import LoopShare
from fumehood.text import errno_text
from fumehood_wire import init_messages, messages
from fumehood_wire.frames import ProtocolError

# Bound on reading from init at once; init sends little between two turns of the loop.
_CATCH_UP_SECONDS = 0.02


class InitError(Exception):
    """Init refused a request; callers convert it to an error of the API.

    Attributes:
        code: Kind of refusal: os, invalid, not_found, protocol.
        message: Init's message.
        errno_value: The errno, 0 if there was none.
        log_reason: The reason for the log, without words of init, which runs with the guest.
    """

    def __init__(self, code: str, message: str, errno_value: int) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.errno_value = errno_value
        self.log_reason = errno_text(errno_value) if errno_value else "init refused it"


class InitGoneError(Exception):
    """The channel to init closed before the reply came; whether the request was carried out is unknown."""


class InitClient:
    """Sends requests to init, and passes on its events.

    Args:
        sock: The host's end of the socket to init, already greeted.
        on_event: Called with each event.
        on_close: Called once when the channel ends.
        share: The sandbox's share of the loop; by default one of its own.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_event: Callable[[dict[str, Any], bytes], None],
        on_close: Callable[[ProtocolError | None], None],
        share: LoopShare | None = None,
    ) -> None:
        self._on_event = on_event
        self._on_close = on_close
        self._waiting: dict[int, tuple[str, asyncio.Future[tuple[Any, bytes]]]] = {}
        self._next_number = 1
        self._channel = Channel(sock, self._receive, self._closed, share=share)

    async def ask(
        self, verb: str, payload: bytes = b"", *, fds: Sequence[int] = (), **arguments: Any
    ) -> tuple[Any, bytes]:
        """Sends a request and waits for its reply.

        Raises:
            InitError: Init has refused the request.
            InitGoneError: Init is gone.
        """
        if self._channel.closed:
            raise InitGoneError

        number = self._next_number
        self._next_number += 1
        reply: asyncio.Future[tuple[Any, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (verb, reply)
        try:
            header = {"type": "request", "id": number, "verb": verb, **arguments}
            self._send(header, payload, fds)
            # A cancelled caller must not cancel the expected reply. Its entry stays, because the reply still comes.
            return await wait_shared(reply)
        finally:
            if reply.done():
                self._waiting.pop(number, None)

    def _send(self, header: dict[str, Any], payload: bytes, fds: Sequence[int]) -> None:
        try:
            self._channel.send(header, payload, fds)
        except OSError:
            # The descriptors could not be duplicated: init does not receive the request, and will not reply.
            del self._waiting[header["id"]]
            raise

    def catch_up(self) -> None:
        """Handles init's messages so far, as far as that is possible in `_CATCH_UP_SECONDS`."""
        if not self._channel.closed:
            self._channel.receive(_CATCH_UP_SECONDS)

    def close(self) -> None:
        """Closes the channel; init exits, and the sandbox ends with it."""
        self._channel.close()

    def _receive(self, header: dict[str, Any], payload: bytes) -> None:
        messages.check(init_messages.INIT_TO_HOST, header, payload)

        if header["type"] == "event":
            self._on_event(header, payload)
            return

        verb, reply = self._waiting.get(header["id"], (None, None))

        if verb is None or reply is None:
            raise ProtocolError("order", f"reply to request {header['id']}, which is not open")

        if header["ok"]:
            init_messages.check_value(verb, header["value"])

        # Removed only now: if the reply violates the protocol, its caller still gets the error.
        del self._waiting[header["id"]]

        if reply.done():
            return

        if header["ok"]:
            reply.set_result((header["value"], payload))
        else:
            reply.set_exception(InitError(header["code"], header["message"], header.get("errno", 0)))
            # Retrieved, because the caller may have been cancelled.
            reply.exception()

    def _closed(self, error: ProtocolError | None) -> None:
        for _, reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(InitGoneError())
                reply.exception()

        self._waiting.clear()
        self._on_close(error)
