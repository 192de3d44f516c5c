"""Requests that bring no credential, or a wrong one, and are refused: counted by client address, to cost little.

Runs in the server process, inside the ingress. A refusal by the app passes its middleware, its router and the route,
which takes several times as long as the rest of the request; an address that was refused too often is answered before
all of that. A credential with which a request was answered lately is never refused here, whatever its address sends
besides; others of an address that floods have their turn ten times in a second.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from http import HTTPStatus

from cachetools import LRUCache
from starlette.types import Scope

from fumehood.server.responses import GONE
from fumehood.token_bucket import TokenBucket

REFUSALS_PER_SECOND = 10.0
REFUSALS_BURST = 300
_REMEMBERED_ADDRESSES = 10_000
_REMEMBERED_CREDENTIALS = 10_000
_CREDENTIALS = (b"authorization", b"x-api-key", b"x-access-token", b"e2b-traffic-access-token")
# Part of the name of each cookie that is a credential; browsers send other cookies too.
_COOKIE = b"fumehood"
# Query parameters that hold credentials: of signed addresses, and of Jupyter's clients.
_IN_QUERY = (b"signature=", b"token=")
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS, GONE})
# What a wrong credential is answered with; a right one too where its key has asked too often.
_WRONG = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS})


class AnonymousRequests:
    """The refused requests of each client address. The caller leaves out reads and requests to servers in sandboxes.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: LRUCache[str, TokenBucket] = LRUCache(_REMEMBERED_ADDRESSES)
        self._wrong: LRUCache[str, TokenBucket] = LRUCache(_REMEMBERED_ADDRESSES)
        # Digests of what was answered lately.
        self._right: LRUCache[bytes, None] = LRUCache(_REMEMBERED_CREDENTIALS)

    def retry_after_seconds(self, address: str, scope: Scope) -> float:
        """Returns how long the address is to be refused without processing the request; 0 if it is not refused.

        Args:
            address: The client address.
            scope: The request.
        """
        bucket = self._buckets.get(address)
        return bucket.missing_seconds() if bucket and _is_anonymous(scope) else 0.0

    def note(self, address: str, scope: Scope, status: int) -> None:
        """Counts an answered request if its status is a refusal for lack of a credential."""
        if status not in _REFUSALS or not _is_anonymous(scope):
            return

        bucket = self._buckets.get(address)

        if bucket is None:
            bucket = self._buckets[address] = TokenBucket(REFUSALS_BURST, REFUSALS_PER_SECOND, self._clock)

        bucket.take()

    def retry_wrong_after_seconds(self, address: str, scope: Scope) -> float:
        """Returns for how long a request with a credential is to be refused without a look at it; 0: it is not.

        Args:
            address: The client address.
            scope: The request.
        """
        bucket = self._wrong.get(address)

        if bucket is None or not (seconds := bucket.missing_seconds()):
            return 0.0

        digest = _digest(scope)
        return 0.0 if digest is None or digest in self._right else seconds

    def note_credential(self, address: str, scope: Scope, status: int) -> None:
        """Counts a request whose credential was wrong, and remembers one that was right."""
        digest = _digest(scope)

        if digest is None or (status in _WRONG and digest in self._right):
            return

        if status not in _REFUSALS:
            self._right[digest] = None
        elif status in _WRONG:
            bucket = self._wrong.get(address)

            if bucket is None:
                bucket = self._wrong[address] = TokenBucket(REFUSALS_BURST, REFUSALS_PER_SECOND, self._clock)

            bucket.take()


def _digest(scope: Scope) -> bytes | None:
    """Returns the digest of the credentials in the headers of a request; None if there are none."""
    found = [value for name, value in scope["headers"] if name in _CREDENTIALS or _is_login(name, value)]
    return hashlib.sha256(b"\0".join(found)).digest() if found else None


def _is_login(name: bytes, value: bytes) -> bool:
    return name == b"cookie" and _COOKIE in value


def _is_anonymous(scope: Scope) -> bool:
    if any(part in scope["query_string"] for part in _IN_QUERY):
        return False

    return not any(name in _CREDENTIALS or _is_login(name, value) for name, value in scope["headers"])
