"""The app before its first request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fastapi import APIRouter, FastAPI

from fumehood.server.app import assemble_app
from fumehood.server.routes import ROUTERS
from fumehood.server.settings import ServerSettings


def test_no_route_is_analysed_by_the_first_request():
    """Each is a route of the app itself. One of an included router is analysed anew when a request comes."""
    services: Any = SimpleNamespace(
        settings=ServerSettings(), drain=None, metrics=SimpleNamespace(observe=None)
    )
    app = assemble_app(services, ROUTERS, [])
    expected = [route for router in ROUTERS for route in router.routes]
    assert sorted(app.router.routes, key=id) == sorted(expected, key=id)

    # That is what FastAPI does otherwise.
    control = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    control.include_router(_router())
    assert control.router.routes != _router().routes
    assert not hasattr(control.router.routes[0], "dependant")


def _router() -> APIRouter:
    router = APIRouter()
    router.get("/a")(lambda: None)
    return router
