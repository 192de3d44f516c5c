"""What a client of E2B says of the network, as a network of ours; what is not offered is refused by its name.

Runs in the server process; pure. There, what is allowed wins over what is denied; here a denial wins, so what is denied
beside what is allowed stays denied.
"""

from __future__ import annotations

from fumehood.compat.e2b.answers import NotOfferedError
from fumehood.compat.e2b.fields import Fields
from fumehood.network import Network, NetworkLevel

_ALL = "0.0.0.0/0"
# What says how traffic goes, and not whether.
_NOT_OFFERED = ("dnsServers", "egressProxy", "rules", "httpsPorts", "maskRequestHost")
_NO_NETWORK = "its owner allows sandboxes no network; leave it out"


def read_network(rules: Fields | None, asks_internet: bool | None, most: NetworkLevel) -> Network:
    """Returns the network that a client asks for.

    E2B gives the internet to whoever does not ask for less. Here that is what the server and the key allow: a server
    without networks gives none to those who have asked for nothing in particular.

    Args:
        rules: Its rules, if it has given any.
        asks_internet: Its flag for the internet.
        most: The most that it may have.

    Raises:
        NotOfferedError: It names whom it wants to reach, and may reach nobody; or it changes what goes through.
    """
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    if rules is not None:
        for name in _NOT_OFFERED:
            if name in rules.filled():
                raise NotOfferedError(what=f"network rules ({name})", instead="leave it out")

        allowed, denied = rules.texts("allowOut"), rules.texts("denyOut")

    named = tuple(rule for rule in allowed if rule != _ALL)
    denials = tuple(rule for rule in denied if rule != _ALL)
    is_open = asks_internet is not False and _ALL not in denied and (not allowed or _ALL in allowed)

    if named and most == "none":
        raise NotOfferedError(what="network rules (allowOut)", instead=_NO_NETWORK)

    return Network(allow=named, deny=denials, internet=is_open and most == "internet")
