"""Runs that a server of a cluster sends to a host daemon together: each is its own, whatever the others do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

import httpx2
import pytest

from fumehood.client.backend import HttpBackend, connect_to_host
from fumehood.client.connection import Carrier, ServerAddress
from fumehood.cluster.grouping import Grouping
from fumehood.errors import HostUnavailableError, HostVersionError, InvalidArgumentError, TemplateError
from fumehood.values.limits import Limits
from fumehood.values.requests import ExecuteRequest, SandboxSpec
from fumehood.values.stateless import StatelessReply, StatelessRequest

from .ends import kill

DEADLINE_SECONDS = 60

LOOP = "print('on', flush=True)\nwhile True: pass"


def asked(code: str, **spec: Any) -> StatelessRequest:
    """A run with bounds that no test reaches."""
    return StatelessRequest(
        spec=SandboxSpec(limits=Limits(), **spec), code=ExecuteRequest(code=code, wall_seconds=600)
    )


@asynccontextmanager
async def grouping(host: Any) -> AsyncIterator[tuple[Grouping, HttpBackend]]:
    """The runs of a host daemon, and another way to it."""
    backend = connect_to_host(str(host.socket))

    try:
        yield Grouping(backend, asyncio.get_running_loop()), backend
    finally:
        await backend.aclose()


def test_runs_that_begin_together_are_one_call(start_host: Callable[..., Any]) -> None:
    """Errors are of their own run; a run without end delays none, and ends alone when its caller leaves."""

    async def scene() -> None:
        async with grouping(start_host()) as (runs, backend):
            endless = asyncio.create_task(runs.run(asked(LOOP)))
            codes = ["6 * 7", "1 / 0", f"print('{'x' * 40_000}')"]
            work = [
                *(runs.run(asked(code)) for code in codes),
                runs.run(asked("1", template="missing")),
            ]
            answers = await asyncio.gather(*work, return_exceptions=True)
            right, wrong, large, refused = answers
            assert isinstance(right, StatelessReply)
            assert right.execution.text == "42"
            assert isinstance(wrong, StatelessReply)
            assert wrong.execution.error is not None
            assert wrong.execution.error.name == "ZeroDivisionError"
            assert isinstance(large, StatelessReply)
            assert "".join(large.execution.logs.stdout).endswith("x\n")
            assert isinstance(refused, TemplateError), refused
            # The large one travels alone.
            assert runs.calls == 1

            # The group goes on with the endless one, and with one that begins later in another group.
            later = [asyncio.create_task(runs.run(asked(code))) for code in (LOOP, "'late'")]
            assert (await later[1]).execution.text == "'late'"
            assert runs.calls == 2
            assert len(await backend.list()) == 2
            endless.cancel()
            await until_lives(backend, 1)  # that of the caller that left has ended
            assert not later[0].done()
            later[0].cancel()
            await until_lives(backend, 0)  # so has the other one

    asyncio.run(scene())


NESTED = """
from IPython.display import display
class Deep:
    def _repr_mimebundle_(self, **_):
        value = []
        for _ in range(DEPTH):
            value = [value]
        return {"application/json": value}
Deep()
"""


def test_a_guest_s_result_harms_no_other_run_of_its_group(start_host: Callable[..., Any]) -> None:
    """JSON of any depth, and more than the loop should parse at once, is the matter of its own run."""

    async def scene() -> None:
        async with grouping(start_host()) as (runs, _):
            deep = [asked(NESTED.replace("DEPTH", str(depth))) for depth in (300, 900, 5000)]
            many = asked("from IPython.display import JSON\nJSON({'zeros': [0] * 300_000})")
            others = [asked("6 * 7") for _ in range(3)]
            work = [runs.run(one) for one in (*deep, many, *others)]
            answers = await asyncio.gather(*work, return_exceptions=True)
            assert runs.calls == 1
            assert [one.execution.text for one in answers[-3:]] == ["42"] * 3, answers

    asyncio.run(scene())


def test_one_of_a_group_ends_alone(start_host: Callable[..., Any]) -> None:
    """The caller of one leaves: its sandbox ends, and the others of the same call go on."""

    async def scene() -> None:
        async with grouping(start_host()) as (runs, backend):
            both = [asyncio.create_task(runs.run(asked(LOOP))) for _ in range(2)]
            await until_lives(backend, 2)  # both run
            assert runs.calls == 1
            both[0].cancel()
            await until_lives(backend, 1)  # one has ended
            assert not both[1].done()
            both[1].cancel()
            await until_lives(backend, 0)  # the last one takes the call along

    asyncio.run(scene())


def test_a_host_that_dies_leaves_the_outcome_unknown(start_host: Callable[..., Any]) -> None:
    """What had an answer keeps it; of the others none is said to be not begun. What comes later was not begun."""

    async def scene() -> None:
        host = start_host()

        async with grouping(host) as (runs, backend):
            endless = [asyncio.create_task(runs.run(asked(LOOP))) for _ in range(2)]
            answered = asyncio.create_task(runs.run(asked("1")))
            assert (await answered).execution.text == "1"
            await until_lives(backend, 2)  # both run
            kill(host)
            lost = await asyncio.gather(*endless, return_exceptions=True)
            assert [(type(one), one.outcome_unknown) for one in lost] == [(HostUnavailableError, True)] * 2
            late = await asyncio.gather(*(runs.run(asked("1")) for _ in range(2)), return_exceptions=True)
            assert [(type(one), one.outcome_unknown) for one in late] == [(HostUnavailableError, False)] * 2

    asyncio.run(scene())


def test_groups_are_bounded_and_named_once(start_host: Callable[..., Any]) -> None:
    """More runs than a group may have, and the name of one that runs, are refused as a whole."""
    host = start_host()
    run = {"request": {"code": LOOP, "timeout_seconds": 600}, "request_id": "r"}

    with httpx2.Client(
        transport=httpx2.HTTPTransport(uds=str(host.socket)), base_url="http://host", timeout=60
    ) as api:
        name = "0" * 24
        assert api.post("/v1/host/runs", json={"name": name, "runs": [run] * 65}).status_code == 422

        with api.stream("POST", "/v1/host/runs", json={"name": name, "runs": [run]}) as first:
            assert first.status_code == 200
            again = api.post("/v1/host/runs", json={"name": name, "runs": [run]})
            assert (again.status_code, again.json()["code"]) == (422, InvalidArgumentError.code)
            assert api.delete(f"/v1/host/runs/{name}/63").status_code == 204
            assert api.delete(f"/v1/host/runs/{name}/64").status_code == 422


class HeldBack(Carrier, httpx2.AsyncBaseTransport):
    """Carries requests to a host daemon; the one that begins runs waits until one that ends a run was answered."""

    def __init__(self, socket_path: str) -> None:
        self._way = httpx2.AsyncHTTPTransport(uds=socket_path)
        self.begun = asyncio.Event()
        self._ended = asyncio.Event()

    def transport(self) -> httpx2.AsyncBaseTransport:
        return self

    async def open_socket(self) -> socket.socket:
        raise OSError("no tunnels")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            self.begun.set()
            await self._ended.wait()

        answer = await self._way.handle_async_request(request)

        if request.method == "DELETE":
            self._ended.set()

        return answer

    async def aclose(self) -> None:
        await self._way.aclose()


def test_the_end_of_a_run_may_overtake_its_beginning(start_host: Callable[..., Any]) -> None:
    """The caller of one leaves while the group is on its way: that run never begins, and the other is answered."""

    async def scene() -> None:
        host = start_host()
        held, loop = HeldBack(str(host.socket)), asyncio.get_running_loop()
        backend = HttpBackend(ServerAddress(url="http://host", is_host=True), loop, held)
        try:
            runs = Grouping(backend, loop)
            left, other = (asyncio.create_task(runs.run(asked(code))) for code in (LOOP, "6 * 7"))
            await held.begun.wait()
            left.cancel()
            assert (await asyncio.wait_for(other, DEADLINE_SECONDS)).execution.text == "42"
            assert runs.calls == 1
            # By the end of another run, the one that was left would long have a sandbox.
            await runs.run(asked("1"))
            await until_lives(backend, 0)
        finally:
            await backend.aclose()

    asyncio.run(scene())


def test_a_host_of_an_earlier_version_runs_what_it_knows(start_host: Callable[..., Any]) -> None:
    """A route and a field that came later are refused by an error with both versions; the rest goes on as it did."""

    async def scene() -> None:
        async with grouping(start_host(is_older=True)) as (runs, backend):
            assert (await backend.run_once(asked("6 * 7"))).execution.text == "42"

            with pytest.raises(HostVersionError, match=r"does not know POST /v1/host/runs") as caught:
                await runs.run(asked("6 * 7"))

            ours = metadata.version("fumehood")
            assert (caught.value.host_version, caught.value.server_version) == (ours, ours)
            assert "restart its `fumehood host`" in caught.value.hint
            assert caught.value.retry_safe
            info = await backend.create(SandboxSpec())

            with pytest.raises(HostVersionError, match=r"on_host_loss of POST /v1/sandboxes"):
                await backend.create(SandboxSpec(on_host_loss="restore"))

            assert [one.id for one in await backend.list()] == [info.id]

    asyncio.run(scene())


async def until_lives(backend: HttpBackend, count: int) -> None:
    """Waits until so many sandboxes live."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(await backend.list()) != count:
            await asyncio.sleep(0.02)
