"""Rate limits: wrong tokens per client address and minute, and requests per key and minute.

Runs in the server process, behind the authenticator, through which every route of every dialect goes; a refusal is an
error, which each of them answers in its own form. An address that has sent too many wrong tokens is refused before its
token is checked, unless that token was right a short while ago: other clients behind the same address are not affected.
Visitors of addresses that a key has signed have a rate of their own, and do not use up the key's own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from weakref import WeakValueDictionary

from starlette.types import Scope

from fumehood.errors import RateLimitError, UnauthenticatedError
from fumehood.log import events
from fumehood.server.principal import Principal
from fumehood.server.right_credentials import RightCredentials
from fumehood.token_bucket import TokenBucket

_MINUTE_SECONDS = 60.0
_REMEMBERED = 10_000
_LOGINS_PER_MINUTE = 10
_READINGS_PER_MINUTE = 6000
# The smallest network that is given to one customer (RFC 6177).
_IPV6_PREFIX = 64
_ADDRESS: ContextVar[str] = ContextVar("fumehood_client_address", default="")


@contextmanager
def client_of(scope: Scope) -> Iterator[None]:
    """Counts authentications within the block for the client address of a request."""
    token = _ADDRESS.set(network_of((scope.get("client") or ("",))[0]))
    try:
        yield
    finally:
        _ADDRESS.reset(token)


class RateLimits:
    """Bounds the rates of requests by key, and of wrong tokens by client address.

    Args:
        wrong_tokens_per_minute: How many wrong tokens an address may send; 0: any number.
        requests_per_minute: How many requests a key may make, and likewise the visitors of its signed addresses and the
            readers of its shares; 0: any number. Requests of the server's owner are not bounded.
        on_refusal: Called with the name of the limit for each refusal.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        *,
        wrong_tokens_per_minute: int = 0,
        requests_per_minute: int = 0,
        on_refusal: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wrong_tokens = _Buckets(wrong_tokens_per_minute, clock)
        self._requests = _Buckets(requests_per_minute, clock)
        self._visits = _Buckets(requests_per_minute, clock)
        self._logins = _Buckets(_LOGINS_PER_MINUTE, clock)
        self._readings = _Buckets(_READINGS_PER_MINUTE, clock)
        self._readings_of_key = _Buckets(requests_per_minute, clock)
        self._on_refusal = on_refusal
        self._right = RightCredentials()
        # The turns of client addresses that try a token now.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._login_turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def attempt(self, digest: bytes) -> AsyncGenerator[None, None]:
        """Holds the client address's turn to try a token, while the block checks the token.

        An address tries one token at a time, except tokens that are known to have been right: otherwise many tokens
        sent at once would all be checked before the first wrong one is counted.

        Raises:
            RateLimitError: The address has sent too many wrong tokens, and this token is not known to have been
                right.
        """
        if digest in self._right or not self._wrong_tokens.per_minute:
            yield
            return

        address = _ADDRESS.get()
        turn = self._turns.setdefault(address, asyncio.Lock())

        async with turn:
            if digest not in self._right and (seconds := self._wrong_tokens.missing_seconds(address)):
                raise self._refusal("wrong tokens from one address", self._wrong_tokens.per_minute, seconds)

            yield

    def note_wrong(self, digest: bytes) -> None:
        """Counts a wrong token of the client address."""
        self._right.discard(digest)
        self._wrong_tokens.take(_ADDRESS.get())

    def note_right(self, digest: bytes, holder: str) -> None:
        """Remembers a valid token and its key."""
        self._right.add(digest, holder)

    def count_request(self, principal: Principal) -> None:
        """Counts a request of a key.

        Raises:
            RateLimitError: The key has made too many requests.
        """
        self._count(self._requests, "requests with one key", principal)

    def count_visit(self, principal: Principal) -> None:
        """Counts a request to an address that a key has signed, by a client that does not hold the key.

        Raises:
            RateLimitError: The addresses of that key have been requested too often.
        """
        self._count(self._visits, "visits of one key", principal)

    def count_reading(self, share_id: str, principal: Principal) -> None:
        """Counts a request of a share's readers: for the share and for all shares of its key, not for the key.

        Raises:
            RateLimitError: The share, or the shares of its key together, were requested too often.
        """
        if seconds := self._readings.missing_seconds(share_id):
            raise self._refusal("requests of one share", _READINGS_PER_MINUTE, seconds)

        self._count(self._readings_of_key, "requests of the shares of one key", principal)
        self._readings.take(share_id)

    @asynccontextmanager
    async def login(self) -> AsyncGenerator[None, None]:
        """Holds the turn of the client address to log in, and counts the attempt if the block refuses it.

        An address tries one login at a time: of many at once, all would pass before the first wrong one is counted.

        Raises:
            RateLimitError: The address was refused too often.
        """
        address = _ADDRESS.get()
        turn = self._login_turns.setdefault(address, asyncio.Lock())

        async with turn:
            if seconds := self._logins.missing_seconds(address):
                raise self._refusal("wrong logins from one address", _LOGINS_PER_MINUTE, seconds)

            try:
                yield
            except UnauthenticatedError:
                self._logins.take(address)
                raise

    def _count(self, buckets: _Buckets, limit: str, principal: Principal) -> None:
        if principal.is_owner:
            return

        if seconds := buckets.missing_seconds(principal.key_id):
            raise self._refusal(limit, buckets.per_minute, seconds)

        buckets.take(principal.key_id)

    def _refusal(self, limit: str, maximum: int, seconds: float) -> RateLimitError:
        self._on_refusal(limit)
        events.RATE_LIMITED.log(limit=limit, maximum=maximum, address=_ADDRESS.get() or None)
        return RateLimitError(limit=limit, maximum=maximum, retry_after_seconds=seconds)


class _Buckets:
    """Token buckets by name; each refills in a minute, and those used last are remembered."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        # The latest last.
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def missing_seconds(self, name: str) -> float:
        """Returns how long it takes until there is a token to take; 0 when there is one."""
        bucket = self._buckets.get(name)
        return 0.0 if bucket is None else bucket.missing_seconds()

    def take(self, name: str) -> None:
        if not self.per_minute:
            return

        if name not in self._buckets:
            self._buckets[name] = TokenBucket(self.per_minute, self.per_minute / _MINUTE_SECONDS, self._clock)

        self._buckets[name].take()
        self._buckets.move_to_end(name)

        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)


def network_of(address: str) -> str:
    """Returns the unit that counts as one client: an IPv4 address, or a /64 network of IPv6."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]

    if parsed.version == 4:
        return str(parsed)

    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((int(parsed), _IPV6_PREFIX), strict=False))
