"""The gateway of one sandbox: its policy, its usage, its open connections and the log of them.

Each connection of the guest is handled by itself; the gateway holds their common state. A change of the policy closes
connections that it no longer allows. The log keeps the newest decisions; names in it are canonical, or escaped: a
guest cannot forge a line of it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from heapq import merge
from typing import Literal, Protocol

from fumehood.bounds import MIB
from fumehood.egress.dialer import Resolver
from fumehood.egress.interception import Authority
from fumehood.egress.policy import EgressPolicy, RefusedError
from fumehood.text import visible_line
from fumehood.values.domain_names import Address, Target
from fumehood.values.network import EgressRecord, Network, SecretPlace

Kind = Literal["http", "connect", "socks"]

MAX_RECORDS = 1000


class Entry:
    """One allowed connection, counted while it is open."""

    def __init__(self, record: EgressRecord) -> None:
        self._record = record
        self.sent = 0
        self.received = 0

    def note_address(self, address: Address) -> None:
        """Notes the address that was dialled."""
        self._record = replace(self._record, address=str(address))

    @property
    def at(self) -> datetime:
        """The time of the decision."""
        return self._record.at

    @property
    def record(self) -> EgressRecord:
        """The current record of the entry."""
        return replace(self._record, bytes_sent=self.sent, bytes_received=self.received)


class Journal:
    """The decisions of one sandbox's gateway. Denied connections, however many, never displace allowed ones.

    Args:
        sandbox_id: The sandbox.
    """

    def __init__(self, sandbox_id: str) -> None:
        # Called with each decision when it is made.
        self.on_decision: Callable[[EgressRecord], None] = lambda _: None
        self._sandbox_id = sandbox_id
        self._allowed: deque[Entry] = deque(maxlen=MAX_RECORDS)
        self._denied: deque[Entry] = deque(maxlen=MAX_RECORDS)

    @property
    def records(self) -> tuple[EgressRecord, ...]:
        """The kept decisions, the oldest first."""
        entries = merge(self._allowed, self._denied, key=lambda entry: entry.at)
        # With the current id of the sandbox, whatever it was then.
        return tuple(replace(entry.record, sandbox_id=self._sandbox_id) for entry in entries)

    def rename(self, sandbox_id: str) -> None:
        """Changes the id of the sandbox."""
        self._sandbox_id = sandbox_id

    def note_allowed(self, kind: Kind, target: Target, rule: str) -> Entry:
        """Notes a connection that was allowed."""
        return self._add(kind, target.host, target.port, rule, is_allowed=True)

    def note_denied(self, kind: Kind, target: Target, reason: str) -> None:
        """Notes a connection that was denied or closed by the policy."""
        self._add(kind, target.host, target.port, reason, is_allowed=False)

    def note_malformed(self, kind: Kind, asked: str, reason: str) -> None:
        """Notes a request that could not be parsed."""
        self._add(kind, visible_line(asked), 0, reason, is_allowed=False)

    def _add(self, kind: Kind, name: str, port: int, rule: str, *, is_allowed: bool) -> Entry:
        entry = Entry(
            EgressRecord(
                at=datetime.now(UTC),
                sandbox_id=self._sandbox_id,
                kind=kind,
                name=name,
                address=None,
                port=port,
                verdict="allowed" if is_allowed else "denied",
                rule=visible_line(rule),
            )
        )
        (self._allowed if is_allowed else self._denied).append(entry)
        self.on_decision(entry.record)
        return entry


_AT_ONCE_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A network policy with everything that the proxy needs for it.

    Attributes:
        network: The policy of the owner.
        more_rules: The rules of its presets.
        secrets: Headers by destination.
        authority: The certificate authority, inside the sandbox, for destinations of secrets over TLS.
        trust: The certificates that the proxy itself trusts at those destinations.
        envs: The environment variables for programs inside.
        bundle: The certificates for programs inside; None: those of the system.
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
    """The time and rate limits of connections.

    Attributes:
        head_seconds: The time until a connection's request must be complete.
        idle_seconds: The longest time without a byte in either direction.
        bytes_per_second: The average rate of all connections of a sandbox together.
    """

    head_seconds: float = 15.0
    idle_seconds: float = 300.0
    bytes_per_second: float = 64 * MIB


class RecheckedConnection(Protocol):
    """A connection that a change of the policy concerns."""

    def judge_again(self) -> None:
        """Closes the connection unless the policy still allows it."""


class Gateway:
    """The gateway of one sandbox.

    Args:
        sandbox_id: The sandbox.
        limits: The limits of its connections.
    """

    def __init__(self, sandbox_id: str, limits: ProxyLimits | None = None) -> None:
        self.limits = limits or ProxyLimits()
        self.journal = Journal(sandbox_id)
        self.resolver = Resolver()
        self.route = Route(network=Network())
        self.policy = EgressPolicy(self.route.network)
        self._connections: set[RecheckedConnection] = set()
        self._bytes_left = self.route.network.max_bytes
        self._bytes_moved = 0
        # The time at which all bytes so far are within the rate limit.
        self._paced_until = 0.0

    @property
    def records(self) -> tuple[EgressRecord, ...]:
        """The decisions, the oldest first."""
        return self.journal.records

    def use(self, route: Route) -> None:
        """Replaces the policy, also for open connections."""
        self.route = route
        self.policy = EgressPolicy(route.network, route.more_rules)
        self._bytes_left = route.network.max_bytes - self._bytes_moved

        for proxied in list(self._connections):
            proxied.judge_again()

    @contextmanager
    def judging(self, connection: RecheckedConnection) -> Iterator[None]:
        """Registers an open connection, so that it is judged again whenever the policy changes."""
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)

    async def count(self, byte_count: int) -> None:
        """Counts transferred bytes, and waits while they exceed the rate limit of all connections.

        Raises:
            RefusedError: The byte limit of the policy is used up.
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
        """Returns the addresses of an admitted target, each of which was checked.

        Raises:
            RefusedError: An address must not be dialled; then none is.
            UnreachableError: The name has no address.
        """
        known = target.address or self.policy.known_address(target.host)
        found = [known] if known is not None else await self.resolver.look_up(target.host)

        for address in found:
            self.policy.admit_address(target, address)

        return found
