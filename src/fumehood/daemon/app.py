"""The app of the daemon: the server's routes over the engine of this process, on the daemon's socket.

Runs in the host daemon; `fumehood.server.http_server` says how it ends. All its sandboxes end with it.
"""

from __future__ import annotations

import os
import socket
import sys
from importlib import metadata
from pathlib import Path

from fumehood.daemon import routes
from fumehood.daemon.peers import PeerProtocol
from fumehood.daemon.services import open_host_services
from fumehood.daemon.settings import HostSettings
from fumehood.log import events
from fumehood.log.setup import configure
from fumehood.server.app import assemble_app
from fumehood.server.http_server import serve_app
from fumehood.server.routes import ROUTERS, keys
from fumehood.server.routes.ports import ROUTES as PORT_ROUTES
from fumehood.setting_fields import shown_settings

_ROUTERS = [routes.router, *(router for router in ROUTERS if router is not keys.router)]


async def keep_sandboxes(settings: HostSettings, state: Path, listener: socket.socket) -> int:
    """Serves sandboxes until a signal ends it, and returns the exit code."""
    configure(settings.log_level, settings.log_format)

    async with open_host_services(settings, state) as services:
        app = assemble_app(services, _ROUTERS, PORT_ROUTES)
        events.HOST_STARTED.log(
            address=settings.socket,
            version=metadata.version("fumehood"),
            pid=os.getpid(),
            settings=shown_settings(settings),
        )

        if settings.log_format == "console":
            sys.stderr.write(f"fumehood host listens on {settings.socket}\n")
            sys.stderr.flush()

        return await serve_app(app, services, listener, PeerProtocol)
