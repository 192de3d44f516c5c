"""Who is asking: SandboxFusion's clients know of no token, so it is taken from wherever their address can hold one.

A token in the query is taken out of it before anything can log it; one in the user part of the address arrives as
HTTP basic and never stands in a log.
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
    """Returns who is asking, if they may run code.

    Raises:
        UnauthenticatedError: Nobody that is known; the message says where a token can be put.
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
    """The password of HTTP basic, or the user's name where there is no password."""
    kind, _, value = connection.headers.get("authorization", "").partition(" ")

    if kind.lower() != "basic":
        return None

    try:
        user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None

    return password or user
