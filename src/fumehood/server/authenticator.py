"""Tokens to principals: the server's own token, and the keys of its database.

It is the only place that sees a token, and compares by hash in constant time. No token, however odd, makes it raise
anything but UnauthenticatedError.
"""

from __future__ import annotations

import hmac
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from fumehood.errors import ForbiddenError, InvalidArgumentError, KeyNotFoundError, UnauthenticatedError
from fumehood.log import events
from fumehood.log.request_ids import note_key
from fumehood.server.admission import admit_caller, those_let_in_by
from fumehood.server.principal import OWNER_ID, Principal
from fumehood.server.rate_limits import RateLimits
from fumehood.server.state_files import make_once
from fumehood.storage.keys import KeyRecord, Keys, token_digest

_MAX_TOKEN_CHARACTERS = 512
_TOKEN_FILE = "token"  # noqa: S105 - a file's name
_TOKEN_BYTES = 32


class Authenticator(ABC):
    """Maps tokens to principals."""

    @abstractmethod
    async def authenticate(self, token: str | None, *, meant: str | None = None) -> Principal:
        """Returns the principal that holds this token.

        Args:
            token: The token from the client.
            meant: The server's token that `token` encodes, for dialects whose tokens have another form.

        Raises:
            UnauthenticatedError: The token is missing or not known.
            RateLimitError: The client address has sent too many wrong tokens, or the key too many requests.
        """

    @abstractmethod
    async def look(self, token: str | None, *, meant: str | None = None) -> Principal:
        """Returns the principal of a token that was accepted before; counts as neither a use nor a request.

        Args:
            token: The token from the client.
            meant: The server's token that `token` encodes.

        Raises:
            UnauthenticatedError: The token is no longer valid.
        """

    @abstractmethod
    async def signer(self, key_id: str) -> Principal:
        """Returns the holder of the key with which something was signed.

        Raises:
            ForbiddenError: The key has ended.
            RateLimitError: The addresses signed by the key were requested too often.
        """


class TokenAuthenticator(Authenticator):
    """Maps the tokens of a server to principals.

    Args:
        owner_token: The server's own token.
        keys: The keys of its database.
        limits: Bounds wrong tokens by address, and requests by key.
    """

    def __init__(self, owner_token: str, keys: Keys, limits: RateLimits) -> None:
        self._owner_digest = token_digest(owner_token)
        self._keys = keys
        self._limits = limits

    async def authenticate(self, token: str | None, *, meant: str | None = None) -> Principal:
        """Returns the principal that holds the token, counts the request, and logs the use or the refusal."""
        try:
            principal = await self._holder(token, meant)
        except UnauthenticatedError as error:
            events.KEY_REFUSED.log(reason=error.log_reason)
            raise

        admit_caller(lambda: self.look(token, meant=meant), holder=principal.key_id)
        note_key(principal.key_id)
        self._limits.count_request(principal)
        events.KEY_USED.log(key_id=principal.key_id)
        return principal

    async def look(self, token: str | None, *, meant: str | None = None) -> Principal:
        """Returns the principal of a token that was accepted before; neither counted as a request nor logged."""
        for candidate in (token, meant):
            principal = await self._found(candidate, is_use=False)

            if principal is not None:
                return principal

        raise UnauthenticatedError(reason="the token has expired or was revoked")

    async def _holder(self, token: str | None, meant: str | None) -> Principal:
        if not token:
            raise UnauthenticatedError(reason="no token was sent")

        if len(token) > _MAX_TOKEN_CHARACTERS:
            raise UnauthenticatedError(reason="the token is too long")

        digest = token_digest(token)

        async with self._limits.attempt(digest):
            for candidate in (token, meant):
                principal = await self._found(candidate)

                if principal is not None:
                    self._limits.note_right(digest, principal.key_id)
                    return principal

            self._limits.note_wrong(digest)
            raise UnauthenticatedError(reason="the token is not known, has expired or was revoked")

    async def _found(self, token: str | None, *, is_use: bool = True) -> Principal | None:
        if token is None:
            return None

        if hmac.compare_digest(token_digest(token), self._owner_digest):
            return Principal(key_id=OWNER_ID)

        record = await self._keys.verify(token, is_use=is_use)

        if record is None:
            return None

        return _principal(record)

    async def digest_of(self, key_id: str) -> bytes | None:
        """Returns the digest of the token that a principal has now; None when its key has ended."""
        return self._owner_digest if key_id == OWNER_ID else await self._keys.token_hash(key_id)

    async def holder(
        self, key_id: str, fits: Callable[[bytes], bool], *, is_use: bool = True
    ) -> Principal | None:
        """Returns a principal by its id while the digest of its present token `fits`, for logins made with that token.

        Args:
            key_id: The id of the principal.
            fits: Returns whether a digest is the digest of the token.
            is_use: Whether this counts as a use of the key and as one of its requests.

        Raises:
            RateLimitError: The key has made too many requests.
        """
        note_key(key_id)

        if key_id == OWNER_ID:
            principal = Principal(key_id=OWNER_ID) if fits(self._owner_digest) else None
        else:
            record = await self._keys.holder(key_id, fits, is_use=is_use)
            principal = None if record is None else _principal(record)

        if principal is not None and is_use:
            admit_caller(holder=key_id)
            self._limits.count_request(principal)

        return principal

    async def signer(self, key_id: str) -> Principal:
        """Returns the holder of a key that signed an address, and counts the visit."""
        note_key(key_id)
        principal = await self._living(key_id)
        # First: a caller that asks too often has a right credential all the same.
        admit_caller(lambda: self._living(key_id), holder=those_let_in_by(key_id))
        self._limits.count_visit(principal)
        return principal

    async def _living(self, key_id: str) -> Principal:
        if key_id == OWNER_ID:
            return Principal(key_id=OWNER_ID)

        try:
            record = await self._keys.get(key_id)
        except KeyNotFoundError:
            raise _ended(key_id) from None

        expires_at = record.policy.expires_at

        if record.revoked_at is not None or (expires_at is not None and expires_at <= time.time()):
            raise _ended(key_id)

        return _principal(record)


def _principal(record: KeyRecord) -> Principal:
    return Principal(
        key_id=record.id, scopes=frozenset(record.scopes), policy=record.policy, watched=record.made_by
    )


def _ended(key_id: str) -> ForbiddenError:
    error = ForbiddenError(reason="the key that signed the address has ended")
    events.KEY_REFUSED.log(key_id=key_id, reason=error.log_reason)
    return error


def owner_token(state: Path, given: str) -> tuple[str, Path | None]:
    """Returns the server's own token, made now if there is none, and the file that contains it, if there is one.

    Raises:
        InvalidArgumentError: The file can be read by other users, or contains no token.
    """
    if given:
        return given, None

    path = state / _TOKEN_FILE

    make_once(path, f"fh_{secrets.token_urlsafe(_TOKEN_BYTES)}\n".encode("ascii"))
    return _read_token(path), path


def _read_token(path: Path) -> str:
    mode = path.stat().st_mode & 0o777

    if mode & 0o077:
        raise InvalidArgumentError(
            field="token file",
            value=f"{path} (mode {mode:o})",
            allowed="a file that no other user can read: `chmod 600`",
        )

    token = path.read_text(encoding="utf-8", errors="replace").strip()

    if len(token) < 16 or not token.isascii():
        raise InvalidArgumentError(
            field="token file",
            value=str(path),
            allowed="one line of 16 or more ASCII characters; remove it for a new one",
        )

    return token
