"""Requests that bring no credential and are refused: counted by client address, so that a flood of them costs little.

Runs in the server process, inside the ingress. A refusal by the app passes its middleware, its router and the route,
which takes several times as long as the rest of the request; an address that was refused too often is answered before
all of that. Requests with a credential are never refused here.
"""

from __future__ import annotations

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
_CREDENTIALS = (b"authorization", b"x-api-key", b"x-access-token", b"e2b-traffic-access-token")
# Part of the name of each cookie that is a credential; browsers send other cookies too.
_COOKIE = b"fumehood"
# Query parameters that hold credentials: of signed addresses, and of Jupyter's clients.
_IN_QUERY = (b"signature=", b"token=")
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS, GONE})


class AnonymousRequests:
    """The refused requests of each client address. The caller leaves out reads and requests to servers in sandboxes.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: LRUCache[str, TokenBucket] = LRUCache(_REMEMBERED_ADDRESSES)

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


def _is_anonymous(scope: Scope) -> bool:
    if any(part in scope["query_string"] for part in _IN_QUERY):
        return False

    return not any(
        name in _CREDENTIALS or (name == b"cookie" and _COOKIE in value) for name, value in scope["headers"]
    )
