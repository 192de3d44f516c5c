"""Authentication on native routes: reads the token from a request's headers and returns its principal.

Dialects read tokens where their clients put them, and use the same authenticator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import parse_qsl, urlencode

from fastapi import Depends, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.requests import HTTPConnection

from fumehood.port.backend import Backend
from fumehood.server.principal import Principal, Scope
from fumehood.server.services import AppServices, Services, services_of, stores_of

_QUERY_FIELD = "token"
# These describe themselves in OpenAPI; the token is read by `token_of`.
_BEARER = HTTPBearer(auto_error=False, description="`Authorization: Bearer TOKEN`")
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same token, as `X-API-Key`")


def token_of(connection: HTTPConnection) -> str | None:
    """Returns the token that a request brings, from `Authorization: Bearer` or `X-API-Key`."""
    kind, _, value = connection.headers.get("authorization", "").partition(" ")

    if kind.lower() == "bearer" and value.strip():
        return value.strip()

    return connection.headers.get("x-api-key")


def take_token_from_query(connection: HTTPConnection) -> str | None:
    """Returns the `token` of a request's address, and takes it out: addresses are logged, for WebSockets always."""
    query = connection.scope.get("query_string", b"")

    if _QUERY_FIELD.encode() not in query:
        return None

    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    left = [(name, value) for name, value in pairs if name != _QUERY_FIELD]
    connection.scope["query_string"] = urlencode(left).encode()
    return next((value for name, value in pairs if name == _QUERY_FIELD), None)


async def principal_of(connection: HTTPConnection) -> Principal:
    """Returns the principal of a request; authenticates once for each request.

    Raises:
        UnauthenticatedError: The token is missing or not known.
    """
    known = getattr(connection.state, "principal", None)

    if known is None:
        known = await services_of(connection).authenticator.authenticate(token_of(connection))
        connection.state.principal = known

    assert isinstance(known, Principal)
    return known


# Declared for the description only: FastAPI resolves each nested dependency anew for each request.
_Bearer = Annotated[object, Security(_BEARER)]
_Header = Annotated[object, Security(_HEADER)]


async def _caller(connection: HTTPConnection, bearer: _Bearer, header: _Header) -> Principal:
    return await principal_of(connection)


# The dependency of a route that any authenticated caller may use. One `Depends` each: of several only the last counts.
AnyCaller = Annotated[Principal, Depends(_caller)]


def _requiring(scope: Scope) -> Callable[[HTTPConnection, object, object], Awaitable[Principal]]:
    async def check(connection: HTTPConnection, bearer: _Bearer, header: _Header) -> Principal:
        principal = await principal_of(connection)
        principal.require(scope)
        return principal

    return check


ExecuteCaller = Annotated[Principal, Depends(_requiring("execute"))]
KeysCaller = Annotated[Principal, Depends(_requiring("keys"))]
MetricsCaller = Annotated[Principal, Depends(_requiring("metrics"))]


async def _sandboxes(connection: HTTPConnection, bearer: _Bearer, header: _Header) -> Backend:
    principal = await principal_of(connection)
    principal.require("sandboxes")
    return services_of(connection).backend_for(principal)


# The dependency that gives a route the caller's sandboxes.
CallersBackend = Annotated[Backend, Depends(_sandboxes)]


# Asynchronous, though they wait for nothing: FastAPI runs synchronous dependencies in a thread.
async def _services(connection: HTTPConnection) -> AppServices:
    return services_of(connection)


async def _stores(connection: HTTPConnection) -> Services:
    return stores_of(connection)


ServicesOf = Annotated[AppServices, Depends(_services)]
StoresOf = Annotated[Services, Depends(_stores)]
