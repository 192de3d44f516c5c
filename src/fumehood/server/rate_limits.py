"""How often one client address may be wrong about a token, and how many requests a key may make in a minute.

Runs in the server process, behind the authenticator, through which every route of every dialect goes; a refusal is an
error, which each of them answers in its own form. An address that has been wrong too often is refused without a look
at its token, except where that token was right a short while ago: others behind the same address go on.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.types import Scope

from fumehood.errors import RateLimitError
from fumehood.log import events
from fumehood.server.principal import Principal
from fumehood.token_bucket import TokenBucket

_MINUTE_SECONDS = 60.0
_REMEMBERED = 10_000
# The smallest network that is given to one customer (RFC 6177).
_IPV6_PREFIX = 64
_ADDRESS: ContextVar[str] = ContextVar("fumehood_client_address", default="")


@contextmanager
def client_of(scope: Scope) -> Iterator[None]:
    """Counts what the block authenticates for the client address of a request."""
    token = _ADDRESS.set(_network_of((scope.get("client") or ("",))[0]))
    try:
        yield
    finally:
        _ADDRESS.reset(token)


class RateLimits:
    """The rates of one server.

    Args:
        wrong_tokens_per_minute: How many wrong tokens an address may send; 0: any number.
        requests_per_minute: How many requests a key may make; 0: any number. The owner's token is not bounded.
        on_refusal: Called with the name of the limit for each refusal.
        clock: Gives seconds.
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
        self._on_refusal = on_refusal
        # Digests of tokens that were right, the latest last.
        self._right: OrderedDict[bytes, None] = OrderedDict()

    def check_attempt(self, digest: bytes) -> None:
        """Checks that the client address may try a token.

        Raises:
            RateLimitError: It has sent too many wrong ones, and this one is not known to have been right.
        """
        address = _ADDRESS.get()

        if digest not in self._right and (seconds := self._wrong_tokens.missing_seconds(address)):
            raise self._refusal("wrong tokens from one address", self._wrong_tokens.per_minute, seconds)

    def note_wrong(self, digest: bytes) -> None:
        """Counts a wrong token of the client address."""
        self._right.pop(digest, None)
        self._wrong_tokens.take(_ADDRESS.get())

    def note_right(self, digest: bytes) -> None:
        """Remembers a token that was right."""
        self._right[digest] = None
        self._right.move_to_end(digest)

        if len(self._right) > _REMEMBERED:
            self._right.popitem(last=False)

    def count_request(self, principal: Principal) -> None:
        """Counts a request of a key.

        Raises:
            RateLimitError: The key has made too many.
        """
        if principal.is_owner:
            return

        if seconds := self._requests.missing_seconds(principal.key_id):
            raise self._refusal("requests with one key", self._requests.per_minute, seconds)

        self._requests.take(principal.key_id)

    def _refusal(self, limit: str, maximum: int, seconds: float) -> RateLimitError:
        self._on_refusal(limit)
        events.RATE_LIMITED.log(limit=limit, maximum=maximum, address=_ADDRESS.get() or None)
        return RateLimitError(limit=limit, maximum=maximum, retry_after_seconds=seconds)


class _Buckets:
    """Token buckets by name, each with as many tokens as come back in a minute; the latest names are remembered."""

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


def _network_of(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]

    if parsed.version == 4:
        return str(parsed)

    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((int(parsed), _IPV6_PREFIX), strict=False))
