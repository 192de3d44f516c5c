"""The way out of one living sandbox: streams for the connections that its init takes in, served by the gateway.

Init asks by an event; the host makes a pair of sockets, gives init one end, and reads and writes the other. How many
there are at once and how fast they come is bounded here, whatever the sandbox says: what is too much for now waits in
the sandbox.
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


def _most_of_all() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8


class LiveEgress:
    """All connections of a sandbox to the outside.

    Args:
        sandbox_id: Whose.
        ask: Asks init, without counting as a use of the sandbox.
        broken: Called when init asks for more than it may.
        on_decision: Told of each decision about a connection.
    """

    # Of all sandboxes together: each takes two of the files that this process may open.
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
        # When the last of those that may come at once would have come, at the pace that is allowed.
        self._paced_until = 0.0

    @property
    def route(self) -> Route:
        """What decides now."""
        return self._gateway.route

    @property
    def network(self) -> Network:
        """The network, fit to be shown."""
        return self._gateway.route.network.without_secrets()

    @property
    def records(self) -> tuple[EgressRecord, ...]:
        """What was decided, the oldest first."""
        return self._gateway.records

    def use(self, route: Route) -> None:
        """Decides by this from now on; connections that it would not allow end."""
        self._gateway.use(route)

    def rename(self, sandbox_id: str) -> None:
        """The sandbox is called something else from now on."""
        self._gateway.journal.rename(sandbox_id)

    def note_open(self, connection_id: int) -> None:
        """Init has taken in a connection."""
        if len(self._tasks) >= 2 * _MAX_OUTSTANDING:
            self._broken(ProtocolError("order", "more connections to the proxy than there can be"))
            return

        # Those that init has closed may still be dialled here: what comes on top of too many of them is turned away.
        is_too_many = len(self._tasks) >= _MAX_OUTSTANDING
        task = self._loop.create_task(
            self._drop(connection_id) if is_too_many else self._serve(connection_id)
        )
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def close(self) -> None:
        """The sandbox has ended."""
        for task in list(self._tasks):
            task.cancel()

    def describe(self, isolation: Isolation) -> Isolation:
        """Returns what isolates the sandbox, with the way out that there is."""
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
            # This process has no descriptor left; the guest sees its connection end.
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
        """How long the next one waits, so that in the long run only so many come in a second."""
        now = self._loop.time()
        self._paced_until = max(self._paced_until, now) + 1 / _PER_SECOND
        return max(0.0, self._paced_until - now - _AT_ONCE / _PER_SECOND)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)

        # A fault of ours in one connection is one connection's; it is read once, and told by the loop if it is new.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "a connection of a sandbox failed", "exception": error, "task": task}
            )
