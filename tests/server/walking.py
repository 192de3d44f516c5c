"""The routes of an app, all of them, and how to ask each: for the tests that attack every one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import httpx2
from starlette.routing import BaseRoute

from fumehood.server.settings import DIALECTS

# What says nothing but that something is there: health of the server, and of dialects whose clients ask for it first.
OPEN = {"/", "/healthz", "/readyz", "/api", "/login", "/v1/ping", "/librechat/health", "/librechat/v1/health"}
# The documentation, Swagger UI and the console, as far as they are installed: the same files at each server.
SITE = {"/docs", "/docs/{path:path}", "/openapi", "/openapi/{name:path}"} | {
    "/console",
    "/console/frame",
    "/console/assets/{name:path}",
    "/console/{path:path}",
    "/share/frame",
    "/share/{share_id}",
}
REFUSED = {401, 403}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class FromManyAddresses(httpx2.BaseTransport):
    """Sends each hundred requests from another address of this machine's loopback.

    A server looks at nothing more from one address that was wrong too often.
    """

    _numbers = itertools.count()

    def __init__(self) -> None:
        self._count = 0
        self._transport = self._next()

    def _next(self) -> httpx2.HTTPTransport:
        number = next(self._numbers)
        return httpx2.HTTPTransport(local_address=f"127.2.{number // 250}.{number % 250 + 1}")

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self._count += 1

        if self._count % 100 == 0:
            self._transport.close()
            self._transport = self._next()

        return self._transport.handle_request(request)

    def close(self) -> None:
        self._transport.close()


def leaves(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """All routes, those of included routers and mounts as well."""
    for route in routes:
        inner = getattr(getattr(route, "original_router", route), "routes", None)

        if inner:
            yield from leaves(inner)
        else:
            yield route


def filled(path: str) -> str:
    """A path with something in the place of each parameter."""
    return re.sub(r"\{[^}]*\}", "x", path.replace("{port}", "80"))


def dialect_of(route: BaseRoute) -> str:
    """The dialect that a route belongs to, by where its code is; "native" for the server's own."""
    endpoint = getattr(route, "endpoint", route)
    module = getattr(endpoint, "__module__", type(endpoint).__module__)
    return next((name for name in DIALECTS if f".dialects.{name}." in f"{module}."), "native")


def methods_of(route: BaseRoute) -> list[str]:
    """The methods of a route; `WEBSOCKET` for one that is reached by an upgrade."""
    methods = getattr(route, "methods", None)
    return ["WEBSOCKET"] if methods is None else sorted(methods)


def status_of_upgrade(client: httpx2.Client, path: str, headers: dict[str, str]) -> int:
    """What a WebSocket handshake is answered with."""
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }

    with client.stream("GET", path, headers={**upgrade, **headers}) as answer:
        return answer.status_code
