"""Checks the first bytes of a guest in a tunnel against the decision about the tunnel.

In TLS that is the server name of the client; for plain HTTP the caller parses the request.
"""

from __future__ import annotations

import re

from fumehood.egress.client_hello import MAX_HELLO_BYTES, Hello, HelloError, read_client_hello
from fumehood.egress.http_messages import HeadError
from fumehood.egress.pipes import PipeEndError, PipeReader
from fumehood.egress.policy import EgressPolicy, RefusedError
from fumehood.values.domain_names import Target, TargetError, read_host

_METHODS = (
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"PATCH",
    b"DELETE",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    # HTTP/2 without TLS, which is then refused as such.
    b"PRI",
)
# For other methods the whole line decides, since other protocols have some of these words too.
_MORE_METHODS = (
    b"ACL",
    b"BIND",
    b"CHECKIN",
    b"CHECKOUT",
    b"COPY",
    b"LINK",
    b"LOCK",
    b"MERGE",
    b"MKACTIVITY",
    b"MKCALENDAR",
    b"MKCOL",
    b"MKWORKSPACE",
    b"MOVE",
    b"ORDERPATCH",
    b"PROPFIND",
    b"PROPPATCH",
    b"PURGE",
    b"QUERY",
    b"REBIND",
    b"REPORT",
    b"SEARCH",
    b"UNBIND",
    b"UNLINK",
    b"UNLOCK",
    b"UPDATE",
    b"VERSION-CONTROL",
)
_WORDS = tuple(method + b" " for method in _MORE_METHODS)
_REQUEST_LINE = re.compile(rb"[A-Za-z-]+ [\x21-\x7e]+ HTTP/[0-9]\.[0-9]\r?\n")
# No server accepts a longer request line.
_MAX_LINE_BYTES = 1 << 17
_MAX_HELD_BYTES = 1 << 14
_VERSION = re.compile(rb"HTTP/[0-9]", re.IGNORECASE)
_VERSION_BYTES = 6
_SIMPLE = re.compile(rb"(?:GET|HEAD|POST)[\x00-\x20]+(?:/|http:)", re.IGNORECASE)
_BEGIN_BYTES = 64
_BLANK = bytes(range(0x21)) + b"\x7f"
# The PROXY protocol (versions 1 and 2) before a request.
_PROXY_HEADERS = (b"PROXY ", b"\r\n\r\n\x00\r\nQUIT\n")


async def read_hello(incoming: PipeReader) -> Hello:
    """Waits for the first message of a TLS client; it stays in `incoming`, to be passed on.

    Raises:
        HelloError: The bytes are not the first message of a TLS client.
        PipeEndError: The stream ends too early.
    """
    while (hello := read_client_hello(incoming.held)) is None:
        if len(incoming.held) > 2 * MAX_HELLO_BYTES:
            raise HelloError("the first TLS message is too long")

        if not await incoming.more():
            raise PipeEndError

    return hello


def check_hello(hello: Hello, target: Target, policy: EgressPolicy) -> tuple[Target, ...]:
    """Checks the server name of a TLS client against the target of its tunnel.

    For a tunnel to an address, returns the requested name with the tunnel's port; the policy allows that name too.

    Raises:
        RefusedError: The server name differs from the target, or is hidden.
    """
    if hello.hides_name and not policy.allows_hidden_names:
        raise RefusedError(f"in the tunnel to {target.authority} TLS hides its name (ECH)")

    if hello.server_name is None:
        if target.address is None:
            raise RefusedError(f"in the tunnel to {target.authority} TLS names no server (SNI)")

        return ()

    try:
        name, address = read_host(hello.server_name)
    except TargetError as error:
        raise RefusedError(
            f"in the tunnel to {target.authority} TLS names something that is {error}"
        ) from None

    if name == target.host:
        return ()

    if target.address is None or address is not None:
        raise RefusedError(f"in the tunnel to {target.authority} TLS names {name}")

    named = Target(name, target.port)
    policy.admit(named)
    return (named,)


async def looks_like_http(incoming: PipeReader) -> bool:
    """Returns whether a plain HTTP request begins here; waits for the needed bytes and leaves them in the buffer."""
    while any(method.startswith(incoming.held) for method in (*_METHODS, *_WORDS)):
        if not await incoming.more():
            return False

    if incoming.held.startswith(tuple(method + b" " for method in _METHODS)):
        return True

    if not incoming.held.startswith(_WORDS):
        return False

    while b"\n" not in incoming.held and len(incoming.held) <= _MAX_HELD_BYTES:
        if not await incoming.more():
            return False

    return _REQUEST_LINE.match(incoming.held) is not None


class NoRequest:
    """Checks that a tunnel that is carried unparsed does not begin with an HTTP request.

    Servers differ in what they accept as a request line: some skip empty lines and control characters before it, accept
    any white space between its words, or any method. A request that is not parsed strictly here, with its Host checked
    against the target, is therefore refused as soon as its version has arrived; no bytes are held back meanwhile.
    """

    def __init__(self) -> None:
        self._seen = b""
        # The current line: its start after blanks, its end, and its length.
        self._begin = b""
        self._end = b""
        self._byte_count = 0
        self._is_over = False

    def check(self, data: bytes) -> None:
        """Takes the next bytes.

        Raises:
            HeadError: The bytes begin a request in a form that is not parsed here.
        """
        if self._is_over:
            return

        self._seen = (self._seen + data)[: max(map(len, _PROXY_HEADERS))]

        if self._seen.startswith(_PROXY_HEADERS):
            raise HeadError("a PROXY header names another client and hides a request behind it")

        first, *others = data.split(b"\n")
        self._take(first)

        for piece in others:
            if self._begin:
                self._is_over = True
                return

            # After empty lines only, a request may still come.
            self._end, self._byte_count = b"", 0
            self._take(piece)

        self._is_over = self._byte_count > _MAX_LINE_BYTES

    def _take(self, piece: bytes) -> None:
        """Examines more of one line, each byte a few times for any division into pieces."""
        if len(self._begin) < _BEGIN_BYTES:
            self._begin = (self._begin + piece).lstrip(_BLANK)[:_BEGIN_BYTES]

        if _VERSION.search(self._end + piece) or _SIMPLE.match(self._begin):
            raise HeadError("a request in a form that servers read differently")

        self._end = (self._end + piece)[-_VERSION_BYTES:]
        self._byte_count += len(piece)
