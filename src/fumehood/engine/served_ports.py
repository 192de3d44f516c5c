"""Ports of one sandbox's loopback on which this host listens: its programs connect, and a caller outside answers.

This is the reverse of `fumehood.engine.ports`. Init accepts the connections and reports each by an event; the caller
that serves the port takes them one after another. Number and rate of connections are bounded here, whatever the sandbox
sends. Bytes from inside do not count as a use of the sandbox, so that a guest cannot prevent its own idle timeout.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fumehood.cancellation import keep
from fumehood.engine.channel import open_pair
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.engine.ports import PortStream
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.port.backend import ByteStream
from fumehood.values.checks import check_integer
from fumehood.values.sandbox import Isolation
from fumehood_wire.frames import ProtocolError
from fumehood_wire.init_messages import MAX_ARRIVALS, MAX_SERVED_PORTS

_PER_SECOND = 20.0
_AT_ONCE = 30

Ask = Callable[..., Awaitable[tuple[Any, bytes]]]


class ServedPorts:
    """All ports of a sandbox on which the host listens.

    Args:
        ask: Sends requests to init, without counting as a use of the sandbox.
        check_alive: Raises when the sandbox has ended.
        broken: Called when init reports connections that cannot exist.
    """

    def __init__(
        self, ask: Ask, check_alive: Callable[[], None], broken: Callable[[ProtocolError], None]
    ) -> None:
        self._ask = ask
        self._check_alive = check_alive
        self._broken = broken
        # The ports on which init was asked to listen, and those on which it listens.
        self._ports: dict[int, _ServedPort] = {}
        self._open: set[int] = set()
        self._streams: set[PortStream] = set()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The ports, in ascending order."""
        return tuple(sorted(self._open))

    async def listen(self, port: int) -> None:
        """Makes init listen on a port of the guest's loopback; does nothing if it already does."""
        check_integer("port", port, low=1, high=65_535)
        self._check_alive()

        if port in self._open:
            return

        # The first connection may arrive together with the reply.
        self._ports.setdefault(port, _ServedPort())
        try:
            await self._ask("listen", port=port)
        except InitGoneError:
            self._check_alive()
            raise
        except InitError as error:
            if port not in self._open:
                self._ports.pop(port, None)

            raise InvalidArgumentError(
                field="port",
                value=port,
                allowed=f"a free port, {MAX_SERVED_PORTS} at most, in a sandbox with a network of its own "
                f"({error.message})",
            ) from None

        self._check_alive()
        self._open.add(port)

    async def accept(self, port: int) -> ByteStream:
        """Waits for the next connection from the guest to a port, and returns its stream; listens first."""
        await self.listen(port)

        while True:
            connection_id = await self._ports[port].next(self._check_alive)
            stream = await self._carried(port, connection_id)

            if stream is not None:
                return stream

    def note_arrival(self, port: int, connection_id: int) -> None:
        """Handles a connection that init has accepted."""
        served = self._ports.get(port)

        if served is None or not served.add(connection_id):
            self._broken(ProtocolError("order", f"more connections to port {port} than there can be"))

    def describe(self, isolation: Isolation) -> Isolation:
        """Returns the sandbox's isolation, with these ports in the description of the network layer."""
        if not self._open:
            return isolation

        ports = ", ".join(map(str, self.numbers))
        layers = tuple(
            replace(
                layer, why=f"{layer.why}; connections to port {ports} of the loopback are answered outside"
            )
            if layer.name == "network"
            else layer
            for layer in isolation.layers
        )
        return replace(isolation, layers=layers)

    def close(self, make_closed_error: Callable[[], FumehoodError]) -> None:
        """Ends all streams after the end of the sandbox, and every wait for one."""
        for stream in list(self._streams):
            stream.note_ended(make_closed_error)

        for served in self._ports.values():
            served.wake()

    async def _carried(self, port: int, connection_id: int) -> ByteStream | None:
        """Returns the stream of a connection; None if it was closed, or the host has no descriptor left for it."""
        try:
            return await self._carry(port, connection_id)
        except InitGoneError:
            self._check_alive()
            raise
        except (InitError, OSError):
            self._begin_dropping(port, connection_id)
            return None
        except BaseException:
            # The caller has left. Init closes what it has carried already once the stream is closed.
            self._begin_dropping(port, connection_id)
            raise

    async def _carry(self, port: int, connection_id: int) -> ByteStream:
        near, far = open_pair()
        stream = PortStream(near, lambda: None, self._check_alive, self._streams.discard)
        self._streams.add(stream)
        try:
            await self._ask("carry_arrival", fds=(far.fileno(),), port=port, connection_id=connection_id)
        except BaseException:
            await stream.close()
            raise
        finally:
            far.close()

        return stream

    def _begin_dropping(self, port: int, connection_id: int) -> None:
        """Has init close a connection in the background; it counts against the bound of its port until then."""
        keep(self._drop(port, connection_id))

    async def _drop(self, port: int, connection_id: int) -> None:
        with suppress(InitError, InitGoneError):
            await self._ask("drop_arrival", port=port, connection_id=connection_id)


class _ServedPort:
    """The connections to one port that were not taken yet."""

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._arrived = asyncio.Event()
        # The virtual time of the rate limit: when the last taken connection would have been due.
        self._paced_until = 0.0

    def add(self, connection_id: int) -> bool:
        """Queues the number of a connection; returns False if more wait than init may report."""
        self._waiting.append(connection_id)
        self._arrived.set()
        return len(self._waiting) <= MAX_ARRIVALS

    async def next(self, check_alive: Callable[[], None]) -> int:
        """Waits for a connection, and returns its number."""
        while not self._waiting:
            check_alive()
            self._arrived.clear()
            await self._arrived.wait()

        connection_id = self._waiting.popleft()
        try:
            await asyncio.sleep(self._pace())
        except BaseException:
            # A caller that stopped waiting leaves the connection to the next one.
            self._waiting.appendleft(connection_id)
            self._arrived.set()
            raise

        return connection_id

    def wake(self) -> None:
        """Wakes all waiting tasks, so that they check whether the sandbox has ended."""
        self._arrived.set()

    def _pace(self) -> float:
        """Returns how many seconds the next connection must wait to keep to the allowed rate."""
        now = asyncio.get_running_loop().time()
        self._paced_until = max(self._paced_until, now) + 1 / _PER_SECOND
        return max(0.0, self._paced_until - now - _AT_ONCE / _PER_SECOND)
