"""The lease of a host daemon and its sandboxes, by a clock of the test's own: the daemon's app, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

from fumehood.daemon.app import ROUTERS, open_host_services
from fumehood.daemon.lease import LEASE_SECONDS
from fumehood.daemon.settings import HostSettings
from fumehood.server.app import assemble_app

RESTORE = {"on_host_loss": "restore"}


class Machine:
    """A daemon, and the clock of its lease."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.api: httpx2.AsyncClient

    async def new(self, body: dict[str, Any] = RESTORE, **asked: str) -> str:
        """Makes a sandbox and returns its id, or the code of the refusal."""
        made = (await self.api.post("/v1/sandboxes", json=body, params=asked)).json()
        return str(made.get("id") or made["code"])

    async def ask(self, **asked: str) -> str:
        """Asks for figures, and returns the token."""
        answer = await self.api.get("/v1/host/figures", params=asked)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["lease"])

    async def come_back(self) -> None:
        """Asks as a server does that has seen the machine among those of the cluster again."""
        token = await self.ask()
        self.seconds += 1
        await self.ask(lease=token)

    async def state_of(self, sandbox_id: str) -> str:
        """Returns "running", or why a call to the sandbox was refused."""
        answer = (await self.api.get(f"/v1/sandboxes/{sandbox_id}")).json()
        return str(answer.get("state") or answer["fields"]["reason"])


def with_machine(state: Path, story: Callable[[Machine], Awaitable[None]]) -> None:
    """Tells a story about a daemon with this folder."""

    async def tell() -> None:
        settings = HostSettings(socket=str(state / "socket"), pool_size=0)

        async with open_host_services(settings, state, lambda: machine.seconds) as services:
            transport = httpx2.ASGITransport(app=assemble_app(services, ROUTERS, ()))

            async with httpx2.AsyncClient(
                transport=transport, base_url="http://host", timeout=60
            ) as machine.api:
                await story(machine)

    machine = Machine()
    asyncio.run(tell())


def test_while_the_lease_is_over_nothing_restorable_runs(tmp_path: Path) -> None:
    """No call finds one, and none is made, until a token came back; other sandboxes are made and live on."""

    async def story(machine: Machine) -> None:
        await machine.ask()
        old, other = await machine.new(), await machine.new({})
        machine.seconds += LEASE_SECONDS + 1
        assert (await machine.state_of(old), await machine.state_of(other)) == ("lost", "running")
        assert await machine.new() == "capacity"
        assert await machine.new({}) != "capacity"
        # A first answer makes the machine fit for new sandboxes, but only a token begins the lease again.
        await machine.ask()
        assert await machine.new() == "capacity"
        await machine.come_back()
        assert await machine.state_of(await machine.new()) == "running"

    with_machine(tmp_path, story)


def test_what_is_new_is_not_lost(tmp_path: Path) -> None:
    """A server that called the machine lost asks late: what others have placed since lives on, and nothing older."""

    async def story(machine: Machine) -> None:
        before = await machine.ask()
        old = await machine.new()
        machine.seconds += LEASE_SECONDS + 1
        await machine.come_back()
        new = await machine.new()
        await machine.ask(lost="true", since=before)
        assert (await machine.state_of(old), await machine.state_of(new)) == ("lost", "running")

        # The clock of the machine stood still while it was away: its lease was never over.
        await machine.ask(lost="true", since=await machine.ask())
        assert await machine.state_of(new) == "lost"

    with_machine(tmp_path, story)


def test_the_lease_does_not_begin_again_over_what_was_lost(tmp_path: Path) -> None:
    """The token comes back before the daemon has looked at its lease."""

    async def story(machine: Machine) -> None:
        await machine.ask()
        old = await machine.new()
        machine.seconds += LEASE_SECONDS + 1
        await machine.ask(lease=await machine.ask())
        assert await machine.state_of(old) == "lost"

    with_machine(tmp_path, story)


def test_a_server_without_a_cluster_ends_a_lease_that_is_over(tmp_path: Path) -> None:
    """The machine has left its cluster, and serves alone from now on."""

    async def story(machine: Machine) -> None:
        await machine.ask()
        old = await machine.new()
        machine.seconds += LEASE_SECONDS + 1
        new = await machine.new(alone="true")
        assert (await machine.state_of(old), await machine.state_of(new)) == ("lost", "running")
        machine.seconds += 10 * LEASE_SECONDS
        assert await machine.state_of(new) == "running"

    with_machine(tmp_path, story)
