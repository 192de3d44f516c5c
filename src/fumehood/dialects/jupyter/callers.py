"""Authentication: the token where Jupyter's clients put it, or the session of a login.

A token in the address is taken out of it before anything can log it. A session is a cookie for a token that is kept
here, in memory; it counts only together with the `X-XSRFToken` header of its login, which no page of another site can
know or send, and not even a page of this one can read.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from fumehood.errors import UnauthenticatedError
from fumehood.server.auth import take_token_from_query
from fumehood.server.authenticator import Authenticator
from fumehood.server.principal import Principal

SESSION_COOKIE = "fumehood-jupyter"
XSRF_COOKIE = "_xsrf"
SESSION_SECONDS = 12 * 3600
_XSRF_HEADER = "x-xsrftoken"
_MAX_LOGINS = 10_000
_MAX_LOGINS_OF_TOKEN = 100
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Login:
    """A session: its token, the XSRF secret that its requests must repeat, and its end."""

    token: str
    xsrf: str
    ends_at: float


class Callers:
    """Authenticates the callers of this dialect.

    Args:
        authenticator: Maps tokens to principals.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._logins: OrderedDict[str, Login] = OrderedDict()

    async def principal_of(self, connection: HTTPConnection) -> Principal:
        """Returns the authenticated caller, if it may have sandboxes.

        Raises:
            UnauthenticatedError: The token is missing or not known.
            ForbiddenError: The key may not have sandboxes.
        """
        return await self.principal_of_token(self.token_of(connection))

    async def principal_of_token(self, token: str | None) -> Principal:
        """Returns the caller of a token, which may have been revoked since."""
        principal = await self._authenticator.authenticate(token)
        principal.require("sandboxes")
        return principal

    def hide_token(self, connection: HTTPConnection) -> None:
        """Removes a token from the address of a request that needs none."""
        take_token_from_query(connection)

    def token_of(self, connection: HTTPConnection) -> str | None:
        """Returns the token of a request or of its session, and removes it from the address."""
        in_query = take_token_from_query(connection)
        kind, _, value = connection.headers.get("authorization", "").partition(" ")

        if kind.lower() in ("token", "bearer") and value.strip():
            return value.strip()

        return in_query or self._token_of_session(connection)

    async def log_in(self, token: str, xsrf: str) -> str:
        """Begins a session and returns the value of its cookie.

        Raises:
            UnauthenticatedError: The token is not known.
        """
        await self.principal_of_token(token)
        self._make_room(token)
        cookie = new_secret()
        self._logins[cookie] = Login(token, xsrf, time.monotonic() + SESSION_SECONDS)

        while len(self._logins) > _MAX_LOGINS:
            self._logins.popitem(last=False)

        return cookie

    def _make_room(self, token: str) -> None:
        """Ends the oldest sessions of a token that has many, so that it does not end those of others."""
        own = [cookie for cookie, login in self._logins.items() if login.token == token]

        for cookie in own[: max(0, len(own) - _MAX_LOGINS_OF_TOKEN + 1)]:
            del self._logins[cookie]

    def _token_of_session(self, connection: HTTPConnection) -> str | None:
        cookie = connection.cookies.get(SESSION_COOKIE, "")
        login = self._logins.get(cookie)

        if login is None:
            return None

        if login.ends_at < time.monotonic():
            del self._logins[cookie]
            return None

        if not same_secret(connection.headers.get(_XSRF_HEADER, ""), login.xsrf):
            raise UnauthenticatedError(reason="the session's X-XSRFToken header is missing or wrong")

        return login.token


def new_secret() -> str:
    """Returns 256 random bits as text for a cookie."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def same_secret(given: str, known: str) -> bool:
    """Compares in constant time; an empty value is never the same."""
    return bool(known) and hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), known.encode("utf-8", "surrogatepass")
    )
