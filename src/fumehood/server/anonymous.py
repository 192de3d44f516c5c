"""Refused requests without a credential, or with a wrong one: counted by client address, to cost little.

Runs in the server process, inside the ingress. A refusal by the app passes its middleware, its router and the route,
which takes several times as long as the rest of the request; an address that was refused too often is answered before
all of that. A credential is right or wrong by whether it admitted its caller, not by the status of the answer: routes
that look at no credential show nothing about one. A credential that was right at its last check is never refused
here, whatever else its address sends; other credentials of an address that floods are checked ten times a second.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

from cachetools import LRUCache
from starlette.types import Scope

from fumehood.server.admission import CallerCheck
from fumehood.server.responses import GONE
from fumehood.server.right_credentials import RightCredentials
from fumehood.token_bucket import TokenBucket

REFUSALS_PER_SECOND = 10.0
REFUSALS_BURST = 300
_REMEMBERED_ADDRESSES = 10_000
_CREDENTIALS = (b"authorization", b"x-api-key", b"x-access-token", b"e2b-traffic-access-token")
# Part of the name of each cookie that is a credential; browsers send other cookies too.
_COOKIE = b"fumehood"
# Query parameters that hold credentials: of signed addresses, and of Jupyter's clients.
_IN_QUERY = (b"signature", b"token")
# A name may be escaped. More names than so many are escaped by no client of ours.
_PAIRS = re.compile(rb"(?:\A|&)(signature|token|[^=&%]{0,9}%[^=&]{1,26})=([^&]*)")
_MOST_PAIRS = 16
# Tokens of pages that open a WebSocket.
_PROTOCOLS = b"sec-websocket-protocol"
_IN_PROTOCOLS = b"fumehood.token."
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS, GONE})
# What the look at a credential is answered with; the others come before it, or after the client has gone.
_VERDICTS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class AnonymousRequests:
    """Bounds the refused requests of each client address: beyond it, most are refused without being examined.

    Requests to servers in sandboxes are not counted: the ingress leaves them out.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._without: LRUCache[str, TokenBucket] = LRUCache(_REMEMBERED_ADDRESSES)
        self._wrong: LRUCache[str, TokenBucket] = LRUCache(_REMEMBERED_ADDRESSES)
        self._right = RightCredentials()

    def retry_after_seconds(self, address: str, credential: bytes | None) -> float:
        """Returns how long requests of this kind are refused without being examined, in seconds; 0 if they are not.

        Args:
            address: The client address.
            credential: The result of `credential_of` for it.
        """
        bucket = (self._without if credential is None else self._wrong).get(address)

        if bucket is None or credential in self._right:
            return 0.0

        return bucket.missing_seconds()

    def note(self, address: str, credential: bytes | None, status: int, admission: CallerCheck) -> None:
        """Counts an answered request that was refused, and remembers a credential that was right.

        Args:
            address: The client address.
            credential: What `credential_of` returned for the request.
            status: The status of the answer; a status that is no refusal came from a route without authentication,
                unless the admission says that the credential was refused.
            admission: Whether the caller was authenticated, or refused.
        """
        if admission.is_authenticated:
            if credential is not None:
                self._right.add(credential, admission.holder)

            return

        if admission.is_refused:
            status = HTTPStatus.UNAUTHORIZED

        if status not in _REFUSALS:
            return

        if credential is not None and credential in self._right:
            if status not in _VERDICTS:
                return

            # It was right until it was revoked.
            self._right.discard(credential)

        buckets = self._without if credential is None else self._wrong
        bucket = buckets.get(address)

        if bucket is None:
            bucket = buckets[address] = TokenBucket(REFUSALS_BURST, REFUSALS_PER_SECOND, self._clock)

        bucket.take()


def credential_of(scope: Scope) -> bytes | None:
    """Returns the digest of all credentials in the headers and address of a request; None if there are none.

    Call it before the app sees the request: the app removes a token from the address.
    """
    found = [value for name, value in scope["headers"] if name in _CREDENTIALS or _is_secret(name, value)]
    found.extend(_in_query(scope.get("query_string", b"")))
    return hashlib.sha256(b"\0".join(found)).digest() if found else None


def _in_query(query: bytes) -> list[bytes]:
    """Returns the credentials in a query, at a bounded cost: it may be long, and is read before anything is checked."""
    pairs = list(itertools.islice(_PAIRS.finditer(query), _MOST_PAIRS + 1))

    if len(pairs) > _MOST_PAIRS:
        return [query]

    return [unquote_to_bytes(pair[2]) for pair in pairs if unquote_to_bytes(pair[1]) in _IN_QUERY]


def _is_secret(name: bytes, value: bytes) -> bool:
    return (name == b"cookie" and _COOKIE in value) or (name == _PROTOCOLS and _IN_PROTOCOLS in value)
