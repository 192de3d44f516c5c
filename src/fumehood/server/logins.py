"""Logins of the console: the cookie of a browser, the few requests that it authenticates, and codes that begin a login.

Guests serve pages on the same site, whose requests carry the cookie in spite of `SameSite`, and which can set a cookie
of that name that we receive. So a cookie is accepted only on our own routes that ask for it, together with a header
that no simple request can carry, if no header indicates another origin, and if the request has the cookie only once
(decision 42). WebSockets can carry no header: they need an `Origin` that is exactly ours.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import Response

from fumehood.errors import UnauthenticatedError
from fumehood.log import events
from fumehood.server.admission import admit_caller
from fumehood.server.authenticator import TokenAuthenticator
from fumehood.server.principal import Principal
from fumehood.server.server_audit import ServerAudit
from fumehood.server.settings import ServerSettings
from fumehood.storage.keys import token_digest
from fumehood.storage.logins import LONGEST_SECONDS, Login, Logins

HEADER = "x-fumehood-console"
CODE_SECONDS = 600.0
_HEADER_VALUE = "1"
# A browser takes the first only over https, with `Secure` and for our host alone: nothing else can plant it.
_SECURE_COOKIE, _PLAIN_COOKIE = "__Host-fumehood", "fumehood-console"
_CODE_BYTES = 24
_MAX_CODES_OF_KEY = 20
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class _Code:
    key_id: str
    token_digest: bytes
    expires_at: float
    # What made the code: a login, whose end the new login inherits, or a token.
    by: Login | None


class LoginCodes:
    """Codes that begin a login once, within ten minutes; they are kept in memory.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._codes: dict[bytes, _Code] = {}

    def make(self, key_id: str, token_digest: bytes, by: Login | None = None) -> tuple[str, float]:
        """Returns a new code and its end; if a key has too many codes, the oldest ends."""
        now = self._clock()
        self._codes = {name: code for name, code in self._codes.items() if code.expires_at > now}
        own = [name for name, code in self._codes.items() if code.key_id == key_id]

        for name in own[: max(0, len(own) + 1 - _MAX_CODES_OF_KEY)]:
            del self._codes[name]

        code = secrets.token_urlsafe(_CODE_BYTES)
        self._codes[_hash(code)] = _Code(key_id, token_digest, now + CODE_SECONDS, by)
        return code, now + CODE_SECONDS

    def end(self, key_id: str, login_id: str | None = None) -> None:
        """Ends the codes that one login of a key has made, or all codes of the key."""

        def is_ended(code: _Code) -> bool:
            made_by = None if code.by is None else code.by.id
            return code.key_id == key_id and login_id in (None, made_by)

        self._codes = {name: code for name, code in self._codes.items() if not is_ended(code)}

    def take(self, code: str) -> _Code | None:
        """Returns the key and token that a code was made for, and ends the code; None if it is unknown or expired."""
        found = self._codes.pop(_hash(code), None)
        return found if found is not None and found.expires_at > self._clock() else None


class ConsoleLogins:
    """The logins of a server, as its routes use them.

    Args:
        logins: Stores them.
        authenticator: Knows the tokens with which the logins were made.
        settings: The settings of the server, for the addresses by which it is reached.
    """

    def __init__(
        self, logins: Logins, authenticator: TokenAuthenticator, settings: ServerSettings, audit: ServerAudit
    ) -> None:
        self.stored = logins
        self._authenticator = authenticator
        self._settings = settings
        self._audit = audit
        self._codes = LoginCodes()

    async def principal_of(
        self, connection: HTTPConnection, *, is_use: bool = True
    ) -> tuple[Principal, Login] | None:
        """Returns the caller and its login by the cookie of a request; None for a request without one.

        Args:
            connection: The request.
            is_use: Whether this counts as a use of the login and as a request of its key.

        Raises:
            UnauthenticatedError: The cookie does not authenticate this request, or its login has ended.
        """
        cookies = self._cookies(connection)

        if not cookies:
            return None

        self.check_page(connection)

        if len(cookies) > 1:
            raise _refused("the cookie of the login came twice, and one of the two is not ours: log in again")

        found = await self.stored.find(cookies[0], is_use=is_use)
        principal = None

        if found is not None:
            principal = await self._authenticator.holder(found.login.key_id, found.fits, is_use=is_use)

        if found is None or principal is None:
            raise _refused("the login has ended: log in again")

        if is_use:
            admit_caller(partial(self._look, connection))

        return principal, found.login

    async def _look(self, connection: HTTPConnection) -> Principal:
        found = await self.principal_of(connection, is_use=False)
        assert found is not None, "a request keeps its cookie"
        return found[0]

    def check_page(self, connection: HTTPConnection) -> None:
        """Raises UnauthenticatedError unless only a page of this server can have sent the request."""
        headers = connection.headers
        origins = headers.getlist("origin")
        own = self._own_origins(connection)

        if connection.scope["type"] == "websocket":
            if len(origins) != 1 or _origin(origins[0]) not in own:
                raise _refused("a login opens a WebSocket only for a page of this server's own origin")

            return

        if headers.getlist(HEADER) != [_HEADER_VALUE]:
            raise _refused(f"a login counts only with the header `{HEADER}: {_HEADER_VALUE}`")

        sites = headers.getlist("sec-fetch-site")

        if any(_origin(origin) not in own for origin in origins) or any(
            site != "same-origin" for site in sites
        ):
            raise _refused("a login counts only for pages of this server's own origin (see `public_url`)")

    async def begin(
        self, key_id: str, digest: bytes, connection: HTTPConnection, means: str, ends_at: float | None = None
    ) -> str:
        """Begins a login for the holder of a token, and returns its cookie.

        Args:
            key_id: Its key.
            digest: The digest of the token.
            connection: The request.
            means: How the holder has authenticated itself: token or code.
            ends_at: When the login ends at the latest, in seconds since 1970; None: after the longest time.

        Raises:
            UnauthenticatedError: The key has another token now.
        """
        # After a rotation the old token is valid for a while, but begins no login, which would outlive it.
        if await self._authenticator.digest_of(key_id) != digest:
            raise _refused("the token was replaced by a new one")

        user_agent = connection.headers.get("user-agent", "")
        login, cookie = await self.stored.begin(key_id, digest, user_agent, ends_at)
        events.LOGIN_BEGUN.log(key_id=key_id, login_id=login.id, means=means)
        self._audit.note("login_begun", key_id=key_id, login_id=login.id, means=means)
        return cookie

    async def begin_with_token(self, token: str, connection: HTTPConnection) -> str:
        """Begins a login with a token, and returns its cookie.

        Raises:
            UnauthenticatedError: The token is not known.
        """
        principal = await self._authenticator.authenticate(token)
        return await self.begin(principal.key_id, token_digest(token), connection, "token")

    async def begin_with_code(self, code: str, connection: HTTPConnection) -> str:
        """Begins a login with a code, which can be used only once, and returns its cookie.

        Raises:
            UnauthenticatedError: The code is not known, was used, or is too old.
        """
        found = self._codes.take(code)

        if found is None:
            raise _refused("the code is not known, was used already, or is older than ten minutes")

        # A login that was begun with a code ends no later than the login that made the code.
        ends_at = None if found.by is None else found.by.ends_at
        return await self.begin(found.key_id, found.token_digest, connection, "code", ends_at)

    async def end(self, key_id: str, login_id: str | None = None) -> int:
        """Ends a login of a key, or all of them, with the codes that they have made; returns how many logins."""
        self._codes.end(key_id, login_id)
        return await self.stored.end(key_id, login_id)

    async def new_code(self, key_id: str, by: Login | None = None) -> tuple[str, float]:
        """Returns a code that begins a login for a principal, and its end in seconds since 1970.

        Args:
            key_id: The principal.
            by: The login that requests the code; None if a token does.

        Raises:
            UnauthenticatedError: The key has ended.
        """
        digest = await self._authenticator.digest_of(key_id)

        if digest is None:
            raise _refused("the key has ended")

        return self._codes.make(key_id, digest, by)

    def set_cookie(self, connection: HTTPConnection, response: Response, cookie: str) -> None:
        """Gives the browser the cookie of its login; an empty value deletes the cookie."""
        is_secure = is_https(self._settings, connection)
        response.set_cookie(
            _SECURE_COOKIE if is_secure else _PLAIN_COOKIE,
            cookie,
            max_age=int(LONGEST_SECONDS) if cookie else 0,
            path="/",
            secure=is_secure,
            httponly=True,
            samesite="strict",
        )

    def _cookies(self, connection: HTTPConnection) -> list[str]:
        """Returns every value of our cookie in a request: usual parsers keep only one of several."""
        name = _SECURE_COOKIE if is_https(self._settings, connection) else _PLAIN_COOKIE
        pairs = [
            pair.strip().partition("=")
            for header in connection.headers.getlist("cookie")
            for pair in header.split(";")
        ]
        return [value.strip() for found, _, value in pairs if found.strip() == name]

    def _own_origins(self, connection: HTTPConnection) -> set[str | None]:
        scheme = "https" if connection.url.scheme in ("https", "wss") else "http"
        own = {
            _origin(f"{scheme}://{connection.headers.get('host', '')}"),
            _origin(self._settings.public_url),
        }
        return own - {None}


def is_https(settings: ServerSettings, connection: HTTPConnection) -> bool:
    """Returns whether a browser reaches this server by https.

    Behind a proxy that ends TLS, `public_url` determines it.
    """
    return settings.public_url.lower().startswith("https://") or connection.url.scheme in ("https", "wss")


def _origin(address: str) -> str | None:
    """Returns the origin of an address in one form, or None if it has none, as for `null`."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return None

    if parts.scheme not in _PORTS or not parts.hostname:
        return None

    return f"{parts.scheme}://{parts.hostname}:{port or _PORTS[parts.scheme]}"


def _hash(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


def _refused(reason: str) -> UnauthenticatedError:
    error = UnauthenticatedError(reason=reason)
    events.KEY_REFUSED.log(reason=error.log_reason)
    return error
