"""Decides by a network policy: first about the requested target, then about every address of it.

A target that no rule allows is denied, and a denial wins over everything. This module makes no lookups; its caller
checks the name first, so that a lookup of a denied name never leaves the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from fumehood.values.addresses import is_guarded, is_never_dialled, is_public
from fumehood.values.domain_names import Address, Target, read_address
from fumehood.values.network import USUAL_PORTS, Network, Rule, read_rule

_NO_NETWORK = (
    "this sandbox has no network; make it with network='pip', 'internet' or a list of hosts (or --network)"
)
# Names with a meaning only in private networks: "everything public" does not include them.
_PRIVATE_NAMES = (
    "alt",
    "arpa",
    "corp",
    "home",
    "internal",
    "intranet",
    "lan",
    "local",
    "localhost",
    "onion",
    "test",
)
_INTERNET = "internet"


class RefusedError(Exception):
    """The policy denies a connection.

    Attributes:
        reason: The reason, in words that the guest may read.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EgressPolicy:
    """The network policy of one sandbox.

    Args:
        network: The policy of the owner.
        more_rules: The rules of its presets.
    """

    def __init__(self, network: Network, more_rules: Sequence[str] = ()) -> None:
        presets = tuple(read_rule("network.presets", text) for text in more_rules)
        self._allow = (*network.rules("allow"), *presets)
        self._deny = network.rules("deny")
        self._internet = network.internet
        self._hosts = {name: read_address(address) for name, address in network.hosts.items()}

    @property
    def allows_hidden_names(self) -> bool:
        """Returns whether a TLS client may encrypt its server name: only where no name is denied."""
        return self._internet and not any(rule.name for rule in self._deny)

    def admit(self, target: Target) -> str:
        """Returns the rule that allows a target, before anything is looked up.

        Raises:
            RefusedError: No rule allows the target.
        """
        self._check_denials(target)
        rule = self._rule_for(target)

        if rule is not None:
            return rule.text

        if self._internet and self._is_of_the_internet(target):
            return _INTERNET

        if not self._allow and not self._internet:
            raise RefusedError(_NO_NETWORK)

        raise RefusedError(f"{target.authority} is not allowed by this sandbox's network policy")

    def admit_address(self, target: Target, address: Address) -> None:
        """Checks one of the addresses behind an admitted target.

        Raises:
            RefusedError: The address must not be dialled.
        """
        if is_never_dialled(address):
            raise RefusedError(f"{target.authority} leads to {address}, which is no address of a server")

        if any(rule.fits_address(address) and rule.denies_port(target.port) for rule in self._deny):
            raise RefusedError(f"{target.authority} leads to {address}, which is denied")

        listed = [
            rule for rule in self._allow if rule.fits_address(address) and rule.allows_port(target.port)
        ]

        if is_guarded(address):
            if not any(rule.is_one_address for rule in listed):
                raise RefusedError(
                    f"{target.authority} leads to {address}, which no rule names alone: it belongs to this machine, "
                    "to its neighbours or to a metadata service"
                )
        elif not is_public(address) and not listed:
            raise RefusedError(f"{target.authority} leads to {address}, which is not public and not listed")

    def known_address(self, name: str) -> Address | None:
        """Returns the address to which the policy pins a host name, or None."""
        return self._hosts.get(name)

    def _check_denials(self, target: Target) -> None:
        for rule in self._deny:
            fits = (
                rule.fits_name(target.host) if target.address is None else rule.fits_address(target.address)
            )

            if fits and rule.denies_port(target.port):
                raise RefusedError(f"{target.authority} is denied by the rule {rule.text!r}")

    def _rule_for(self, target: Target) -> Rule | None:
        for rule in self._allow:
            fits = (
                rule.fits_name(target.host) if target.address is None else rule.fits_address(target.address)
            )

            if fits and rule.allows_port(target.port):
                return rule

        return None

    def _is_of_the_internet(self, target: Target) -> bool:
        if target.port not in USUAL_PORTS:
            return False

        if target.address is not None:
            return True

        _, dot, last = target.host.rpartition(".")
        return bool(dot) and last not in _PRIVATE_NAMES
