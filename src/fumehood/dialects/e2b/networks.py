"""Network rules of E2B's clients, as a network of ours; a rule that is not supported is refused by its name.

Pure functions. At E2B an allow rule wins over a deny rule; here a denial wins, so a denied address beside an allowed
one stays denied.
"""

from __future__ import annotations

import re

from fumehood.dialects.e2b.answers import NotOfferedError
from fumehood.dialects.e2b.fields import Fields
from fumehood.errors import InvalidArgumentError
from fumehood.server.port_dialects import PortRules
from fumehood.values.network import NETWORK_LEVELS, Network, NetworkLevel

_ALL = "0.0.0.0/0"
# Fields about how traffic is routed, not whether it is allowed.
_NOT_OFFERED = ("dnsServers", "egressProxy", "httpsPorts")
_PLACEHOLDER = "${e2b."
_HOST = re.compile(r"(?:[A-Za-z0-9._-]|\$\{PORT\}){1,200}(?::(?:[0-9]{1,5}|\$\{PORT\}))?", re.ASCII)
_NO_NETWORK = "its owner allows sandboxes no network; leave it out"


def read_network(rules: Fields | None, asks_internet: bool | None, most: NetworkLevel) -> Network:
    """Returns the network that a client asks for.

    E2B gives the internet to a client that does not ask for less. Here that is what the server and the key allow: a
    server without networks gives none to clients that have asked for nothing in particular.

    Args:
        rules: Its rules, if it has given any.
        asks_internet: Its flag for the internet.
        most: The most that it may have.

    Raises:
        NotOfferedError: It names hosts, and may reach none; or it uses a rule that does not exist here.
    """
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    added: dict[str, dict[str, str]] = {}

    if rules is not None:
        for name in _NOT_OFFERED:
            if name in rules.filled():
                raise NotOfferedError(what=f"network rules ({name})", instead="leave it out")

        allowed, denied = rules.texts("allowOut"), rules.texts("denyOut")
        added = _added_headers(rules.inner("rules"))

    named = tuple(rule for rule in allowed if rule != _ALL)
    denials = tuple(rule for rule in denied if rule != _ALL)
    is_open = asks_internet is not False and _ALL not in denied and (not allowed or _ALL in allowed)

    if named and NETWORK_LEVELS.index(most) < NETWORK_LEVELS.index("listed"):
        raise NotOfferedError(what="network rules (allowOut)", instead=_NO_NETWORK)

    return Network(allow=named, deny=denials, internet=is_open and most == "internet", secrets=added)


def _added_headers(rules: Fields | None) -> dict[str, dict[str, str]]:
    """Returns the headers that rules add, by the host whose https requests they are for.

    They may hold secrets, so requests in plain http get none of them.
    """
    if rules is None:
        return {}

    added: dict[str, dict[str, str]] = {}

    for host in rules.filled():
        headers: dict[str, str] = {}

        for rule in rules.inners(host):
            headers.update((rule.inner("transform") or Fields({}, "transform.")).strings("headers"))

        if any(_PLACEHOLDER in value for value in headers.values()):
            raise NotOfferedError(
                what="workload identity in headers of network rules", instead="write the value"
            )

        if headers:
            added[host] = headers

    return added


def read_port_rules(rules: Fields | None, *, are_ports_public: bool) -> PortRules:
    """Returns the settings of a client for the ports of a new sandbox.

    Args:
        rules: Its rules, if it has given any.
        are_ports_public: Whether the server makes ports public where nothing else is chosen.

    Raises:
        InvalidArgumentError: The Host header is none that can be sent.
    """
    if rules is None:
        return PortRules()

    host = rules.text("maskRequestHost")

    if host and not _HOST.fullmatch(host):
        raise InvalidArgumentError(
            field="maskRequestHost",
            value=host,
            allowed="a host name, with `:` and a port behind it if wanted; `${PORT}` stands for the port",
        )

    # Without public ports all are private: there is nothing to remember.
    is_private = are_ports_public and rules.flag("allowPublicTraffic") is False
    return PortRules(is_private=is_private, host=host)
