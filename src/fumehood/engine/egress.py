"""The egress of one living sandbox: streams for the connections that its init accepts, served by the gateway.

Init requests a stream by an event; the host makes a socket pair, gives init one end, and uses the other. Number and
rate of connections are bounded here, whatever the sandbox sends: excess ones wait in the sandbox.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, ClassVar

from fumehood import failpoints
from fumehood.egress.gateway import Gateway, Route
from fumehood.egress.proxy_connection import serve
from fumehood.engine.channel import open_pair
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.values.network import EgressRecord, Network
from fumehood.values.sandbox import Isolation
from fumehood_wire.frames import ProtocolError
from fumehood_wire.init_messages import MAX_PROXY_CONNECTIONS

_MAX_OUTSTANDING = 256
_PER_SECOND = 100.0
_AT_ONCE = 200

Ask = Callable[..., Awaitable[tuple[Any, bytes]]]


def route_envs(route: Route) -> dict[str, str]:
    """Returns the environment variables of a sandbox with this route."""
    # Without it Node ignores the proxy; with it each start of Node takes 60 ms more.
    node = {} if route.network.level == "none" else {"NODE_USE_ENV_PROXY": "1"}
    return {**node, **route.envs}


def _most_of_all() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8


class LiveEgress:
    """All outgoing connections of a sandbox.

    Args:
        sandbox_id: The sandbox's id.
        ask: Sends requests to init, without counting as a use of the sandbox.
        broken: Called when init requests more streams than it may.
        on_decision: Called with each decision about a connection.
    """

    # Counts the connections of all sandboxes together: each takes two descriptors of this process.
    _all_carried: ClassVar[int] = 0

    def __init__(
        self,
        sandbox_id: str,
        ask: Ask,
        broken: Callable[[ProtocolError], None],
        on_decision: Callable[[EgressRecord], None] = lambda _: None,
    ) -> None:
        self._ask = ask
        self._broken = broken
        self._gateway = Gateway(sandbox_id)
        self._gateway.journal.on_decision = on_decision
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_PROXY_CONNECTIONS)
        self._loop = asyncio.get_running_loop()
        # The virtual time of the rate limit: when the last admitted connection would have been due.
        self._paced_until = 0.0

    @property
    def route(self) -> Route:
        """The rules in force."""
        return self._gateway.route

    @property
    def network(self) -> Network:
        """The network, without its secrets."""
        return self._gateway.route.network.without_secrets()

    @property
    def records(self) -> tuple[EgressRecord, ...]:
        """The decisions so far, the oldest first."""
        return self._gateway.records

    def use(self, route: Route) -> None:
        """Applies new rules from now on; connections that they do not allow are closed."""
        self._gateway.use(route)

    def rename(self, sandbox_id: str) -> None:
        """Changes the sandbox's id."""
        self._gateway.journal.rename(sandbox_id)

    def note_open(self, connection_id: int) -> None:
        """Handles a connection that init has accepted."""
        if len(self._tasks) >= 2 * _MAX_OUTSTANDING:
            self._broken(ProtocolError("order", "more connections to the proxy than there can be"))
            return

        # Connections that init has closed may still be dialled here: excess ones are dropped.
        is_too_many = len(self._tasks) >= _MAX_OUTSTANDING
        task = self._loop.create_task(
            self._drop(connection_id) if is_too_many else self._serve(connection_id)
        )
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def close(self) -> None:
        """Closes all connections, after the end of the sandbox."""
        for task in list(self._tasks):
            task.cancel()

    def describe(self, isolation: Isolation) -> Isolation:
        """Returns the sandbox's isolation, with its egress in the description of the network layer."""
        level = self._gateway.route.network.level

        if level == "none":
            return isolation

        layers = tuple(
            replace(layer, why=f"{layer.why}; the egress proxy is the only way out: {level}")
            if layer.name == "network"
            else layer
            for layer in isolation.layers
        )
        return replace(isolation, layers=layers)

    async def _serve(self, connection_id: int) -> None:
        await asyncio.sleep(self._pace())

        async with self._room:
            if LiveEgress._all_carried >= _most_of_all():
                await self._drop(connection_id)
                return

            LiveEgress._all_carried += 1
            try:
                await self._carry(connection_id)
            finally:
                LiveEgress._all_carried -= 1

    async def _carry(self, connection_id: int) -> None:
        try:
            await failpoints.reach("egress.carry", self)
            near, far = open_pair()
        except OSError:
            # This process has no descriptor left; the guest's connection is closed.
            await self._drop(connection_id)
            return

        try:
            await self._ask("carry_egress", fds=(far.fileno(),), connection_id=connection_id)
        except (InitError, InitGoneError):
            near.close()
            return
        except BaseException:
            near.close()
            raise
        finally:
            far.close()

        await serve(self._gateway, near)

    async def _drop(self, connection_id: int) -> None:
        try:
            await self._ask("drop_egress", connection_id=connection_id)
        except (InitError, InitGoneError):
            return

    def _pace(self) -> float:
        """Returns how many seconds the next connection must wait to keep to the allowed rate."""
        now = self._loop.time()
        self._paced_until = max(self._paced_until, now) + 1 / _PER_SECOND
        return max(0.0, self._paced_until - now - _AT_ONCE / _PER_SECOND)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)

        # A failed connection affects no other; its exception is reported to the loop.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "a connection of a sandbox failed", "exception": error, "task": task}
            )
