"""Shares of a server: made by the key of a sandbox, opened with their address, and ended within two seconds.

A share's token is accepted only on the routes of that share: no other route, dialect or WebSocket accepts it. A share
ends when its time is over, when its key ends, when it is revoked, and when the setting switches shares off (decision
48).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cachetools import LRUCache
from starlette.requests import HTTPConnection

from fumehood.errors import ForbiddenError, FumehoodError, OverloadedError, UnauthenticatedError
from fumehood.log import events
from fumehood.server.admission import Checks, admit_caller, those_let_in_by
from fumehood.server.authenticator import TokenAuthenticator
from fumehood.server.principal import Principal
from fumehood.server.rate_limits import RateLimits
from fumehood.storage.keys import token_digest
from fumehood.storage.shares import ShareStore, StoredShare

MAX_READERS = 50
# Of files, and apart from them of large answers, so many are sent at once, and no longer than this.
MAX_TRANSFERS_OF_SHARE = 4
MAX_TRANSFERS = 16
FILE_SECONDS = 120.0
ANSWER_SECONDS = 30.0
_CHECK_SECONDS = 1.0
_REMEMBERED_ENDS = 10_000
_RETRY_SECONDS = 5.0
_MAX_TOKEN_CHARACTERS = 200
_ENDED = "the share has ended, was revoked, or never was"


class ReaderSlots:
    """Bounds how many answers are sent to readers at once: for each share, and for all.

    Args:
        what: A plural noun for the data that is sent.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, share_id: str) -> Iterator[None]:
        """Takes a place of a share, while the block runs.

        Raises:
            OverloadedError: All places are taken, of this share or of all shares.
        """
        if self._taken[share_id] >= MAX_TRANSFERS_OF_SHARE:
            reason = f"{MAX_TRANSFERS_OF_SHARE} {self._what} of this share are read already"
        elif self._taken.total() >= MAX_TRANSFERS:
            reason = f"{MAX_TRANSFERS} {self._what} of shares are read already"
        else:
            reason = ""

        if reason:
            raise OverloadedError(reason=reason, retry_after_seconds=_RETRY_SECONDS)

        self._taken[share_id] += 1

        try:
            yield
        finally:
            self._taken -= Counter({share_id: 1})


class SandboxShares:
    """The shares of a server, as its routes use them.

    Args:
        stored: The shares in the database.
        authenticator: Knows the keys that made the shares.
        limits: Bounds wrong tokens per address, and requests per share.
        is_on: Whether shares are enabled at this server.

    Attributes:
        readers: The present number of followers of each share, by its id.
        ends: The end position of the record of each share that is not live.
        files: The places for contents of files.
        answers: The places for large answers, separate, so that readers of files do not block those of the record.
    """

    def __init__(
        self, stored: ShareStore, authenticator: TokenAuthenticator, limits: RateLimits, *, is_on: bool
    ) -> None:
        self.stored = stored
        self.is_on = is_on
        self.readers: Counter[str] = Counter()
        self.ends: LRUCache[str, int] = LRUCache(_REMEMBERED_ENDS)
        self.files = ReaderSlots("files")
        self.answers = ReaderSlots("large answers")
        self._authenticator = authenticator
        self._limits = limits
        self._changed = asyncio.Event()

    def require_on(self) -> None:
        """Raises ForbiddenError if shares are disabled."""
        if not self.is_on:
            raise ForbiddenError(reason="this server has no shares (its setting `shares`)")

    async def open(self, share_id: str, secret: str) -> tuple[StoredShare, str]:
        """Returns the share that a secret opens, and its token.

        Raises:
            UnauthenticatedError: The secret opens no share, or the share has ended.
        """
        self.require_on()
        found = await self.stored.open(share_id, secret)

        if found is None:
            raise _refused()

        await self.key_of(found[0])
        events.SHARE_OPENED.log(
            share_id=share_id, sandbox_id=found[0].sandbox_id, openings=found[0].openings + 1
        )
        return found

    async def end(self, share_id: str, key_id: str | None) -> int:
        """Ends a share, of that key if one is named; its readers notice at once."""
        count = await self.stored.end(share_id, key_id)
        self._changed.set()
        self._changed = asyncio.Event()
        return count

    async def end_those_of(self, key_id: str) -> None:
        """Ends all shares that a key has made; their readers notice at once."""
        for share in await self.stored.list(key_id):
            await self.end(share.id, key_id)

    async def reader_of(self, share_id: str, token: str | None) -> tuple[StoredShare, Principal]:
        """Returns the share of a request by its token, and the key that made it; counts the request.

        Raises:
            UnauthenticatedError: The token is not this share's, or the share has ended.
            RateLimitError: The share was requested too often, or the address has sent too many wrong tokens.
        """
        self.require_on()

        if not token or len(token) > _MAX_TOKEN_CHARACTERS:
            raise _refused("no token of a share was sent")

        digest = token_digest(token)

        async with self._limits.attempt(digest):
            try:
                share, principal = await self.look(share_id, token)
            except UnauthenticatedError as error:
                self._limits.note_wrong(digest)
                events.KEY_REFUSED.log(reason=error.log_reason)
                raise

            readers = those_let_in_by(principal.key_id)
            self._limits.note_right(digest, readers)

        admit_caller(lambda: self._principal_of(share_id, token), holder=readers)
        self._limits.count_reading(share.id, principal)
        return share, principal

    async def _principal_of(self, share_id: str, token: str) -> Principal:
        return (await self.look(share_id, token))[1]

    async def look(self, share_id: str, token: str) -> tuple[StoredShare, Principal]:
        """Returns what `reader_of` does, without counting a request.

        Raises:
            UnauthenticatedError: The token is not this share's, or the share has ended.
            ForbiddenError: The key may no longer use sandboxes.
        """
        share = await self.stored.find(token)

        if share is None or share.id != share_id:
            raise _refused()

        return share, await self.key_of(share)

    @contextmanager
    def reading(self, share_id: str) -> Iterator[None]:
        """Counts a follower of a share, while the block runs.

        Raises:
            OverloadedError: The share has the maximum number of followers.
        """
        if self.readers[share_id] >= MAX_READERS:
            raise OverloadedError(
                reason=f"{MAX_READERS} follow this share already", retry_after_seconds=_RETRY_SECONDS
            )

        self.readers[share_id] += 1

        try:
            yield
        finally:
            self.readers -= Counter({share_id: 1})

    async def until_over(self, share_id: str, token: str, seconds: float) -> str:
        """Waits until a transfer must be broken off.

        Returns the reason: its share has ended, or it has taken longer than `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                return (await self.until_refused(share_id, token)).message
        except TimeoutError:
            return f"a reader of a share took longer than {seconds:g} s for one answer"

    async def until_refused(self, share_id: str, token: str) -> FumehoodError:
        """Waits until the reader of a share may no longer read it; returns the error within a second of that."""
        checks = Checks(lambda: self.look(share_id, token))

        while True:
            changed = self._changed

            if (error := await checks.refusal()) is not None:
                return error

            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await changed.wait()
            except TimeoutError:
                continue

    async def key_of(self, share: StoredShare) -> Principal:
        """Returns the key that made a share.

        Raises:
            UnauthenticatedError: The key has ended.
            ForbiddenError: The key may no longer use sandboxes.
        """
        principal = await self._authenticator.holder(share.key_id, lambda _: True, is_use=False)

        if principal is None:
            raise _refused("the key that made the share has ended")

        principal.require("sandboxes")
        return principal


def share_token_of(connection: HTTPConnection) -> str | None:
    """Returns the share token of a request, which is accepted in `Authorization: Bearer` only."""
    kind, _, value = connection.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else None


def _refused(reason: str = _ENDED) -> UnauthenticatedError:
    return UnauthenticatedError(reason=reason)
