"""Authentication: SandboxFusion's clients have no token, so it is taken from any place in their address.

A token in the query is taken out of it before anything can log it; one in the user part of the address arrives as HTTP
basic and is never logged.
"""

from __future__ import annotations

import base64
import binascii

from starlette.requests import HTTPConnection

from fumehood.errors import UnauthenticatedError
from fumehood.server.auth import take_token_from_query, token_of
from fumehood.server.authenticator import Authenticator
from fumehood.server.principal import Principal

_WAYS = (
    "give the address as http://fumehood:TOKEN@HOST:PORT/run_code or http://HOST:PORT/run_code?token=TOKEN, "
    "or send `Authorization: Bearer TOKEN` or `X-API-Key: TOKEN`"
)


async def principal_of_call(authenticator: Authenticator, connection: HTTPConnection) -> Principal:
    """Returns the authenticated caller, if it may run code.

    Raises:
        UnauthenticatedError: The token is missing or not known; the message says where it can be put.
        ForbiddenError: The key may not run code.
    """
    in_query = take_token_from_query(connection)
    given = token_of(connection) or _basic_token(connection) or in_query

    try:
        principal = await authenticator.authenticate(given)
    except UnauthenticatedError as error:
        raise UnauthenticatedError(reason=f"{error.reason}; {_WAYS}") from None

    principal.require("execute")
    return principal


def _basic_token(connection: HTTPConnection) -> str | None:
    """Returns the password of HTTP basic, or the user's name where there is no password."""
    kind, _, value = connection.headers.get("authorization", "").partition(" ")

    if kind.lower() != "basic":
        return None

    try:
        user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None

    return password or user
