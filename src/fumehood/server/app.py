"""The app: the ingress, the native routes, the dialects, and the handlers that turn errors into responses.

It knows resources and dialects only by name; `assembly.py` makes the services that it serves.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from importlib import metadata

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from fumehood.errors import FumehoodError
from fumehood.log import events
from fumehood.server import problems
from fumehood.server.ingress import SIGNED_PORTS, Ingress
from fumehood.server.openapi import complete_description
from fumehood.server.routes import ROUTERS
from fumehood.server.routes.ports import ROUTES as PORT_ROUTES
from fumehood.server.routes.ports import HostNames
from fumehood.server.services import AppServices, Services

_CONSOLE = "fumehood.console"
_PREFLIGHT_SECONDS = 600
_VOLUMES = "/volumecontent/"
_UPLOADS = ("/files", "/upload", "/upload/batch", "/content", "/sandboxes/load")


def create_app(services: Services) -> FastAPI:
    """Makes the app of a server over services that are open as long as it is served."""
    dialects = {name: _dialect_routes(name, services) for name in services.settings.dialects}
    routes = [route for found in dialects.values() for route in found]
    console = _console_routes() if services.settings.console else []
    app = assemble_app(services, ROUTERS, [*PORT_ROUTES, *routes, *console])
    # The dialects that are served: one that is not installed has no routes.
    app.state.dialects = tuple(name for name, found in dialects.items() if found)
    app.state.has_console = bool(console)
    return app


def assemble_app(services: AppServices, routers: Iterable[APIRouter], routes: Iterable[BaseRoute]) -> FastAPI:
    """Makes an app of these routers and routes, in this order, behind the ingress."""
    settings = services.settings
    app = FastAPI(
        title="fumehood",
        summary="Runs untrusted Python in sandboxes.",
        version=metadata.version("fumehood"),
        docs_url=None,
        redoc_url=None,
        # The route of the description is ours: it is rendered once, and does not describe itself.
        openapi_url=None,
        separate_input_output_schemas=False,
    )

    # As they are: `include_router` would analyse each of them again, at the first request, for 0.3 s of the loop.
    app.router.routes.extend(route for router in routers for route in router.routes)
    app.router.routes.extend(_named(route) for route in routes)

    # A request whose Host names a sandbox may have any path, also the path of one of our routes.
    app.router.routes.sort(key=lambda route: not getattr(route, "is_first", False))

    complete_description(app)
    app.state.services = services

    app.add_exception_handler(FumehoodError, problems.answer_error)
    app.add_exception_handler(HTTPException, problems.answer_http_error)
    app.add_exception_handler(RequestValidationError, problems.answer_invalid)

    # Inside of `HostNames`: servers in sandboxes answer the preflights of their own origins themselves.
    if settings.allowed_origins:
        _allow_origins(app, settings.allowed_origins)

    if settings.domain:
        app.add_middleware(HostNames, domain=settings.domain)

    app.add_middleware(
        Ingress,
        settings=settings,
        drain=services.drain,
        observe=services.metrics.observe,
        is_upload=_is_upload,
    )

    if settings.trusted_proxies:
        # Outermost, so that all else sees the client's address and scheme.
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies))

    return app


def _allow_origins(app: FastAPI, origins: Iterable[str]) -> None:
    """Allows pages of these origins to read responses (CORS); without cookies, since tokens are in headers."""
    app.add_middleware(
        _OwnAnswers,
        allow_origins=[origin.lower().rstrip("/") for origin in origins],
        allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["*"],
        expose_headers=[
            "X-Request-ID",
            "Retry-After",
            "RateLimit",
            "RateLimit-Policy",
            "Content-Disposition",
        ],
        max_age=_PREFLIGHT_SECONDS,
    )


class _OwnAnswers(CORSMiddleware):
    """Adds CORS headers to the server's own answers, and nothing to a guest's answers at a signed address."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""
        if scope["path"].startswith(SIGNED_PORTS):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _dialect_routes(name: str, services: Services) -> list[BaseRoute]:
    """Returns the routes of a dialect; none when its folder was removed."""
    package = f"fumehood.dialects.{name}"

    if not importlib.util.find_spec(package) or not importlib.util.find_spec(f"{package}.adapter"):
        events.DIALECT_MISSING.log(dialect=name)
        return []

    routes: list[BaseRoute] = importlib.import_module(f"{package}.adapter").routes(services.spoken_by(name))
    return routes


def _console_routes() -> list[BaseRoute]:
    """Returns the routes of the page at /console/; none when its folder was removed."""
    if not importlib.util.find_spec(_CONSOLE):
        return []

    routes: list[BaseRoute] = importlib.import_module(f"{_CONSOLE}.routes").routes()
    return routes


def _named(route: BaseRoute) -> BaseRoute:
    """Wraps a plain route so that its pattern is in the scope, as with FastAPI's routes: for metrics and logs."""
    if isinstance(route, Route):
        handle = route.handle

        async def named(scope: Scope, receive: Receive, send: Send) -> None:
            scope["route"] = route
            await handle(scope, receive, send)

        route.handle = named  # type: ignore[method-assign]

    return route


def _is_upload(method: str, path: str) -> bool:
    is_of_volume = path.startswith(_VOLUMES) and path.endswith("/file")
    return method in ("POST", "PUT") and (is_of_volume or path.rstrip("/").endswith(_UPLOADS))
