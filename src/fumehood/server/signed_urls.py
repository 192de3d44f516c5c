"""Signed addresses: one method on one file of one sandbox, for a time, without a token.

A signature carries the rights of the key that requested it, and ends with that key. The secret is derived from the
server's own; addresses stay valid after a restart, and are not stored.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode

from fumehood.errors import ForbiddenError
from fumehood.server.principal import Principal
from fumehood.server.services import AppServices
from fumehood.server.state_files import derive, server_secret

_MAX_EXPIRES = 253_402_300_799


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The rights that a signature grants.

    Attributes:
        method: GET or PUT.
        sandbox_id: The sandbox.
        path: The path of the file, as the caller gave it.
        expires: When it ends, in whole seconds since 1970.
        signer: The key that requested it.
    """

    method: str
    sandbox_id: str
    path: str
    expires: int
    signer: str

    def signature(self, secret: bytes) -> str:
        """Returns the signature of this grant."""
        # Each part with its length, so that no two grants encode the same.
        parts = (self.method, self.sandbox_id, self.path, str(self.expires), self.signer)
        encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
        message = b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
        return hmac.new(secret, message, hashlib.sha256).hexdigest()

    def query(self, secret: bytes) -> str:
        """Returns the query string of the signed address, with its signature."""
        return urlencode(
            {
                "path": self.path,
                "expires": self.expires,
                "signer": self.signer,
                "signature": self.signature(secret),
            }
        )


@lru_cache(maxsize=8)
def signing_secret(state: Path) -> bytes:
    """Returns the secret with which the server of this state folder signs."""
    return derive(server_secret(state), "signed addresses")


async def principal_behind(services: AppServices, grant: Grant, signature: str) -> Principal:
    """Returns the principal on whose behalf a signed address is used.

    Raises:
        ForbiddenError: The signature is not ours or is for another request, it has expired, or its key has ended.
    """
    given = signature.encode("utf-8", "surrogatepass")

    if not hmac.compare_digest(grant.signature(signing_secret(services.state)).encode(), given):
        raise ForbiddenError(reason="the signature does not match this address")

    if not time.time() < grant.expires <= _MAX_EXPIRES:
        raise ForbiddenError(reason="the signed address has expired")

    return await services.authenticator.signer(grant.signer)
