"""The routes of the dialect: the kernel API of a Jupyter server, on sandboxes.

Runs in the server process. It puts the parts of this folder together and holds nothing itself.
"""

from __future__ import annotations

from starlette.routing import BaseRoute, WebSocketRoute

from fumehood.compat.jupyter.callers import Callers
from fumehood.compat.jupyter.channels import ChannelsEndpoint
from fumehood.compat.jupyter.kernel_routes import KernelRoutes
from fumehood.compat.jupyter.kernels import Kernels
from fumehood.compat.jupyter.login import LoginRoutes
from fumehood.compat.jupyter.session_routes import SessionRoutes
from fumehood.server.services import Services


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of a server that speaks Jupyter."""
    callers = Callers(services.authenticator)
    kernels = Kernels(services)
    channels = ChannelsEndpoint(services, callers, kernels)
    return [
        *KernelRoutes(services, callers, kernels).routes(),
        *SessionRoutes(services, callers, kernels).routes(),
        *LoginRoutes(callers).routes(),
        WebSocketRoute("/api/kernels/{kernel_id}/channels", channels.serve),
    ]
