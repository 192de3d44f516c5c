"""Parses names and addresses of hosts from a guest: one strict parser, for the check and for the connection.

There is one spelling of each host and port, and a text that is not plainly a name, an IPv4 address in four decimal
parts or an IPv6 address in brackets is refused: filters are bypassed where two parsers read one text differently.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_NAME_CHARACTERS = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# Some parsers take these for a number, and so for an address: the last label decides (URL standard, "ends in a
# number").
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")


class TargetError(ValueError):
    """The text is not plainly a host and a port."""


@dataclass(frozen=True, slots=True)
class Target:
    """The host and port of a connection.

    Attributes:
        host: A name in lower case without a dot at its end, or an address as `ipaddress` writes it.
        port: The port.
        address: The address, when `host` is one.
    """

    host: str
    port: int
    address: Address | None = None

    @property
    def authority(self) -> str:
        """Host and port in one text, with brackets around IPv6."""
        return f"{self.bracketed}:{self.port}"

    @property
    def bracketed(self) -> str:
        """The host as it is written in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host


def read_host(text: str) -> tuple[str, Address | None]:
    """Returns the canonical host in `text`, and the address if it is one; an IPv6 address must be in brackets.

    Raises:
        TargetError: The text is neither a name nor an address.
    """
    if text.startswith("[") and text.endswith("]"):
        address = read_address(text[1:-1])

        if address.version != 6:
            raise TargetError("only IPv6 stands in brackets")

        return str(address), address

    name = text.lower() if text.isascii() else ""
    name = name.removesuffix(".")
    labels = name.split(".")

    if not name or len(name) > MAX_NAME_CHARACTERS or not all(map(_LABEL.fullmatch, labels)):
        raise TargetError("not a host name in ASCII letters, digits, hyphens and dots")

    if not _NUMBER.fullmatch(labels[-1]):
        return name, None

    if text.endswith("."):
        raise TargetError("an address has no dot at its end")

    address = read_address(text)
    return str(address), address


def read_address(text: str) -> Address:
    """Returns the address in `text`: four decimal parts, or IPv6 without brackets, zone or an IPv4 part.

    Raises:
        TargetError: The text is not an address.
    """
    try:
        if ":" not in text:
            return ipaddress.IPv4Address(text)

        if "%" in text or "." in text:
            raise ValueError

        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise TargetError("not an address in its usual form") from None

    if address.ipv4_mapped is not None:
        raise TargetError("an IPv4 address in the clothes of IPv6")

    return address


def read_port(text: str) -> int:
    """Returns the port in `text`: decimal digits without leading zeros.

    Raises:
        TargetError: The text is not a port.
    """
    port = int(text) if _PORT.fullmatch(text) else 0

    if not 1 <= port <= 65_535:
        raise TargetError("not a port from 1 to 65535")

    return port


def read_authority(text: str, default_port: int | None = None) -> Target:
    """Returns the target in `host:port`.

    Args:
        text: The text from the guest.
        default_port: The port if the text has none; None: a port is required.

    Raises:
        TargetError: The text is not a host and a port.
    """
    host_text, colon, port_text = text.rpartition(":")

    if not colon or text.endswith("]"):
        host_text, port_text = text, ""

        if default_port is None:
            raise TargetError("a port is missing")

    host, address = read_host(host_text)

    if colon and not text.endswith("]"):
        return Target(host, read_port(port_text), address)

    assert default_port is not None
    return Target(host, default_port, address)
