"""The routes of the dialect: the kernel API of a Jupyter server, on sandboxes.

It puts the parts of this folder together and holds nothing itself.
"""

from __future__ import annotations

from starlette.routing import BaseRoute, WebSocketRoute

from fumehood.dialects.jupyter.auth import JupyterAuthenticator, LoginRoutes
from fumehood.dialects.jupyter.channels import ChannelsEndpoint
from fumehood.dialects.jupyter.kernel_routes import KernelRoutes
from fumehood.dialects.jupyter.kernels import Kernels
from fumehood.dialects.jupyter.sessions import SessionRoutes
from fumehood.server.services import Services


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of Jupyter's API."""
    callers = JupyterAuthenticator(services.authenticator)
    kernels = Kernels(services)
    channels = ChannelsEndpoint(services, callers, kernels)
    return [
        *KernelRoutes(services, callers, kernels).routes(),
        *SessionRoutes(services, callers, kernels).routes(),
        *LoginRoutes(callers).routes(),
        WebSocketRoute("/api/kernels/{kernel_id}/channels", channels.serve),
    ]
