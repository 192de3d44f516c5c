"""Classifies IP addresses: public, private, and those that must never be dialled.

Runs in the host process and only computes; the tables come from the IANA registries of special-purpose addresses. They
are stored here because Python's definition of a global address has changed with its versions.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import TypeAlias

from fumehood.values.domain_names import Address

AddressRange: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_NOT_PUBLIC_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",
            # Azure's metadata and platform service, which looks public.
            "168.63.129.16/32",
        ),
    )
)
_ANY_PORT = 9
_NO_WAY = (
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
    errno.EINVAL,
    errno.EACCES,
)

# Only a part of IPv6 is allocated; ranges in it that embed other addresses are excluded: Teredo and its neighbours,
# 6to4. NAT64 and mapped addresses lie outside anyway.
_GIVEN_OUT_6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48"))
)

# Allowed only one by one: the machine itself, its neighbours on the link, services that hand out credentials.
_GUARDED = tuple(
    map(
        ipaddress.ip_network,
        (
            "127.0.0.0/8",
            "169.254.0.0/16",
            "100.100.100.200/32",
            "168.63.129.16/32",
            "192.0.0.192/32",
            "::1/128",
            "fe80::/10",
            "fd00:ec2::254/128",
            "fd20:ce::254/128",
        ),
    )
)
# Unspecified, multicast and broadcast addresses, and forms that embed an IPv4 address.
_NEVER = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",
            "224.0.0.0/4",
            "255.255.255.255/32",
            "::/128",
            "::/96",
            "::ffff:0:0/96",
            "64:ff9b::/96",
            "64:ff9b:1::/48",
            "2001::/32",
            "2002::/16",
            "ff00::/8",
        ),
    )
)


def is_public(address: Address) -> bool:
    """Returns whether an address is public."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)

    return address in _GIVEN_OUT_6 and not any(address in network for network in _NOT_PUBLIC_6)


def is_guarded(address: Address) -> bool:
    """Returns whether an address needs a rule that names it: loopback, link-local, metadata, this machine."""
    return any(address in network for network in _GUARDED) or is_of_this_machine(address)


def is_never_dialled(address: Address) -> bool:
    """Returns whether no rule can allow an address."""
    return address != ipaddress.IPv6Address("::1") and any(address in network for network in _NEVER)


def holds_only_public(network: AddressRange) -> bool:
    """Returns whether every address of a network is public."""
    if isinstance(network, ipaddress.IPv4Network):
        return not any(network.overlaps(other) for other in _NOT_PUBLIC_4)

    return network.subnet_of(_GIVEN_OUT_6) and not any(network.overlaps(other) for other in _NOT_PUBLIC_6)


def is_of_this_machine(address: Address) -> bool:
    """Returns whether an interface of this machine has this address: the kernel then routes it to this machine."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6

    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            # Looks up the route and sends nothing.
            probe.connect((str(address), _ANY_PORT))
            return bool(probe.getsockname()[0] == str(address))
    except OSError as error:
        # Without a route it is not this machine; any other error does not prove that it is another one.
        return error.errno not in _NO_WAY
