"""The quota of sandboxes across servers that share their machines: however they meet, no key keeps more than it may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fumehood.errors import HostUnavailableError, QuotaError
from fumehood.port.backend import Backend
from fumehood.server.allowance import Allowance, Spending
from fumehood.server.metrics import ServerMetrics
from fumehood.server.principal import Principal
from fumehood.server.settings import ServerSettings
from fumehood.server.tenancy import Owners, TenantBackend
from fumehood.storage.policy import KeyPolicy
from fumehood.values.limits import Limits
from fumehood.values.network import Network
from fumehood.values.requests import ForkRequest, LoadRequest, SandboxSpec

_Make = Callable[[TenantBackend], Awaitable[Any]]

MAKES: dict[str, tuple[_Make, int]] = {
    "create": (lambda tenant: tenant.create(SandboxSpec()), 1),
    "fork": (lambda tenant: tenant.fork("parent", ForkRequest(count=2)), 2),
    "load": (lambda tenant: tenant.load(LoadRequest(spec=SandboxSpec()), "archive"), 1),
}


class Machines:
    """Plays what several servers share: it makes sandboxes when as many have asked as are to meet."""

    def __init__(self, meeting: int) -> None:
        self.alive: set[str] = {"parent"}
        self.met = asyncio.Barrier(meeting)
        self.silent = False

    async def list(self, _owner: str | None = None) -> tuple[str, ...]:
        if self.silent and len(self.alive) > 1:
            raise HostUnavailableError(host="one", reason="it does not answer", outcome_unknown=False)

        return tuple(self.alive)

    async def info(self, sandbox_id: str) -> Any:
        return SimpleNamespace(id=sandbox_id, owner="key", limits=Limits(), network=Network())

    async def create(self, _spec: SandboxSpec) -> Any:
        return (await self._make(1))[0]

    async def fork(self, _parent: str, request: ForkRequest) -> Any:
        return SimpleNamespace(items=await self._make(request.count))

    async def load(self, *_: object) -> Any:
        return SimpleNamespace(sandbox=(await self._make(1))[0])

    async def kill(self, sandbox_id: str, *, wait: bool = True) -> bool:
        self.alive.discard(sandbox_id)
        return True

    async def _make(self, count: int) -> tuple[Any, ...]:
        # All servers have counted by now, and found a place free.
        await self.met.wait()
        made = tuple(f"{len(self.alive) + number}" for number in range(count))
        self.alive.update(made)
        return tuple([await self.info(name) for name in made])


def server(machines: Machines, maximum: int, settings: ServerSettings) -> TenantBackend:
    """A server's port for one key; each server counts by itself."""
    ledger = SimpleNamespace(add=lambda *_, **__: None, begin_execution=lambda *_: None)
    cpu = SimpleNamespace(open=lambda *_: None, note_work=lambda *_: None)
    backend = cast("Backend", machines)
    principal = Principal(key_id="key", policy=KeyPolicy(max_sandboxes=maximum))
    spending = Spending(cast("Any", ledger), ServerMetrics(), cast("Any", cpu))
    return TenantBackend(
        backend, Owners(backend), principal, Allowance(principal, spending, backend, settings)
    )


def shared() -> ServerSettings:
    """The settings of a server whose machines have others too."""
    return ServerSettings(host_socket="/run/host.sock")


@pytest.mark.parametrize("verb", MAKES)
def test_servers_that_make_the_last_one_at_once_keep_no_more_than_one_may(verb: str) -> None:
    """All have counted before any has made one. What is too many is ended, and its caller is refused."""

    async def work() -> None:
        make, count = MAKES[verb]
        machines = Machines(meeting=4)
        maximum = len(machines.alive) + count
        servers = [server(machines, maximum, shared()) for _ in range(4)]
        results = await asyncio.gather(*(make(one) for one in servers), return_exceptions=True)
        refused = [result for result in results if isinstance(result, QuotaError)]
        assert len(machines.alive) <= maximum
        assert len(machines.alive) == 1 + count * (4 - len(refused))
        assert refused
        assert {result.maximum for result in refused} == {maximum}

        # The place is not lost: one that asks alone gets it.
        machines.met = asyncio.Barrier(1)

        if len(machines.alive) == 1:
            await make(servers[0])

        assert len(machines.alive) == maximum

    asyncio.run(work())


def test_a_server_with_machines_of_its_own_counts_once() -> None:
    """The control: without the second count, each server that meets others here keeps its own."""

    async def work() -> None:
        machines = Machines(meeting=3)
        servers = [server(machines, 2, ServerSettings()) for _ in range(3)]
        await asyncio.gather(*(one.create(SandboxSpec()) for one in servers))
        assert len(machines.alive) == 4

    asyncio.run(work())


def test_a_sandbox_that_cannot_be_counted_is_not_kept() -> None:
    """The machines stop answering between its creation and the second count: its caller never hears of it."""

    async def work() -> None:
        machines = Machines(meeting=1)
        machines.silent = True

        with pytest.raises(HostUnavailableError):
            await server(machines, 5, shared()).create(SandboxSpec())

        assert machines.alive == {"parent"}

    asyncio.run(work())
