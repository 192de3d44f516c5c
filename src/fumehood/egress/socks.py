"""SOCKS version 5, as far as it opens a TCP connection (RFC 1928).

Runs in the host process and only computes, apart from waiting for the bytes of the guest. No other command, no other
version, no authentication: the connection itself identifies the sandbox.
"""

from __future__ import annotations

import ipaddress

from fumehood.egress.pipes import PipeReader
from fumehood.values.domain_names import Address, Target, TargetError, read_address, read_host

VERSION = 5
_NO_AUTHENTICATION = 0
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4

SUCCEEDED, FAILED, NOT_ALLOWED, UNREACHABLE, NOT_SUPPORTED = 0, 1, 2, 4, 7


class SocksError(ValueError):
    """The request is not SOCKS 5, or uses a feature that is not supported.

    Attributes:
        code: The reply code; None: no reply that this client would understand.
    """

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


async def read_greeting(incoming: PipeReader) -> bytes:
    """Reads a client's greeting, and returns the reply.

    Raises:
        SocksError: The client does not offer the method without authentication.
    """
    version, count = await incoming.take(2)
    methods = await incoming.take(count)

    if version != VERSION or _NO_AUTHENTICATION not in methods:
        raise SocksError("a SOCKS client that wants to authenticate itself")

    return bytes((VERSION, _NO_AUTHENTICATION))


async def read_request(incoming: PipeReader) -> Target:
    """Reads a client's request, and returns its target.

    Raises:
        SocksError: The request is not for a TCP connection to a plain host and port.
    """
    version, command, _, kind = await incoming.take(4)

    if version != VERSION or kind not in (_IPV4, _NAME, _IPV6):
        raise SocksError("a malformed SOCKS request", FAILED)

    host, address = await _read_address(incoming, kind)
    port = int.from_bytes(await incoming.take(2), "big")

    if command != _CONNECT:
        raise SocksError("a SOCKS command other than CONNECT", NOT_SUPPORTED)

    if not port:
        raise SocksError("port 0", FAILED)

    return Target(host, port, address)


def write_reply(code: int) -> bytes:
    """Returns the reply to a request; the address in it is always zero."""
    return bytes((VERSION, code, 0, _IPV4)) + bytes(6)


async def _read_address(incoming: PipeReader, kind: int) -> tuple[str, Address | None]:
    if kind == _NAME:
        (size,) = await incoming.take(1)
        raw = await incoming.take(size)
        text = raw.decode("latin-1")
    else:
        raw = await incoming.take(4 if kind == _IPV4 else 16)
        text = str(ipaddress.ip_address(raw))

    try:
        if kind != _NAME:
            address = read_address(text)
            return str(address), address

        # Only URLs have brackets.
        if text.startswith("["):
            raise TargetError("not a name")

        return read_host(text)
    except TargetError as error:
        raise SocksError(f"the host that is asked for is {error}", FAILED) from None
