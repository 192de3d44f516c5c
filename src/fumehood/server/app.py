"""The app: the gate, the native routes, the dialects, and what turns errors into answers.

Runs in the server process. It knows no resource and no dialect by more than its name; `assembly.py` makes the
services that it serves.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from fumehood.errors import FumehoodError
from fumehood.server import problems
from fumehood.server.gate import Gate
from fumehood.server.metrics import ServerMetrics
from fumehood.server.routes import ROUTERS
from fumehood.server.routes.ports import ROUTES as PORT_ROUTES
from fumehood.server.routes.ports import HostNames
from fumehood.server.services import Services
from fumehood.server.settings import ServerSettings

# Opens the services when the app starts and closes them when it ends.
Opener = Callable[[ServerSettings, ServerMetrics], AbstractAsyncContextManager[Services]]
_UPLOADS = ("/files", "/upload", "/content")


def create_app(settings: ServerSettings, open_services: Opener) -> FastAPI:
    """Makes the app.

    Args:
        settings: What the server was told.
        open_services: Makes what the handlers use; entered on the server's own loop.
    """
    metrics = ServerMetrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with open_services(settings, metrics) as services:
            app.state.services = services

            for dialect in settings.dialects:
                app.router.routes.extend(_dialect_routes(dialect, services))

            yield

    app = FastAPI(
        title="fumehood",
        summary="Runs code nobody has read yet.",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        separate_input_output_schemas=False,
    )

    for router in ROUTERS:
        app.include_router(router)

    app.router.routes.extend(PORT_ROUTES)

    app.add_exception_handler(FumehoodError, problems.answer_error)
    app.add_exception_handler(HTTPException, problems.answer_http_error)
    app.add_exception_handler(RequestValidationError, problems.answer_invalid)

    if settings.domain:
        app.add_middleware(HostNames, domain=settings.domain)

    app.add_middleware(Gate, settings=settings, observe=metrics.observe, is_upload=_is_upload)
    return app


def _dialect_routes(name: str, services: Services) -> list[BaseRoute]:
    """The routes of a dialect, whose folder may have been taken out."""
    adapter = importlib.import_module(f"fumehood.compat.{name}.adapter")
    routes: list[BaseRoute] = adapter.routes(services)
    return routes


def _is_upload(method: str, path: str) -> bool:
    return method in ("POST", "PUT") and path.rstrip("/").endswith(_UPLOADS)
