"""The credentials of one sandbox: its access token, its traffic token, and the signatures of URLs made from the former.

Tokens are HMACs of the sandbox's id under a secret of this server, so nothing is stored for a sandbox and all of them
end with it. Everything that a client sends is compared in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time

from fumehood.errors import UnauthenticatedError

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
            UnauthenticatedError: It is wrong or missing.
        """
        if not _is_same(self.access_token(sandbox_id), given):
            raise UnauthenticatedError(reason="the sandbox's access token is missing or wrong")

    def check_traffic(self, sandbox_id: str, access: str | None, traffic: str | None) -> None:
        """Checks that either token is right.

        Raises:
            UnauthenticatedError: Neither is.
        """
        if not self.opens_traffic(sandbox_id, access, traffic):
            raise UnauthenticatedError(reason="the sandbox's access or traffic token is missing or wrong")

    def opens_traffic(self, sandbox_id: str, access: str | None, traffic: str | None) -> bool:
        """Tells whether either token is right; both are compared in any case."""
        has_traffic = _is_same(self.traffic_token(sandbox_id), traffic)
        return _is_same(self.access_token(sandbox_id), access) or has_traffic

    def is_signed(self, sandbox_id: str, signed: SignedPath) -> bool:
        """Tells whether a URL was signed with the access token of this sandbox."""
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
        expiration: Until when it is valid, in seconds since 1970; empty for as long as the sandbox lives.
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
        """Returns the signature that this would have by the access token of a sandbox."""
        rest = f"{access_token}:{self.expiration}" if self.expiration else access_token
        hashed = self._begun.copy()
        hashed.update(rest.encode("utf-8", "surrogatepass"))
        return "v1_" + base64.b64encode(hashed.digest()).rstrip(b"=").decode()

    def check_form(self) -> None:
        """Checks that the signature has the form of one.

        Raises:
            UnauthenticatedError: No token makes such a one.
        """
        if not _SIGNATURE.fullmatch(self.signature):
            raise UnauthenticatedError(reason="signature has not the form of one")

    def check_time(self) -> None:
        """Checks that a signature has not expired.

        Raises:
            SignatureExpiredError: It has.
            UnauthenticatedError: The expiration is no time.
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
