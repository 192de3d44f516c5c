"""The routes of the dialect: those of OpenAI's containers, at `/v1/containers`.

It puts the parts of this folder together and holds nothing itself.
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from fumehood.dialects.openai.containers import ContainerRoutes
from fumehood.server.services import Services


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of a server that keeps containers as OpenAI does."""
    return [*ContainerRoutes(services).routes()]
