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
from starlette.websockets import WebSocket

from fumehood.errors import FumehoodError
from fumehood.port.backend import Backend
from fumehood.server.admission import until_refused_by
from fumehood.server.principal import Principal, Scope
from fumehood.server.services import AppServices, Services, services_of, stores_of
from fumehood.storage.logins import Login

_QUERY_FIELD = "token"
_TOKEN_PROTOCOL = "fumehood.token."  # noqa: S105 - what goes before a token
# These describe themselves in OpenAPI; the token is read by `token_of`.
_BEARER = HTTPBearer(auto_error=False, description="`Authorization: Bearer TOKEN`")
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same token, as `X-API-Key`")


def token_of(connection: HTTPConnection) -> str | None:
    """Returns the token of a request, from `Authorization: Bearer` or `X-API-Key`."""
    kind, _, value = connection.headers.get("authorization", "").partition(" ")

    if kind.lower() == "bearer" and value.strip():
        return value.strip()

    return connection.headers.get("x-api-key")


def take_token_from_query(connection: HTTPConnection) -> str | None:
    """Returns the `token` of a request's address, and removes it from the address.

    Addresses may be logged, and those of WebSockets always are.
    """
    query = connection.scope.get("query_string", b"")

    if _QUERY_FIELD.encode() not in query:
        return None

    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    left = [(name, value) for name, value in pairs if name != _QUERY_FIELD]
    connection.scope["query_string"] = urlencode(left).encode()
    return next((value for name, value in pairs if name == _QUERY_FIELD), None)


async def principal_of(connection: HTTPConnection, *, takes_login: bool = False) -> Principal:
    """Returns the principal of a request; authenticates once for each request.

    Args:
        connection: The request.
        takes_login: Whether the route accepts the cookie of a login, if there is no token: only native routes that this
            server itself answers may do so, never routes of a dialect or those that a guest answers.

    Raises:
        UnauthenticatedError: The token is missing or not known.
    """
    known = getattr(connection.state, "principal", None)

    if known is None:
        known = await _authenticated(connection, token_of(connection), takes_login=takes_login)

    assert isinstance(known, Principal)
    return known


async def principal_of_websocket(websocket: WebSocket) -> Principal:
    """Returns the principal of a WebSocket of the server's own API.

    Browsers cannot set headers on a WebSocket. They send their token as a subprotocol, which the server never selects
    and so never returns, or the cookie of a login. No token is read from the address, which ends up in logs and
    histories.

    Raises:
        UnauthenticatedError: The token is missing or not known.
    """
    token = token_of(websocket)

    if token is None:
        offered = offered_protocols(websocket)
        tokens = [name.removeprefix(_TOKEN_PROTOCOL) for name in offered if name.startswith(_TOKEN_PROTOCOL)]
        token = tokens[0] if tokens else None

    websocket.state.token = token
    return await _authenticated(websocket, token, takes_login=True)


async def until_refused(connection: HTTPConnection, scope: Scope = "sandboxes") -> FumehoodError:
    """Checks every two seconds whether the caller of an open connection or a running request is still authorised.

    A check counts neither as a use of the key or login nor as a request. It refreshes the scopes in `principal_of`.

    Args:
        connection: The request.
        scope: The scope that the caller needs for it.

    Returns:
        The error for a caller that has lost the right: its key was revoked or lost the scope, its token was replaced,
        or its login has ended; or the error of the checks, if they have failed for 30 seconds.
    """
    return await until_refused_by(lambda: _look_again(connection, scope))


async def refusal_of(connection: HTTPConnection, scope: Scope = "sandboxes") -> FumehoodError | None:
    """Returns the error for a caller whose credential is not valid any more; None while it is valid.

    Used right before a new right or resource is handed out: unlike in `until_refused`, a failed check counts as a
    refusal.
    """
    try:
        await _look_again(connection, scope)
    except FumehoodError as error:
        return error

    return None


async def _look_again(connection: HTTPConnection, scope: Scope) -> None:
    token = getattr(connection.state, "token", None) or token_of(connection)
    watches = connection.state.principal.only_watches
    principal = await _authenticated(connection, token, takes_login=True, is_use=False)

    if scope == "sandboxes" and watches:
        principal.require_look()
    else:
        principal.require(scope)


async def _authenticated(
    connection: HTTPConnection, token: str | None, *, takes_login: bool, is_use: bool = True
) -> Principal:
    services = services_of(connection)

    # A request with a token never looks at the cookie.
    if token is None and takes_login:
        found = await services.logged_in(connection, is_use=is_use)

        if found is not None:
            connection.state.principal, connection.state.login = found
            return found[0]

    authenticator = services.authenticator
    principal = await (authenticator.authenticate(token) if is_use else authenticator.look(token))
    connection.state.principal = principal
    return principal


def login_of(connection: HTTPConnection) -> Login | None:
    """Returns the login that authenticated a request; None if a token did."""
    return getattr(connection.state, "login", None)


def offered_protocols(websocket: WebSocket) -> list[str]:
    """Returns the subprotocols that a client offers."""
    offered: list[str] = websocket.scope.get("subprotocols") or []
    return offered


# Declared for the description only: FastAPI resolves each nested dependency again for each request.
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


# A key with `watch` alone reads, whatever a route of another method would do.
_LOOKING = ("GET", "HEAD")


async def _sandboxes(connection: HTTPConnection, bearer: _Bearer, header: _Header) -> Backend:
    principal = await principal_of(connection)

    if connection.scope.get("method") in _LOOKING:
        principal.require_look()
    else:
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
