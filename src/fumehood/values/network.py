"""The network policy of a sandbox (`Network`) with its rules, and the record of its connections (`EgressRecord`).

Plain values, used by callers and by all host code. Nothing is enforced here. A `Network` that exists is valid: each of
its rules is one text, parsed once; one that cannot be parsed is refused, because skipping it could drop a denial. An
empty policy allows nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Literal, TypeAlias

from fumehood.bounds import GIB, TIB, Bound
from fumehood.errors import InvalidArgumentError
from fumehood.values.addresses import AddressRange, holds_only_public, is_never_dialled
from fumehood.values.domain_names import (
    Address,
    TargetError,
    read_address,
    read_authority,
    read_host,
    read_port,
)
from fumehood.values.limits import check_bound

# The ports of an allow rule without a port.
USUAL_PORTS = (80, 443)
_ALLOWED = "rules such as 'api.example.com', '*.example.org:443', '192.0.2.7:8080', '10.1.0.0/16' or '[2001:db8::]/32'"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a policy.

    Attributes:
        text: The rule as its author wrote it.
        name: The host name; for a rule with a star, the part after `*.`.
        is_wildcard: Whether it matches all names below `name`, and not `name` itself.
        network: The network of addresses; None for a rule with a name.
        port: The port; None: ports 80 and 443 for an allow rule, all ports for a deny rule.
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
        """Returns whether it matches this name."""
        if self.name is None:
            return False

        return name.endswith(f".{self.name}") if self.is_wildcard else name == self.name

    def fits_address(self, address: Address) -> bool:
        """Returns whether it matches this address."""
        return (
            self.network is not None and self.network.version == address.version and address in self.network
        )

    def covers(self, other: Rule) -> bool:
        """Returns whether this address rule covers another address rule."""
        mine, theirs = self.network, other.network

        if mine is None or theirs is None or self.port not in (None, other.port):
            return False

        return (
            mine.version == theirs.version
            and mine.prefixlen <= theirs.prefixlen
            and theirs.network_address in mine
        )

    def allows_port(self, port: int) -> bool:
        """Returns whether an allow rule includes this port."""
        return port in USUAL_PORTS if self.port is None else port == self.port

    def denies_port(self, port: int) -> bool:
        """Returns whether a deny rule includes this port."""
        return self.port in (None, port)


def read_rule(field: str, text: object) -> Rule:
    """Returns the rule in `text`.

    Args:
        field: The name of the argument in errors.
        text: The rule.

    Raises:
        InvalidArgumentError: The text is not a rule, or would match everything.
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
    """Reads a rule of the form `2001:db8::1`, `2001:db8::/32`, `[2001:db8::1]:443`, `[2001:db8::]/32:443`."""
    if not text.startswith("["):
        return Rule(text, network=ipaddress.IPv6Network(text))

    inner, bracket, rest = text[1:].partition("]")

    if not bracket:
        raise TargetError

    prefix, colon, port_text = rest.partition(":")
    network = ipaddress.IPv6Network(f"{inner}{prefix}")
    return Rule(text, network=network, port=read_port(port_text) if colon else None)


NetworkLevel = Literal["none", "pip", "listed", "internet"]
Verdict = Literal["allowed", "denied"]

# From the least to the most.
NETWORK_LEVELS = ("none", "pip", "listed", "internet")
PRESETS = ("pip",)
MAX_RULES = 1000
_BYTES = Bound(1, 1024 * TIB, "bytes")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,8192}")
# Headers that route or frame a request cannot be set.
_FRAMING = {
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network policy of a sandbox. `Network()` allows nothing.

    Attributes:
        allow: Rules: a name (`api.example.com`), all names below one (`*.example.org`), an address or a network
            (`10.1.0.0/16`), each followed by `:PORT`, or else for ports 80 and 443. An address that is not public is
            reached only if an address or network rule lists it; loopback, link-local and metadata addresses and those
            of this machine only if a rule names that single address.
        deny: Rules of the same form, which take precedence; without a port, they deny all ports.
        internet: Whether all public addresses are allowed on ports 80 and 443.
        presets: Bundles of rules, defined on the sandbox's host: `pip`, the package index of its host.
        hosts: Addresses by host name, used in place of a resolver's answer; they must be allowed like any other
            address.
        secrets: Headers that the proxy adds to requests to one host, by `NAME` or `NAME:PORT` for https, and
            `http://NAME:PORT` for plain http. No program in the sandbox sees them. Where they are shown, their values
            are empty.
        max_bytes: How many bytes may be transferred in the sandbox's life, both directions together.
    """

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    internet: bool = False
    presets: Sequence[str] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    max_bytes: int = 10 * GIB

    def __post_init__(self) -> None:
        for name in ("allow", "deny", "presets"):
            object.__setattr__(self, name, _texts(f"network.{name}", getattr(self, name)))

        if not isinstance(self.internet, bool):
            raise InvalidArgumentError(field="network.internet", value=self.internet, allowed="True or False")

        for preset in self.presets:
            if preset not in PRESETS:
                raise InvalidArgumentError(
                    field="network.presets", value=preset, allowed=", ".join(map(repr, PRESETS))
                )

        check_bound("network.max_bytes", self.max_bytes, _BYTES)
        self.rules("allow")
        self.rules("deny")
        object.__setattr__(self, "hosts", _hosts(self.hosts))
        object.__setattr__(self, "secrets", _secrets(self.secrets))

    @classmethod
    def pip(cls) -> Network:
        """Return a network in which `pip install` works, and nothing else."""
        return cls(presets=("pip",))

    @property
    def level(self) -> NetworkLevel:
        """The level as one word: none, pip (only the package index), listed (what the rules allow), or internet."""
        if self.internet:
            return "internet"

        # An address that the caller gives to the name of an index makes it any place.
        if self.allow or (self.presets and self.hosts):
            return "listed"

        return "pip" if self.presets else "none"

    def rules(self, kind: Literal["allow", "deny"]) -> tuple[Rule, ...]:
        """Return the allow rules or the deny rules."""
        return tuple(read_rule(f"network.{kind}", text) for text in getattr(self, kind))

    def not_public(self) -> tuple[Rule, ...]:
        """Return the allow rules for addresses that are not public."""
        return tuple(
            rule
            for rule in self.rules("allow")
            if rule.network is not None and not holds_only_public(rule.network)
        )

    def without_secrets(self) -> Network:
        """Return a copy without the values of its secrets, which can be shown."""
        hidden = {place: dict.fromkeys(headers, "") for place, headers in self.secrets.items()}
        return replace(self, secrets=hidden)

    def with_secrets_of(self, other: Network) -> Network:
        """Return a copy with missing values of secrets filled in from `other`; so a shown network can be set again."""
        filled = {
            place: {
                name: value or other.secrets.get(place, {}).get(name, "") for name, value in headers.items()
            }
            for place, headers in self.secrets.items()
        }
        return replace(self, secrets=filled)


NetworkChoice: TypeAlias = Network | Literal["none", "pip", "internet"] | list[str] | tuple[str, ...]


def read_network(value: NetworkChoice | None) -> Network:
    """Return the network for a caller's argument.

    Args:
        value: A `Network`; `none`, `pip` (the package index alone) or `internet`; or a list of such words and of
            rules as `Network(allow=...)` takes them.

    Raises:
        InvalidArgumentError: The value is none of these.
    """
    if isinstance(value, Network):
        return value

    if value is None or value == "none":
        return Network()

    if value == "internet":
        return Network(internet=True)

    if value in PRESETS:
        return Network(presets=(value,))

    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        _check_words(value)
        return _listed_network([word for word in value if word != "none"])

    # A value of any other type may hold a secret.
    shown = value if isinstance(value, str | bool | int) else type(value).__name__
    raise InvalidArgumentError(
        field="network",
        value=shown,
        allowed="'none', 'pip', 'internet', a list of names such as ['api.example.com'], or a Network(allow=[...])"
        f"{meant_network(shown)}",
    )


def _check_words(words: Sequence[str]) -> None:
    """Refuse a name that is like a word of ours: as a host of a local name, a mistyped `pip` would be allowed."""
    for word in words:
        if word in ("none", "internet", *PRESETS) or set(word) & set(".:"):
            continue

        if meant := meant_network(word):
            allowed = f"'none', 'pip', 'internet', or rules such as 'api.example.com' or 'wiki:80'{meant}"
            raise InvalidArgumentError(field="network", value=word, allowed=allowed)


def meant_network(word: object) -> str:
    """Return a question with the word that is like this one, to follow a refusal; empty if none is."""
    near = get_close_matches(str(word).lower(), ("none", "internet", *PRESETS), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _listed_network(words: Sequence[str]) -> Network:
    return Network(
        allow=[word for word in words if word != "internet" and word not in PRESETS],
        presets=[word for word in PRESETS if word in words],
        internet="internet" in words,
    )


def check_address_rule(field: str, text: str) -> None:
    """Raise InvalidArgumentError unless `text` is a rule that names an address or a network of addresses."""
    if read_rule(field, text).network is None:
        raise InvalidArgumentError(
            field=field, value=text, allowed="an address or a network such as '10.1.0.0/16'"
        )


def lists_only(network: Network, allowed: Sequence[str]) -> str | None:
    """Return the first rule for addresses that are not public and that no rule in `allowed` covers, or None."""
    covers = [read_rule("private_networks", text) for text in allowed]

    for rule in network.not_public():
        if not any(cover.covers(rule) for cover in covers):
            return rule.text

    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressRecord:
    """One connection that a sandbox made or tried to make.

    Attributes:
        at: When it was decided (UTC).
        sandbox_id: The sandbox.
        kind: The protocol of the request: http, connect or socks.
        name: The requested host, a name or an address, in its canonical form.
        address: The address that was dialled; None if no address was.
        port: The port.
        verdict: allowed or denied.
        rule: The rule that allowed it, or why it was denied.
        bytes_sent: Bytes sent out so far.
        bytes_received: Bytes received so far.
    """

    at: datetime
    sandbox_id: str
    kind: Literal["http", "connect", "socks"]
    name: str
    address: str | None
    port: int
    verdict: Verdict
    rule: str
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """The destination of a secret: one host and port, over one scheme."""

    scheme: Literal["http", "https"]
    name: str
    port: int


def read_secret_place(text: str) -> SecretPlace:
    """Return the destination that a key of `Network.secrets` names.

    Raises:
        InvalidArgumentError: The key names no destination.
    """
    is_plain = text.startswith("http://")
    try:
        target = read_authority(text.removeprefix("http://"), 80 if is_plain else 443)
    except TargetError:
        target = None

    if target is None or target.address is not None:
        allowed = "'NAME' or 'NAME:PORT' for https, 'http://NAME:PORT' for plain http"
        raise InvalidArgumentError(field="network.secrets", value=text, allowed=allowed)

    return SecretPlace("http" if is_plain else "https", target.host, target.port)


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > MAX_RULES:
        raise InvalidArgumentError(field=name, value=value, allowed=f"a list of up to {MAX_RULES} texts")

    return tuple(value)


def _hosts(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > MAX_RULES:
        raise InvalidArgumentError(field="network.hosts", value=value, allowed="addresses by name")

    read: dict[str, str] = {}

    for name, address in value.items():
        try:
            host, literal = read_host(name)

            if literal is not None:
                raise TargetError

            read[host] = str(read_address(address))
        except (TargetError, AttributeError, TypeError):
            raise InvalidArgumentError(
                field="network.hosts",
                value=f"{name}: {address}",
                allowed="a host name and its IPv4 or IPv6 address",
            ) from None

    return read


def _secrets(value: object) -> dict[str, Mapping[str, str]]:
    if not isinstance(value, Mapping) or len(value) > MAX_RULES:
        raise InvalidArgumentError(
            field="network.secrets", value=type(value).__name__, allowed="headers by host"
        )

    checked: dict[str, Mapping[str, str]] = {}

    for place, headers in value.items():
        if not isinstance(place, str) or not isinstance(headers, Mapping) or not headers:
            raise InvalidArgumentError(field="network.secrets", value=place, allowed="headers by host")

        read_secret_place(place)

        for name, text in headers.items():
            _check_header(place, name, text)

        checked[place] = dict(headers)

    return checked


def _check_header(place: str, name: object, text: object) -> None:
    """Check the value of a secret; no error repeats it."""
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name) or name.lower() in _FRAMING:
        raise InvalidArgumentError(
            field=f"network.secrets[{place!r}]",
            value=name,
            allowed="names of headers that have no meaning for the connection",
        )

    if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text) or text != text.strip():
        raise InvalidArgumentError(
            field=f"network.secrets[{place!r}][{name!r}]",
            value="(hidden)",
            allowed="one line of printable ASCII",
        )
