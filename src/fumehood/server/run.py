"""Runs the server: one uvicorn over one app, from its first line on the terminal to its last.

Runs in the server process, which it is. SIGTERM and SIGINT end it gracefully: no new work, what is under way may
go on for `drain_seconds`, then everything is closed; a second signal ends it at once.
"""

from __future__ import annotations

import logging
import socket
import sys

import uvicorn

from fumehood.errors import InvalidArgumentError
from fumehood.server.app import create_app
from fumehood.server.assembly import open_services, prepare_state
from fumehood.server.authenticator import owner_token
from fumehood.server.settings import ServerSettings

_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 75
_WEBSOCKET_BYTES = 16 << 20


def serve(settings: ServerSettings) -> int:
    """Serves until it is told to end, and returns the exit code.

    Raises:
        InvalidArgumentError: The address cannot be had, or the state folder is another server's.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    state = prepare_state(settings)
    _, token_file = owner_token(state, settings.token)
    listener = _listen(settings)
    _greet(settings, listener, str(token_file) if token_file else "")
    server = uvicorn.Server(_config(settings))
    server.run(sockets=[listener])
    return 0 if server.started else 1


def _config(settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(settings, open_services),
        # The engine watches descriptors and child processes, which has been tested on this loop.
        loop="asyncio",
        http="httptools",
        ws="websockets-sansio",
        lifespan="on",
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
    listener = socket.socket(family, socket.SOCK_STREAM)
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
