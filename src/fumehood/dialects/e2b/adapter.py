"""The routes of E2B's dialect.

A request to a sandbox names it by headers or by the Host, not by its path, and must be matched before any route by
path: those routes come first, marked with `is_first`.
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from fumehood.dialects.e2b.auth import E2BAuthenticator, SandboxTokens
from fumehood.dialects.e2b.control import Control
from fumehood.dialects.e2b.envd import Envd, SignedUrls
from fumehood.dialects.e2b.inside import InsideInterpreters
from fumehood.dialects.e2b.interpreter import InterpreterApp
from fumehood.dialects.e2b.traffic import Ports, SignedRoute, TrafficRoute
from fumehood.server.services import Services
from fumehood.server.state_files import derive, server_secret


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of the dialect."""
    tokens = SandboxTokens(derive(server_secret(services.state), "tokens of e2b sandboxes"))
    callers = E2BAuthenticator(services)
    envd = Envd(callers, tokens, services.settings.max_upload_bytes)
    ports = Ports(callers, tokens)
    services.port_dialects.append(ports)
    inside = InsideInterpreters(services, tokens)
    traffic = TrafficRoute(envd, InterpreterApp(callers, tokens, inside), ports, services.settings.domain)
    signed = SignedRoute(SignedUrls(services.backend, tokens, envd))
    return [traffic, signed, *Control(services, callers, tokens, inside).routes()]
