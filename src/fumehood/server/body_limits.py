"""The body of a request as it arrives: bounded in size, and more tightly until the caller is authenticated.

Runs in the server process, inside the ingress, for every route of every dialect. A route that reads a body before it
has authenticated the caller needs to do nothing for that: until `admit_caller` is called, the bytes it receives are
bounded in size and time, and each client address has a maximum of such bodies at once and a rate. A login form is such
a body.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from cachetools import LRUCache
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope
from uvicorn.protocols.utils import ClientDisconnected

from fumehood.server.admission import CallerCheck
from fumehood.server.rate_limits import network_of

UNKNOWN_BODY_BYTES = 1 << 20
UNKNOWN_BODY_SECONDS = 10.0
MAX_UNKNOWN_BODIES = 256
MAX_UNKNOWN_BODIES_OF_ADDRESS = 16
UNKNOWN_BODIES_PER_SECOND = 10.0
UNKNOWN_BODIES_BURST = 60
_REMEMBERED_ADDRESSES = 10_000


class IngressRefusalError(HTTPException):
    """A request is refused while its body is read.

    It is an exception class of the framework, whose parsers would replace any other.
    """


class BodyTooLargeError(IngressRefusalError):
    """The body is larger than allowed.

    Args:
        maximum: The number of bytes allowed.
    """

    def __init__(self, maximum: int) -> None:
        super().__init__(413, too_large(maximum))
        self.maximum = maximum


def too_large(maximum: int) -> str:
    """Returns the text of the refusal of a request that is larger than allowed."""
    return f"the request is larger than {maximum:,} bytes"


def is_departure(error: BaseException) -> bool:
    """Returns whether an error means only that the client has disconnected, which is not a fault of the server."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_departure(part) for part in error.exceptions)

    # The second one is raised where something is sent over a WebSocket.
    return isinstance(error, ClientDisconnect | ClientDisconnected)


class UnknownBodies:
    """Counts the bodies of requests that are not authenticated yet, by client address."""

    def __init__(self) -> None:
        self._at_once: Counter[str] = Counter()
        # Tokens left, and when they were counted.
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(_REMEMBERED_ADDRESSES)

    def begin(self, address: str) -> None:
        """Counts one more body.

        Raises:
            IngressRefusalError: With status 429 if the address has too many such bodies or has begun too many recently;
                with 503 if the server has too many.
        """
        if self._at_once[address] >= MAX_UNKNOWN_BODIES_OF_ADDRESS or not self._take_token(address):
            self._forget_unused(address)
            raise _refusal(429, "too many requests without a known caller come from this address")

        if self._at_once.total() >= MAX_UNKNOWN_BODIES:
            self._forget_unused(address)
            raise _refusal(503, "too many requests without a known caller are under way")

        self._at_once[address] += 1

    def end(self, address: str, *, is_known: bool = False) -> None:
        """Ends a body; if it has authenticated its caller, as a login does, it is not counted against the address."""
        self._at_once[address] -= 1

        if is_known and address in self._buckets:
            left, counted = self._buckets[address]
            self._buckets[address] = (left + 1, counted)

        self._forget_unused(address)

    def _forget_unused(self, address: str) -> None:
        if self._at_once[address] <= 0:
            del self._at_once[address]

    def _take_token(self, address: str) -> bool:
        now = time.monotonic()
        left, counted = self._buckets.get(address, (float(UNKNOWN_BODIES_BURST), now))
        left = min(UNKNOWN_BODIES_BURST, left + (now - counted) * UNKNOWN_BODIES_PER_SECOND)
        self._buckets[address] = (left - 1 if left >= 1 else left, now)
        return left >= 1


class Incoming:
    """The messages of one request, counted as they arrive.

    It is used as a context manager around the app that receives the messages.

    Args:
        scope: The request.
        receive: Returns the next message.
        maximum: How many bytes its body may have.
        unknown: Counts the body until its caller is authenticated.

    Attributes:
        admission: Whether the caller is known.
    """

    def __init__(self, scope: Scope, receive: Receive, maximum: int, unknown: UnknownBodies) -> None:
        self.maximum = maximum
        self.admission = CallerCheck()
        self._receive = receive
        self._unknown = unknown
        self._address = network_of((scope.get("client") or ("", 0))[0])
        self._is_over = not _announces_body(scope)
        self._until = 0.0
        self._seen = 0

    def __enter__(self) -> Incoming:
        self.admission.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.admission.__exit__(*exc)
        self._end_unknown()

    async def __call__(self) -> Message:
        """Returns the next message.

        Raises:
            IngressRefusalError: The body is larger or slower than allowed, or there are too many bodies of
                unauthenticated callers.
        """
        if self._is_over or self.admission.is_given:
            self._end_unknown()
            message = await self._receive()
            maximum = self.maximum
        else:
            message = await self._receive_of_unknown()
            maximum = min(self.maximum, UNKNOWN_BODY_BYTES)

        self._is_over = self._is_over or not message.get("more_body", False)
        self._seen += len(message.get("body", b""))

        if self._seen > maximum:
            raise BodyTooLargeError(maximum)

        return message

    async def _receive_of_unknown(self) -> Message:
        if not self._until:
            self._unknown.begin(self._address)
            self._until = time.monotonic() + UNKNOWN_BODY_SECONDS

        try:
            async with asyncio.timeout(max(0.0, self._until - time.monotonic())):
                return await self._receive()
        except TimeoutError:
            raise _refusal(
                408,
                f"the request did not come within {UNKNOWN_BODY_SECONDS:g} s, and its caller is not known",
            ) from None

    def _end_unknown(self) -> None:
        if self._until:
            self._until = 0.0
            self._unknown.end(self._address, is_known=self.admission.is_given)


def _announces_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in scope["headers"]
    )


def _refusal(status: int, detail: str) -> IngressRefusalError:
    headers = {"Connection": "close"} | ({} if status == 408 else {"Retry-After": "1"})
    return IngressRefusalError(status, detail, headers)
