"""The target of a request for a port of a sandbox: by path, by a signed path, or by a host name.

A signed path is for browsers, which send no tokens; it carries the rights of the key that signed it, as other signed
addresses do. A host name is `{port}-{id}.DOMAIN`; an id cannot be guessed, and where ports are public the id alone
opens it, as with E2B.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fumehood.errors import ForbiddenError, InvalidArgumentError
from fumehood.log import events
from fumehood.server.signed_urls import Grant

_SIGNED = re.compile(r"(\d{1,12})-([a-z0-9]{1,64})-([0-9a-f]{64})")
_LABEL = re.compile(r"(\d{1,5})-([a-z0-9]{1,63})")
_METHOD = "PORT"
MAX_PORT = 65_535
# Ports of E2B's own services, which its dialect answers.
_E2B_PORTS = (49983, 49999)


@dataclass(frozen=True, slots=True)
class SandboxPort:
    """A port of a sandbox."""

    sandbox_id: str
    port: int

    def grant(self, expires: int, signer: str) -> Grant:
        """Returns the rights that a signature on this address grants."""
        return Grant(
            method=_METHOD, sandbox_id=self.sandbox_id, path=str(self.port), expires=expires, signer=signer
        )


def signed_part(grant: Grant, secret: bytes) -> str:
    """Returns the part of a path that stands for a signed grant."""
    return f"{grant.expires}-{grant.signer}-{grant.signature(secret)}"


def read_signed_part(address: SandboxPort, part: str) -> tuple[Grant, str]:
    """Returns the grant in a signed part of a path, and its signature, which is not checked here.

    Raises:
        ForbiddenError: The text is not a signed part.
    """
    found = _SIGNED.fullmatch(part)

    if found is None:
        error = ForbiddenError(reason="the address is not one that this server has signed")
        events.KEY_REFUSED.log(reason=error.log_reason)
        raise error

    return address.grant(int(found[1]), found[2]), found[3]


def address_of_host(host: str, domain: str) -> SandboxPort | None:
    """Returns the port that a host name of the form `{port}-{id}.DOMAIN` means; None for another form."""
    if not domain:
        return None

    name, _, _ = host.lower().partition(":")
    label, _, rest = name.partition(".")
    found = _LABEL.fullmatch(label)

    if found is None or rest != domain.lower().partition(":")[0]:
        return None

    port = int(found[1])
    return SandboxPort(found[2], port) if 0 < port <= MAX_PORT else None


def guest_of_host(host: str, domain: str) -> SandboxPort | None:
    """Returns what `address_of_host` does, and None also for a port at which this server answers in a guest's place."""
    address = address_of_host(host, domain)
    return None if address is None or address.port in _E2B_PORTS else address


def read_port(text: str) -> int:
    """Returns the port that a part of a path names; raises InvalidArgumentError like `check_port`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_PORT))):
        raise InvalidArgumentError(field="port", value=text, allowed=f"a whole number from 1 to {MAX_PORT}")

    return check_port(int(text))


def check_port(port: int) -> int:
    """Returns the port; raises InvalidArgumentError for an invalid port number."""
    if not 0 < port <= MAX_PORT:
        raise InvalidArgumentError(field="port", value=port, allowed=f"a whole number from 1 to {MAX_PORT}")

    return port
