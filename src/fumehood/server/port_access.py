"""Who may reach a port of a sandbox, and where a request for one leads.

Runs in the server process. There are three ways: by token under the sandbox's own route, by a signed address that
ends at a time (for browsers, which send no tokens), and by a host name `{port}-{id}.DOMAIN` of the sandbox. An id
cannot be guessed, and where ports are public the id alone opens a host name, as with E2B.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from dataclasses import dataclass

from fumehood.errors import InvalidArgumentError
from fumehood.service_errors import UnauthenticatedError

_SIGNED = re.compile(r"(\d{1,12})-([0-9a-f]{64})")
_LABEL = re.compile(r"(\d{1,5})-([a-z0-9]{1,63})")
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class PortAddress:
    """A port of a sandbox."""

    sandbox_id: str
    port: int


class PortSigner:
    """Makes and checks addresses that open one port of one sandbox for a time.

    Args:
        secret: Of this server; who has it can open every port.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, address: PortAddress, expires_in_seconds: float) -> str:
        """Returns the part of a path that opens the port."""
        expires_at = int(time.time() + expires_in_seconds)
        return f"{expires_at}-{self._digest(address, expires_at)}"

    def check(self, address: PortAddress, signed: str) -> None:
        """Checks such a part.

        Raises:
            UnauthenticatedError: It is not ours, is for another port, or its time is over.
        """
        found = _SIGNED.fullmatch(signed)

        if found is None or not hmac.compare_digest(found[2], self._digest(address, int(found[1]))):
            raise UnauthenticatedError(reason="the address is not signed by this server")

        if int(found[1]) < time.time():
            raise UnauthenticatedError(reason="the address has expired")

    def _digest(self, address: PortAddress, expires_at: int) -> str:
        text = f"port\n{address.sandbox_id}\n{address.port}\n{expires_at}"
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()


def address_of_host(host: str, domain: str) -> PortAddress | None:
    """Returns the port that a host name of the form `{port}-{id}.DOMAIN` means, or None if it is no such name."""
    if not domain:
        return None

    name, _, _ = host.lower().partition(":")
    label, _, rest = name.partition(".")
    found = _LABEL.fullmatch(label)

    if found is None or rest != domain.lower().partition(":")[0]:
        return None

    port = int(found[1])
    return PortAddress(found[2], port) if 0 < port <= MAX_PORT else None


def check_port(port: int) -> int:
    """Returns the port; raises InvalidArgumentError when there can be none of that number."""
    if not 0 < port <= MAX_PORT:
        raise InvalidArgumentError(field="port", value=port, allowed=f"a whole number from 1 to {MAX_PORT}")

    return port
