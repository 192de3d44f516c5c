"""Runs the daemon: the server's routes over the engine of this process, on one unix socket.

Runs in the host daemon, which it is; `fumehood.server.serving` says how it ends. All its sandboxes end with it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from fumehood.daemon import routes
from fumehood.daemon.peers import PeerProtocol
from fumehood.daemon.services import open_host_services
from fumehood.daemon.settings import HostSettings
from fumehood.daemon.socket import listening
from fumehood.errors import InvalidArgumentError
from fumehood.server.app import assemble_app
from fumehood.server.holding import holding, own_folder
from fumehood.server.routes import ROUTERS, keys
from fumehood.server.routes.ports import ROUTES as PORT_ROUTES
from fumehood.server.serving import prepare_log, serve_app

_ROUTERS = [routes.router, *(router for router in ROUTERS if router is not keys.router)]


def serve_host(settings: HostSettings) -> int:
    """Keeps sandboxes until it is told to end, and returns the exit code: 0, or 1 when calls had to be cut off.

    Raises:
        FumehoodError: The socket or the state folder cannot be had.
    """
    prepare_log(settings.log_level)
    state = own_folder("state_folder", settings.state_path)
    taken = InvalidArgumentError(
        field="state_folder", value=str(state), allowed="a folder that no other host uses now"
    )

    with ExitStack() as stack:
        listener = stack.enter_context(listening(Path(settings.socket)))
        stack.enter_context(holding(state / "host.lock", taken))
        return asyncio.run(_serve(settings, state, listener))


async def _serve(settings: HostSettings, state: Path, listener: socket.socket) -> int:
    async with open_host_services(settings, state) as services:
        app = assemble_app(services, _ROUTERS, PORT_ROUTES)
        sys.stderr.write(f"fumehood host listens on {settings.socket}\n")
        sys.stderr.flush()
        return await serve_app(app, services, listener, PeerProtocol)
