"""Runs the server: one uvicorn over one app, from its first line on the terminal to its last.

Runs in the server process, which it is. SIGTERM and SIGINT end it gracefully: no new work, what is under way may
go on for `drain_seconds`, then everything is closed; a second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager

import uvicorn
from fastapi import FastAPI

from fumehood.errors import InvalidArgumentError
from fumehood.server.app import create_app
from fumehood.server.assembly import open_services, prepare_state
from fumehood.server.authenticator import owner_token
from fumehood.server.services import Services
from fumehood.server.settings import ServerSettings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 75
_WEBSOCKET_BYTES = 16 << 20


def serve(settings: ServerSettings) -> int:
    """Serves until it is told to end, and returns the exit code: 0, or 1 when requests had to be cut off.

    Raises:
        FumehoodError: The address, the database or the state folder cannot be had.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_holds_no_secret)
    return asyncio.run(_serve(settings))


async def _serve(settings: ServerSettings) -> int:
    state = prepare_state(settings)
    _, token_file = owner_token(state, settings.token)

    # Before anything else is opened: what cannot be had should be said at once.
    with closing(_listen(settings)) as listener:
        async with open_services(settings) as services:
            server = _Server(_config(create_app(services), settings), services)
            _greet(settings, listener, str(token_file) if token_file else "")
            await server.serve(sockets=[listener])
            return int(server.force_exit)


class _Server(uvicorn.Server):
    """A uvicorn that ends when it is told to, and leaves the end of the process to us."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Hears the signals while it serves; uvicorn's own way would raise them again before all is closed."""
        loop = asyncio.get_running_loop()

        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end)

        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._services.draining = True


def _holds_no_secret(record: logging.LogRecord) -> bool:
    """Keeps out what uvicorn says of WebSockets: addresses, and headers when debugging; both may hold tokens."""
    return record.levelno > logging.DEBUG and '"WebSocket ' not in str(record.msg)


def _config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        log_level=settings.log_level,
        access_log=settings.log_level == "debug",
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        ws_max_size=_WEBSOCKET_BYTES,
        ws_per_message_deflate=False,
    )


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named as TCP, or asyncio would leave Nagle on for what it accepts: 40 ms for each small answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise InvalidArgumentError(
            field="host and port",
            value=f"{settings.host}:{settings.port}",
            allowed=f"an address of this machine that is free ({error.strerror})",
        ) from None

    listener.listen(_BACKLOG)
    listener.set_inheritable(False)
    return listener


def _greet(settings: ServerSettings, listener: socket.socket, token_file: str) -> None:
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    lines = [f"fumehood listens on http://{host}:{port}"]

    if token_file:
        lines.append(f"its token is in {token_file}")

    lines.append(f"dialects: {', '.join(settings.dialects) or 'none'}")
    sys.stderr.write("\n".join([*lines, ""]))
    sys.stderr.flush()
