"""Two keys at one dialect of one server, and each route of it with ids that mean something."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx2
from starlette.routing import BaseRoute

from .dialects import Call, Caller, Dialect, Ids
from .walking import OPEN, SITE, dialect_of, methods_of, status_of_upgrade

# What goes to a guest's own server by its headers, and a file that is named by a signature.
WITHOUT_PATH = {"e2b sandbox", "e2b signed file"}

Asked = tuple[str, str]
NewCaller = Callable[[Dialect, str], Caller]


class Scene:
    """Two keys at one dialect: one that has made all there is to make, and another one with things of its own.

    Args:
        server: The server.
        dialect: The dialect that both speak.
        caller: Makes callers.
    """

    def __init__(self, server: Any, dialect: Dialect, caller: NewCaller) -> None:
        self.owner = caller(dialect, new_key(server))
        self.other = caller(dialect, new_key(server))
        self.stranger = caller(dialect, "")
        self.ids: Ids = dialect.set_up(self.owner)
        self.own: Ids = dialect.set_up(self.other)
        self.never: Ids = dialect.never_made(self.ids)


def new_key(server: Any, **given: Any) -> str:
    """Make a key and return its token."""
    body = {"name": "k", **given}
    made = httpx2.post(f"{server.url}/v1/keys", json=body, headers=server.headers, timeout=30)
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


def path_of(route: BaseRoute) -> str:
    """The path of a route, or what it is called in place of one."""
    return str(getattr(route, "path", ""))


def routes_of(routes: list[BaseRoute], name: str) -> list[BaseRoute]:
    """The routes of a dialect that have a path."""
    return [route for route in routes if dialect_of(route) == name and path_of(route) not in WITHOUT_PATH]


def asked_of(of_dialect: list[BaseRoute], ids: Ids) -> list[Asked]:
    """Method and path of each route that is not open, with these ids in the places of its parameters."""
    return [
        (method, re.sub(r"\{(\w+)(:path)?\}", lambda found: ids[found[1]], path_of(route)))
        for route in of_dialect
        for method in methods_of(route)
        if path_of(route) not in OPEN | SITE
    ]


def body_of(method: str, path: str) -> Call:
    """A request with an empty object where there can be a body."""
    return Call(method=method, path=path, given={"json": {}} if method in ("POST", "PUT", "PATCH") else {})


def status_of(who: Caller, asked: Asked, **headers: Any) -> int:
    """What a request, or a handshake, is answered with."""
    method, path = asked

    if method == "WEBSOCKET":
        return status_of_upgrade(who.client, path, {**who.headers, **headers})

    return who(body_of(method, path), **headers).status_code
