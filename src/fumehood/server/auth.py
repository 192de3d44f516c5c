"""Who asks a native route: the token of a request's headers, and the principal behind it.

Runs in the server process. Dialects find their tokens where their clients put them, and ask the same
authenticator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.requests import HTTPConnection

from fumehood.backends.base import Backend
from fumehood.server.principal import Principal, Scope
from fumehood.server.services import Services, services_of

# They describe themselves in OpenAPI; the token is read by `token_of`.
_BEARER = HTTPBearer(auto_error=False, description="`Authorization: Bearer TOKEN`")
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same token, as `X-API-Key`")


def token_of(connection: HTTPConnection) -> str | None:
    """Returns the token that a request brings, from `Authorization: Bearer` or `X-API-Key`."""
    kind, _, value = connection.headers.get("authorization", "").partition(" ")

    if kind.lower() == "bearer" and value.strip():
        return value.strip()

    return connection.headers.get("x-api-key")


async def principal_of(connection: HTTPConnection) -> Principal:
    """Returns who asks, once for each request.

    Raises:
        UnauthenticatedError: Nobody that this server knows.
    """
    known = getattr(connection.state, "principal", None)

    if known is None:
        known = await services_of(connection).authenticator.authenticate(token_of(connection))
        connection.state.principal = known

    assert isinstance(known, Principal)
    return known


def _requiring(scope: Scope) -> Callable[[HTTPConnection], Awaitable[Principal]]:
    async def check(connection: HTTPConnection) -> Principal:
        principal = await principal_of(connection)
        principal.require(scope)
        return principal

    return check


# What a route asks for that needs the scope of that name.
ExecuteCaller = Annotated[Principal, Depends(_requiring("execute")), Security(_BEARER), Security(_HEADER)]
KeysCaller = Annotated[Principal, Depends(_requiring("keys")), Security(_BEARER), Security(_HEADER)]
AnyCaller = Annotated[Principal, Depends(principal_of), Security(_BEARER), Security(_HEADER)]


async def _sandboxes(connection: HTTPConnection) -> Backend:
    principal = await principal_of(connection)
    principal.require("sandboxes")
    return services_of(connection).backend_for(principal)


# What a route asks for to speak to the caller's sandboxes.
CallersBackend = Annotated[Backend, Depends(_sandboxes), Security(_BEARER), Security(_HEADER)]
ServicesOf = Annotated[Services, Depends(services_of)]
