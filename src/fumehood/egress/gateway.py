"""The way out of one sandbox: its policy, what it has used, and the connections that are under way.

Each connection of the guest is a connection of its own; here is what they have in common. A change of the policy ends
those that it would not let through any more.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from fumehood.bounds import MIB
from fumehood.egress.dialling import Resolver
from fumehood.egress.interception import Authority
from fumehood.egress.journal import Journal
from fumehood.egress.policy import Policy, RefusedError
from fumehood.values.domain_names import Address, Target
from fumehood.values.network import EgressRecord, Network, SecretPlace

_AT_ONCE_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A network as the host will carry it out.

    Attributes:
        network: As its owner wrote it.
        more_rules: Rules that its presets stand for.
        secrets: Headers by the place that they go to.
        authority: What vouches inside the sandbox for places that secrets go to over TLS.
        trust: What the proxy itself trusts at those places.
        envs: What programs inside need to know of it.
        bundle: The certificates that they are to trust; None: those of the system.
    """

    network: Network
    more_rules: Sequence[str] = ()
    secrets: Mapping[SecretPlace, Mapping[str, str]] = field(default_factory=dict, repr=False)
    authority: Authority | None = field(default=None, repr=False)
    trust: ssl.SSLContext | None = field(default=None, repr=False)
    envs: Mapping[str, str] = field(default_factory=dict)
    bundle: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """How long one connection may take.

    Attributes:
        head_seconds: Until it is known what it wants.
        idle_seconds: Without a byte in either direction.
        bytes_per_second: In the long run, all connections of a sandbox together.
    """

    head_seconds: float = 15.0
    idle_seconds: float = 300.0
    bytes_per_second: float = 64 * MIB


class Judged(Protocol):
    """A connection that a change of the policy concerns."""

    def judge_again(self) -> None:
        """Ends it unless the policy still allows it."""


class Gateway:
    """The way out of one sandbox.

    Args:
        sandbox_id: Whose.
        limits: How long and how much.
    """

    def __init__(self, sandbox_id: str, limits: ProxyLimits | None = None) -> None:
        self.limits = limits or ProxyLimits()
        self.journal = Journal(sandbox_id)
        self.resolver = Resolver()
        self.route = Route(network=Network())
        self.policy = Policy(self.route.network)
        self._connections: set[Judged] = set()
        self._bytes_left = self.route.network.max_bytes
        self._bytes_moved = 0
        # When all bytes so far would have come through, at the pace that is allowed.
        self._paced_until = 0.0

    @property
    def records(self) -> tuple[EgressRecord, ...]:
        """What was decided, the oldest first."""
        return self.journal.records

    def use(self, route: Route) -> None:
        """Decides by this from now on, also about what is under way."""
        self.route = route
        self.policy = Policy(route.network, route.more_rules)
        self._bytes_left = route.network.max_bytes - self._bytes_moved

        for proxied in list(self._connections):
            proxied.judge_again()

    @contextmanager
    def judging(self, connection: Judged) -> Iterator[None]:
        """Asks a connection that is under way to judge itself again whenever the policy changes."""
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)

    async def count(self, byte_count: int) -> None:
        """Takes note of bytes that went through, and waits while they are more than all connections may move together.

        Raises:
            RefusedError: They were the last ones that the policy allows.
        """
        self._bytes_moved += byte_count
        self._bytes_left -= byte_count
        self.check_budget()
        pace = self.limits.bytes_per_second
        now = asyncio.get_running_loop().time()
        self._paced_until = max(self._paced_until, now) + byte_count / pace
        ahead_seconds = self._paced_until - now - _AT_ONCE_BYTES / pace

        if ahead_seconds > 0:
            await asyncio.sleep(ahead_seconds)

    def check_budget(self) -> None:
        """Raises RefusedError when the policy allows no more bytes."""
        if self._bytes_left <= 0:
            allowed = self.route.network.max_bytes
            raise RefusedError(f"this sandbox has moved all of the {allowed} bytes that its network allows")

    async def addresses_of(self, target: Target) -> list[Address]:
        """Returns the addresses behind an admitted target, each of which was checked.

        Raises:
            RefusedError: One of them must not be dialled; then none is.
            UnreachableError: There is none.
        """
        known = target.address or self.policy.known_address(target.host)
        found = [known] if known is not None else await self.resolver.look_up(target.host)

        for address in found:
            self.policy.admit_address(target, address)

        return found
