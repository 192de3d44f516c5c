"""Rules of a network policy: one text each, parsed once, before a sandbox has it.

A rule that cannot be parsed is refused when the policy is made: skipping it could drop a denial.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from fumehood.errors import InvalidArgumentError
from fumehood.values.addresses import AddressRange, is_never_dialled
from fumehood.values.domain_names import Address, TargetError, read_host, read_port

# The ports of an allow rule without a port.
USUAL_PORTS = (80, 443)
_ALLOWED = "rules such as 'api.example.com', '*.example.org:443', '192.0.2.7:8080', '10.1.0.0/16' or '[2001:db8::]/32'"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a policy.

    Attributes:
        text: As it was written.
        name: The host name; of a rule with a star, the part after `*.`.
        is_wildcard: Whether it matches all names below `name`, and not `name` itself.
        network: The addresses, for a rule of addresses.
        port: The port; None: the usual ones where the rule allows, all where it denies.
    """

    text: str
    name: str | None = None
    is_wildcard: bool = False
    network: AddressRange | None = None
    port: int | None = None

    @property
    def is_one_address(self) -> bool:
        """Whether it names a single address."""
        return self.network is not None and self.network.num_addresses == 1

    def fits_name(self, name: str) -> bool:
        """Tells whether it matches this name."""
        if self.name is None:
            return False

        return name.endswith(f".{self.name}") if self.is_wildcard else name == self.name

    def fits_address(self, address: Address) -> bool:
        """Tells whether it matches this address."""
        return (
            self.network is not None and self.network.version == address.version and address in self.network
        )

    def covers(self, other: Rule) -> bool:
        """Tells whether this rule of addresses covers another one of addresses."""
        mine, theirs = self.network, other.network

        if mine is None or theirs is None or self.port not in (None, other.port):
            return False

        return (
            mine.version == theirs.version
            and mine.prefixlen <= theirs.prefixlen
            and theirs.network_address in mine
        )

    def allows_port(self, port: int) -> bool:
        """Tells whether an allow rule includes this port."""
        return port in USUAL_PORTS if self.port is None else port == self.port

    def denies_port(self, port: int) -> bool:
        """Tells whether a deny rule includes this port."""
        return self.port in (None, port)


def read_rule(field: str, text: object) -> Rule:
    """Returns the rule in `text`.

    Args:
        field: Its name in errors.
        text: The rule.

    Raises:
        InvalidArgumentError: It is none, or one that would match everything.
    """
    try:
        if not isinstance(text, str):
            raise TargetError

        rule = _read(text)
    except (TargetError, ValueError):
        raise InvalidArgumentError(field=field, value=text, allowed=_ALLOWED) from None

    if rule.network is not None and is_never_dialled(rule.network.network_address):
        allowed = "addresses that one host can have; nothing can be reached at this one"
        raise InvalidArgumentError(field=field, value=text, allowed=allowed)

    if rule.network is not None and rule.network.prefixlen < 8:
        allowed = "networks of /8 or smaller; everything that is public is `internet=True`"
        raise InvalidArgumentError(field=field, value=text, allowed=allowed)

    return rule


def _read(text: str) -> Rule:
    if text.count(":") > 1 or text.startswith("["):
        return _read_ipv6(text)

    body, colon, port_text = text.partition(":")
    port = read_port(port_text) if colon else None

    if "/" in body:
        return Rule(text, network=ipaddress.IPv4Network(body), port=port)

    if body.startswith("*."):
        name, address = read_host(body[2:])

        if address is not None:
            raise TargetError

        return Rule(text, name=name, is_wildcard=True, port=port)

    name, address = read_host(body)

    if address is not None:
        return Rule(text, network=ipaddress.ip_network(address), port=port)

    return Rule(text, name=name, port=port)


def _read_ipv6(text: str) -> Rule:
    """`2001:db8::1`, `2001:db8::/32`, `[2001:db8::1]:443`, `[2001:db8::]/32:443`."""
    if not text.startswith("["):
        return Rule(text, network=ipaddress.IPv6Network(text))

    inner, bracket, rest = text[1:].partition("]")

    if not bracket:
        raise TargetError

    prefix, colon, port_text = rest.partition(":")
    network = ipaddress.IPv6Network(f"{inner}{prefix}")
    return Rule(text, network=network, port=read_port(port_text) if colon else None)
