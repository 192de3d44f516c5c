"""The router of native resources: authenticates the caller before a byte of the body is read.

FastAPI reads and parses a body before it resolves a route's dependencies; without this router, a caller without a token
could make the server read and parse bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from fumehood.server.auth import principal_of
from fumehood.values.json_values import check_values


class GuardedRoute(APIRoute):
    """A route that refuses callers without a valid token."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the handler behind the guard."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            await principal_of(request, takes_login=True)

            if _is_json(request):
                # The request keeps the body for its next parser.
                check_values(await request.body())

            return await handle(request)

        return guarded


class SignableRoute(APIRoute):
    """A route that admits a caller without a token if the address is signed; the handler checks the signature."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the handler behind the guard."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            if "signature" not in request.query_params:
                await principal_of(request, takes_login=True)

            return await handle(request)

        return guarded


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def guarded_router(tag: str, prefix: str = "") -> APIRouter:
    """Returns a router whose routes refuse callers without a valid token."""
    return APIRouter(tags=[tag], prefix=prefix, route_class=GuardedRoute)
