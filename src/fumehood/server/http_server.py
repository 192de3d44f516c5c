"""One uvicorn over one app and one listening socket, from its first request to its end.

Runs in the server process and in the host daemon. SIGTERM and SIGINT end it gracefully: new work is refused, work under
way may continue for `drain_seconds`, and unfinished requests then get an error and are cut off. A second signal ends
it at once.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from fumehood.log import events
from fumehood.server.connections import BoundedWebSocket, bounded_http
from fumehood.server.services import AppServices
from fumehood.server.settings import ServerSettings

EXIT_CUT_OFF = 1
# How many connections may wait to be accepted.
BACKLOG = 512
# How many are accepted in one turn of the loop. asyncio has one number for both. Where descriptors have
# run out, it tries that often each second.
_ACCEPTED_AT_ONCE = 16
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_KEEP_ALIVE_SECONDS = 75
_SWITCH_SECONDS = 0.0005
_WEBSOCKET_BYTES = 16 << 20
# The time for requests that are cut off to send their error to the client.
_LAST_WORDS_SECONDS = 2


async def serve_app(
    app: FastAPI,
    services: AppServices,
    listener: socket.socket,
    protocol: type[asyncio.Protocol] | None = None,
) -> int:
    """Serves until a signal ends it, and returns the exit code.

    Args:
        app: Answers the requests.
        services: The services of the app.
        listener: The listening socket; closed at the end.
        protocol: The HTTP protocol of a connection; None: uvicorn's, with bounds.
    """
    server = _Server(_config(app, services.settings, protocol or bounded_http()), services)
    # Existing objects are excluded from garbage collection: otherwise a flood of small objects makes the collector
    # traverse all modules and routes, which stops the loop for a tenth of a second and more each time.
    gc.collect()
    gc.freeze()
    # A thread that computes gives the interpreter's lock back to the loop after so long, not after Python's 5 ms:
    # beside one, each turn of the loop waits that long, and a request takes some ten turns.
    sys.setswitchinterval(_SWITCH_SECONDS)
    await server.serve(sockets=[listener])
    return server.exit_code


class _Server(uvicorn.Server):
    """A uvicorn that ends on request, and does not end the process."""

    def __init__(self, config: uvicorn.Config, services: AppServices) -> None:
        super().__init__(config)
        self.exit_code = 0
        self._services = services
        self._draining: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handles the signals while it serves.

        Uvicorn's own handling would raise them again before all services are closed.
        """
        loop = asyncio.get_running_loop()

        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end)

        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to serve; the kernel's queue is longer than asyncio's backlog, which bounds the accepts in a turn."""
        await super().startup(sockets)

        for listener in sockets or ():
            listener.listen(BACKLOG)

    def _end(self) -> None:
        if self._draining is None:
            self._services.drain.begin()
            self._draining = asyncio.get_running_loop().create_task(self._drain())
            return

        events.SERVER_CUT_OFF.log(reason="a second signal")
        self.exit_code = EXIT_CUT_OFF
        self.force_exit = self.should_exit = True
        self._services.drain.end()

    async def _drain(self) -> None:
        services = self._services
        seconds = services.settings.drain_seconds
        events.SERVER_ENDING.log(drain_seconds=seconds)

        # Meanwhile it still listens, so that new requests are answered with a retry.
        if not await services.drain.wait(seconds, services.is_busy):
            events.SERVER_CUT_OFF.log(reason="the time to end is over")
            self.exit_code = EXIT_CUT_OFF

        self.should_exit = True


def _config(app: FastAPI, settings: ServerSettings, http: type[asyncio.Protocol]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http,
        ws=BoundedWebSocket,
        lifespan="off",
        log_config=None,
        # fumehood logs the start and the end itself.
        log_level="warning",
        # uvicorn's would hold whole addresses; the ingress has one without.
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_ACCEPTED_AT_ONCE,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
        ws_max_size=_WEBSOCKET_BYTES,
        ws_per_message_deflate=False,
        # Pings keep the way open, but a pong may wait behind data that one side does not take yet. TCP notices, from
        # what is never acknowledged, that a machine is gone.
        ws_ping_timeout=None,
    )
