"""The credentials of a sandbox, and the authenticated caller with the backend as that caller may see it.

Tokens and signatures are HMACs of the sandbox's id under a secret of this server, so nothing is stored for a sandbox
and all of them end with it. On the control plane the caller is the holder of the API key. In a sandbox it is the holder
of the sandbox's token, and acts for the key that the sandbox belongs to, within that key's limits, on that sandbox
alone; when a key is revoked or expires, the tokens of its sandboxes end too. Everything that a client sends is compared
in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from dataclasses import dataclass

from cachetools import TTLCache
from starlette.requests import Request

from fumehood.errors import KeyNotFoundError, UnauthenticatedError
from fumehood.port.backend import Backend
from fumehood.server.admission import admit_caller, those_let_in_by
from fumehood.server.principal import OWNER_ID, Principal
from fumehood.server.services import Services
from fumehood.values.sandbox import SandboxInfo

_EXPIRED = "signature is already expired"
_MAX_DIGITS = 12
_SIGNATURE = re.compile(r"v1_[A-Za-z0-9+/]{43}", re.ASCII)


class SignatureExpiredError(UnauthenticatedError):
    """A signed URL has expired; `message` is E2B's text, word for word, since its clients compare it."""

    def __init__(self) -> None:
        super().__init__(reason=_EXPIRED)
        self.message, self.hint = _EXPIRED, ""
        self.args = (_EXPIRED,)


class SandboxTokens:
    """The tokens of all sandboxes.

    Args:
        secret: The key of their HMACs.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def access_token(self, sandbox_id: str) -> str:
        """Returns the token for a sandbox's files, commands and code."""
        return self._token("access", sandbox_id)

    def traffic_token(self, sandbox_id: str) -> str:
        """Returns the token for a sandbox's ports."""
        return self._token("traffic", sandbox_id)

    def check_access(self, sandbox_id: str, given: str | None) -> None:
        """Checks the access token.

        Raises:
            UnauthenticatedError: The token is wrong or missing.
        """
        if not _is_same(self.access_token(sandbox_id), given):
            raise UnauthenticatedError(reason="the sandbox's access token is missing or wrong")

    def check_traffic(self, sandbox_id: str, access: str | None, traffic: str | None) -> None:
        """Checks that either token is right.

        Raises:
            UnauthenticatedError: Neither token is right.
        """
        if not self.opens_traffic(sandbox_id, access, traffic):
            raise UnauthenticatedError(reason="the sandbox's access or traffic token is missing or wrong")

    def opens_traffic(self, sandbox_id: str, access: str | None, traffic: str | None) -> bool:
        """Returns whether either token is right; both are compared in any case."""
        has_traffic = _is_same(self.traffic_token(sandbox_id), traffic)
        return _is_same(self.access_token(sandbox_id), access) or has_traffic

    def is_signed(self, sandbox_id: str, signed: SignedPath) -> bool:
        """Returns whether a URL was signed with the access token of this sandbox."""
        return _is_same(signed.signature_by(self.access_token(sandbox_id)), signed.signature)

    def _token(self, use: str, sandbox_id: str) -> str:
        return hmac.new(self._secret, f"{use}:{sandbox_id}".encode(), hashlib.sha256).hexdigest()


class SignedPath:
    """The fields of a signed URL.

    Args:
        path: The file, as the client wrote it.
        operation: read or write.
        user: The user, as the client wrote it.
        signature: The signature.
        expiration: When it expires, in seconds since 1970; empty if it is valid as long as the sandbox lives.
    """

    def __init__(self, path: str, operation: str, user: str, signature: str, expiration: str) -> None:
        self.path = path
        self.operation = operation
        self.user = user
        self.signature = signature
        self.expiration = expiration
        # Hashed once for any number of candidate sandboxes: unauthenticated clients can send long paths.
        self._begun = hashlib.sha256(f"{path}:{operation}:{user}:".encode("utf-8", "surrogatepass"))

    def signature_by(self, access_token: str) -> str:
        """Returns the signature that a sandbox's access token makes for this path."""
        rest = f"{access_token}:{self.expiration}" if self.expiration else access_token
        hashed = self._begun.copy()
        hashed.update(rest.encode("utf-8", "surrogatepass"))
        return "v1_" + base64.b64encode(hashed.digest()).rstrip(b"=").decode()

    def check_form(self) -> None:
        """Checks that the signature has a valid form.

        Raises:
            UnauthenticatedError: No token can make such a signature.
        """
        if not _SIGNATURE.fullmatch(self.signature):
            raise UnauthenticatedError(reason="signature has not the form of one")

    def check_time(self) -> None:
        """Checks that a signature has not expired.

        Raises:
            SignatureExpiredError: The signature has expired.
            UnauthenticatedError: The expiration is not a time.
        """
        if not self.expiration:
            return

        if (
            not self.expiration.isascii()
            or not self.expiration.isdigit()
            or len(self.expiration) > _MAX_DIGITS
        ):
            raise UnauthenticatedError(reason="signature_expiration is not a time")

        if int(self.expiration) < time.time():
            raise SignatureExpiredError


def _is_same(expected: str, given: str | None) -> bool:
    # Bytes, because text outside ASCII cannot be compared.
    return hmac.compare_digest(expected.encode(), (given or "").encode("utf-8", "surrogatepass"))


_REMEMBERED = 10_000
_FRESH_SECONDS = 2.0
_PREFIX = "e2b_"


@dataclass(frozen=True, slots=True)
class ControlCaller:
    """The authenticated caller on the control plane, and its backend."""

    principal: Principal
    backend: Backend


class E2BAuthenticator:
    """Authenticates the callers of a server.

    Args:
        services: The services of the server.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        # What programs in a sandbox ask for is recorded apart from what clients do.
        self._inside = services.spoken_by(f"{services.via} from inside")
        self._known: TTLCache[str, Principal] = TTLCache(_REMEMBERED, _FRESH_SECONDS)

    async def of_key(self, request: Request) -> ControlCaller:
        """Returns the holder of the API key of a request.

        Raises:
            UnauthenticatedError: The key is missing or not known.
            ForbiddenError: The key may not use sandboxes.
        """
        principal = await self._holder(token_of(request))
        principal.require("sandboxes")
        return ControlCaller(principal, self._services.backend_for(principal))

    async def of_owner(self, key_id: str) -> ControlCaller:
        """Returns the caller for which a volume's token, already checked, acts.

        Raises:
            UnauthenticatedError: The key is not valid any more.
            RateLimitError: The key has made too many requests.
        """
        principal = await self._principal(key_id)
        admit_caller(lambda: self._ask(key_id), holder=those_let_in_by(principal.key_id))
        self._services.rate_limits.count_request(principal)
        return ControlCaller(principal, self._services.backend_for(principal))

    async def info(self, sandbox_id: str) -> SandboxInfo:
        """Returns the description of a sandbox, without checking its owner.

        Raises:
            SandboxNotFoundError: No sandbox has this id; SandboxClosedError if one had it and has ended.
        """
        return await self._services.backend.info(sandbox_id)

    async def _holder(self, token: str | None) -> Principal:
        """Returns the holder of a token, in its own form or in that of E2B's clients."""
        # The owner's token may have E2B's form by itself.
        return await self._services.authenticator.authenticate(token, meant=read_key(token or ""))

    async def backend_of(
        self, sandbox_id: str, *, is_visit: bool = False, is_from_inside: bool = False
    ) -> Backend:
        """Returns the backend for the holder of a sandbox's token, which has been checked.

        Args:
            sandbox_id: The sandbox.
            is_visit: Whether the request is for a signed URL or a port: visitors use them without the key.
            is_from_inside: Whether a program in the sandbox makes the request; it counts as a visitor too.

        Raises:
            SandboxNotFoundError: No sandbox has this id; SandboxClosedError if one had it and has ended.
            UnauthenticatedError: The key of its owner is not valid any more.
            RateLimitError: That key, or the visitors of its sandboxes, have made too many requests.
        """
        owner = await self._services.owners.owner_of(sandbox_id)
        principal = await self._principal(owner)
        # First: a caller that asks too often has a right credential all the same.
        admit_caller(lambda: self._ask(owner), holder=those_let_in_by(principal.key_id))
        limits = self._services.rate_limits
        (limits.count_visit if is_visit or is_from_inside else limits.count_request)(principal)
        return (self._inside if is_from_inside else self._services).backend_for(principal)

    async def _principal(self, key_id: str) -> Principal:
        principal = self._known.get(key_id)

        if principal is None:
            principal = self._known[key_id] = await self._ask(key_id)

        return principal

    async def _ask(self, key_id: str) -> Principal:
        if key_id in ("", OWNER_ID):
            return Principal(key_id=OWNER_ID)

        try:
            record = await self._services.keys.get(key_id)
        except KeyNotFoundError:
            raise UnauthenticatedError(reason="the sandbox's key is gone") from None

        ends = record.policy.expires_at

        if record.revoked_at is not None or (ends is not None and ends <= time.time()):
            self._known.pop(key_id, None)
            raise UnauthenticatedError(reason="the sandbox's key has expired or was revoked")

        principal = Principal(key_id=record.id, scopes=frozenset(record.scopes), policy=record.policy)
        principal.require("sandboxes")
        return principal


def read_key(token: str) -> str | None:
    """Decodes a token written as `e2b_` and hex, the only form that some E2B clients accept; None if it is not one."""
    try:
        return bytes.fromhex(token[len(_PREFIX) :]).decode("ascii") if token.startswith(_PREFIX) else None
    except ValueError:
        return None


def token_of(request: Request) -> str | None:
    """Returns the key or token in the headers of a request, or None."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return request.headers.get("x-api-key") or (value.strip() if kind.lower() == "bearer" else None)
