"""Authentication: the token where Jupyter's clients put it, or the session of a login with it as the password.

A token in the address is removed before anything can log it. A session is a cookie for a token that is kept
here, in memory; it is accepted only together with the `X-XSRFToken` header of its login, which no page of another site
can know or send, and which even a page of this site cannot read. There is no login page: browsers reach notebooks
through a Jupyter server of their own.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

from cachetools import TTLCache
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fumehood.dialects.jupyter.answers import answering
from fumehood.errors import ForbiddenError, InvalidArgumentError, UnauthenticatedError
from fumehood.server.auth import take_token_from_query
from fumehood.server.authenticator import Authenticator
from fumehood.server.json_bodies import bounded_body
from fumehood.server.logins import is_https
from fumehood.server.principal import Principal
from fumehood.server.services import services_of

SESSION_COOKIE = "fumehood-jupyter"
XSRF_COOKIE = "_xsrf"
SESSION_SECONDS = 12 * 3600
_XSRF_HEADER = "x-xsrftoken"
_MAX_LOGINS = 10_000
_MAX_LOGINS_OF_TOKEN = 100
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class JupyterLogin:
    """A session: its token, and the XSRF secret that its requests must repeat."""

    token: str
    xsrf: str


class JupyterAuthenticator:
    """Authenticates the callers of this dialect.

    Args:
        authenticator: Maps tokens to principals.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._logins: TTLCache[str, JupyterLogin] = TTLCache(_MAX_LOGINS, SESSION_SECONDS)

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
        self._logins[cookie] = JupyterLogin(token, xsrf)
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

        if not same_secret(connection.headers.get(_XSRF_HEADER, ""), login.xsrf):
            raise UnauthenticatedError(reason="the session's X-XSRFToken header is missing or wrong")

        return login.token


def new_secret() -> str:
    """Returns 256 random bits as text for a cookie."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def same_secret(given: str, known: str) -> bool:
    """Compares in constant time; an empty value equals nothing."""
    return bool(known) and hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), known.encode("utf-8", "surrogatepass")
    )


_MAX_FORM_BYTES = 8192
_MAX_FIELDS = 8
_FORM_SECONDS = 10.0
_TEXT = (
    "This is fumehood, which speaks the API of a Jupyter server.\n"
    "Clients send the token as `Authorization: token TOKEN`, or post it here as `password` with `_xsrf`.\n"
    "For notebooks in a browser: jupyter lab --gateway-url=ADDRESS --GatewayClient.auth_token=TOKEN\n"
)


class LoginRoutes:
    """Answers `/login`.

    Args:
        callers: Holds the sessions.
    """

    def __init__(self, callers: JupyterAuthenticator) -> None:
        self._callers = callers

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            Route("/login", answering(self._begin), methods=["GET"]),
            Route("/login", answering(self._log_in), methods=["POST"]),
        ]

    async def _begin(self, request: Request) -> Response:
        response = PlainTextResponse(_TEXT, headers={"Cache-Control": "no-store"})
        _set_cookie(request, response, XSRF_COOKIE, new_secret())
        return response

    async def _log_in(self, request: Request) -> Response:
        xsrf = request.cookies.get(XSRF_COOKIE, "")

        if not xsrf:
            # The body is not read: without the cookie no form is valid.
            raise _without_xsrf()

        # The caller is not authenticated yet, and may not hold a request open.
        try:
            async with asyncio.timeout(_FORM_SECONDS):
                form = _read_form(await bounded_body(request, _MAX_FORM_BYTES))
        except TimeoutError:
            return Response(status_code=408, headers={"Connection": "close"})

        if not same_secret(form.get("_xsrf", [""])[0], xsrf):
            raise _without_xsrf()

        cookie = await self._callers.log_in(form.get("password", [""])[0], xsrf)
        response = Response(status_code=302, headers={"Location": "/api", "Cache-Control": "no-store"})
        _set_cookie(request, response, SESSION_COOKIE, cookie)
        return response


def _without_xsrf() -> ForbiddenError:
    return ForbiddenError(reason="its `_xsrf` is not that of the cookie; GET /login gives both")


def _read_form(body: bytes) -> Mapping[str, Sequence[str]]:
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise InvalidArgumentError(
            field="form", value=f"{len(body)} bytes", allowed=f"at most {_MAX_FIELDS} fields"
        ) from None


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    response.set_cookie(
        name,
        value,
        max_age=SESSION_SECONDS,
        secure=is_https(services_of(request).settings, request),
        httponly=True,
        samesite="strict",
    )
