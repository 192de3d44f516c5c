"""What the tests of the native routes start from: a client of the owner, and a sandbox of its own for each test."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.routing import BaseRoute
from tests.conftest import RunningServer

from fumehood.server.app import create_app
from fumehood.server.assembly import open_services
from fumehood.server.settings import ServerSettings

from .dialect_scenes import NewCaller, Scene, routes_of
from .dialects import ALL, Caller, Dialect
from .walking import leaves

_SECONDS = 60


@pytest.fixture
def api(server: Any) -> Iterator[httpx2.Client]:
    """A client with the owner's token."""
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=_SECONDS) as client:
        yield client


@pytest.fixture
def place(api: httpx2.Client) -> Iterator[str]:
    """The address of a sandbox that nobody else uses."""
    answer = api.post("/v1/sandboxes", json={})
    assert answer.status_code == 201, answer.text
    path = f"/v1/sandboxes/{answer.json()['id']}"
    yield path
    api.delete(path)


@pytest.fixture
def other(server: Any, api: httpx2.Client) -> Iterator[httpx2.Client]:
    """A client with a key of somebody else."""
    made = api.post("/v1/keys", json={"name": "somebody else"})
    assert made.status_code == 201, made.text
    headers = {"Authorization": f"Bearer {made.json()['token']}"}

    with httpx2.Client(base_url=server.url, headers=headers, timeout=_SECONDS) as client:
        yield client


@pytest.fixture
def run(api: httpx2.Client, place: str) -> Callable[..., dict[str, Any]]:
    """Runs code in the sandbox and gives the execution."""

    def run_code(code: str, **given: Any) -> dict[str, Any]:
        answer = api.post(f"{place}/executions", json={"code": code, **given})
        assert answer.status_code == 200, answer.text
        execution: dict[str, Any] = answer.json()
        return execution

    return run_code


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[BaseRoute]:
    """The routes of a server that speaks every dialect."""
    folder = tmp_path_factory.mktemp("routes") / "state"
    settings = ServerSettings(state_folder=str(folder), pool_size=0, token="t" * 20)

    async def collect() -> list[BaseRoute]:
        async with open_services(settings) as services:
            return list(leaves(create_app(services).routes))

    return asyncio.run(collect())


@pytest.fixture(scope="module")
def nothing_left(server: Any) -> Iterator[None]:
    """Ends what requests that were not meant well have made all the same."""
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=_SECONDS) as client:
        before = {item["id"] for item in client.get("/v1/sandboxes").json()["items"]}
        yield

        for item in client.get("/v1/sandboxes", params={"limit": 1000}).json()["items"]:
            if item["id"] not in before:
                client.delete(f"/v1/sandboxes/{item['id']}")


@pytest.fixture(scope="session")
def dialect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that speaks every dialect, also by host names, takes small bodies, and must end well."""
    folder = tmp_path_factory.mktemp("dialects") / "state"
    running = RunningServer(
        folder,
        pool_size=2,
        domain="boxes.test",
        max_sandboxes=60,
        max_body_bytes=1 << 20,
        max_upload_bytes=2 << 20,
    )
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def caller(dialect_server: RunningServer) -> Iterator[NewCaller]:
    """Makes those who speak a dialect with a token."""
    made: list[Caller] = []

    def make(dialect: Dialect, token: str) -> Caller:
        made.append(Caller(dialect_server, dialect, token))
        return made[-1]

    yield make

    for one in made:
        one.client.close()


@pytest.fixture(scope="module", params=ALL, ids=lambda dialect: dialect.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    """Each dialect in its turn."""
    chosen: Dialect = request.param
    return chosen


@pytest.fixture(scope="module")
def scene(dialect_server: RunningServer, dialect: Dialect, caller: NewCaller) -> Iterator[Scene]:
    """Two keys that speak the dialect."""
    made = Scene(dialect_server, dialect, caller)
    yield made

    # Control of all that was tried: what was made is still its owner's to end.
    for holder, ids in ((made.owner, made.ids), (made.other, made.own)):
        dialect.unmake(holder, ids)


@pytest.fixture(scope="module")
def of_dialect(routes: list[BaseRoute], dialect: Dialect) -> list[BaseRoute]:
    """The routes of the dialect that have a path."""
    return routes_of(routes, dialect.name)


@pytest.fixture(scope="module")
def nothing_left_of_dialects(dialect_server: RunningServer) -> Iterator[None]:
    """End what odd requests have made all the same."""
    yield

    with httpx2.Client(base_url=dialect_server.url, headers=dialect_server.headers, timeout=30) as client:
        for item in client.get("/v1/sandboxes", params={"limit": 1000}).json()["items"]:
            client.delete(f"/v1/sandboxes/{item['id']}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds eight megabytes."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small filesystem")

    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
