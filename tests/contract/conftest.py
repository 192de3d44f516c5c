"""The contract suite runs each test on `Sandbox` and on `AsyncSandbox`, in this process, over HTTP, and on a cluster.

`Blocking` makes the asynchronous face look like the synchronous one, so each promise is written down once.
Its loop is not the engine's, which proves on the way that verbs may be awaited from any loop.

There are four combinations without a cluster. `make test` runs each test on two of them, which have all four parts:
`Sandbox` in this process, and `AsyncSandbox` over HTTP. The synchronous class is written by a tool from the
asynchronous one, so that the other two hardly differ; `make test-all` runs them as well, and `make quick` the first
alone. What the guest alone decides, as what a cell of R prints, is marked so (`in_guest`) and asked over HTTP alone:
that way has all the others' parts but the synchronous class. Tests of files in `OWN_LOOP`, in which the loop of the
caller matters, also run on `AsyncSandbox` in this process. The fifth is `AsyncSandbox` at a server of a cluster: `make
test-cluster` runs it, and `make test` a part of it (`tests/cluster/test_cluster.py`).
"""

from __future__ import annotations

import asyncio
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fumehood import AsyncSandbox, Sandbox

FOLDER = Path(__file__).parent
# What a sandbox in this process promises as well: no lifetime unless one is asked for.
UNBOUNDED: dict[str, object] = {
    "sandbox_seconds": 0,
    "max_sandbox_seconds": 0,
    "dialects": "",
    "max_network": "internet",
    "private_networks": "127.0.0.1",
}
COMBINATIONS = ("sync", "async-http", "async", "sync-http", "async-cluster")
REMOTE = ("async-http", "sync-http", "async-cluster")
_CHOSEN = os.environ.get("FACES", "sync,async-http").split(",")
# From the caller to the guest, in a run that chooses none.
_LONGEST_WAY = "async-http"
# Streams, callbacks, questions and cancellation cross from the engine's loop to the caller's.
OWN_LOOP = (
    "test_run_code.py",
    "test_tools.py",
    "test_questions.py",
    "test_interrupt.py",
    "test_lifecycle.py",
)


class Blocking:
    """An object of the asynchronous API, driven from synchronous code."""

    def __init__(self, async_impl: Any, runner: asyncio.Runner) -> None:
        self.async_impl = async_impl
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        return self._wrap(getattr(self.async_impl, name))

    def __enter__(self) -> Blocking:
        self.runner.run(_awaited(self.async_impl.__aenter__()))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.runner.run(_awaited(self.async_impl.__aexit__(*exc_info)))

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self.async_impl)

    def __next__(self) -> Any:
        try:
            return self._wrap(self.runner.run(_awaited(self.async_impl.__anext__())))
        except StopAsyncIteration:
            raise StopIteration from None

    def _wrap(self, value: Any) -> Any:
        if inspect.isasyncgen(value):
            return self._iterate(value)

        if inspect.iscoroutine(value):
            return self._wrap(self.runner.run(value))

        if inspect.isclass(value):
            return value

        if inspect.ismethod(value) or inspect.isfunction(value):
            return lambda *args, **kwargs: self._wrap(value(*map(_bare, args), **kwargs))

        if isinstance(value, list):
            return [self._wrap(item) for item in value]

        if type(value).__name__.startswith("Async"):
            return Blocking(value, self.runner)

        return value

    def _iterate(self, items: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self.runner.run(_awaited(items.__anext__()))
                except StopAsyncIteration:
                    return
        finally:
            if inspect.isasyncgen(items):
                self.runner.run(_awaited(items.aclose()))


def _bare(argument: Any) -> Any:
    return argument.async_impl if isinstance(argument, Blocking) else argument


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


class Face:
    """One of the two faces of the API.

    Args:
        name: The class, and where sandboxes live: one of `COMBINATIONS`.
        runner: The loop of `AsyncSandbox`.
    """

    def __init__(self, name: str, runner: asyncio.Runner) -> None:
        self.name = name
        self.is_sync = "async" not in name
        self.is_remote = name in REMOTE
        self.runner = runner
        self._opened: list[Any] = []

    def open(self, *args: Any, **kwargs: Any) -> Any:
        """Start a sandbox; it is killed at the end of the test."""
        sandbox = self._class("create")(*args, **kwargs)
        self._opened.append(sandbox)
        return sandbox

    def connect(self, sandbox_id: str) -> Any:
        return self._class("connect")(sandbox_id)

    def list(self) -> Any:
        return self._class("list")()

    def close(self) -> None:
        for sandbox in self._opened:
            sandbox.kill()

    def _class(self, verb: str) -> Callable[..., Any]:
        if self.is_sync:
            return getattr(Sandbox, verb)

        return getattr(Blocking(AsyncSandbox, self.runner), verb)


@contextmanager
def open_face(combination: str) -> Iterator[Face]:
    with asyncio.Runner() as runner:
        face = Face(combination, runner)
        yield face
        face.close()


@pytest.fixture(scope="session")
def unbounded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that promises what a sandbox in this process does: no lifetime unless one is asked for."""
    from tests.conftest import PRELOAD, RunningServer

    state = tmp_path_factory.mktemp("contract")
    running = RunningServer(state, pool_size=2, preload=PRELOAD, **UNBOUNDED)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def cluster_server() -> Iterator[Any]:
    """A server like `unbounded_server`, of a cluster of one machine whose host is on this machine's network."""
    from tests.cluster.machines import Cluster, missing

    if why := missing():
        pytest.skip(why)

    with tempfile.TemporaryDirectory(prefix="fh-", dir="/tmp") as folder:
        cluster = Cluster(Path(folder), 1, host_is_here=True, **UNBOUNDED)
        yield cluster.server
        cluster.close()


@pytest.fixture(params=COMBINATIONS)
def face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    if request.param in REMOTE:
        # The very same programs; only where sandboxes live is said outside.
        name = "cluster_server" if "cluster" in request.param else "unbounded_server"
        server = request.getfixturevalue(name)
        monkeypatch.setenv("FUMEHOOD_URL", server.url)
        monkeypatch.setenv("FUMEHOOD_API_KEY", server.token)

    with open_face(request.param) as face:
        yield face


@pytest.fixture
def sync_face() -> Iterator[Face]:
    with open_face("sync") as face:
        yield face


@pytest.fixture
def async_face() -> Iterator[Face]:
    with open_face("async") as face:
        yield face


@pytest.fixture
def sandbox(face: Face) -> Any:
    return face.open()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the combinations that were not chosen.

    Over HTTP that is also what can only be asked of an engine in the same process: it is marked so, and then both faces
    are asked in this process.
    """
    items[:] = [item for item in items if _is_chosen(item)]


def _is_chosen(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    combination = callspec.params.get("face") if callspec and item.path.parent == FOLDER else None

    if combination is None:
        return True

    is_in_guest = item.get_closest_marker("in_guest") is not None
    is_in_process = item.get_closest_marker("in_process") is not None
    # The one is asked over HTTP alone, the other never: a test with both would run nowhere.
    assert not (is_in_guest and is_in_process), f"{item.nodeid} is marked in_guest and in_process"

    if is_in_guest and "FACES" not in os.environ:
        return combination == _LONGEST_WAY

    is_remote = combination in REMOTE

    if is_in_process and is_remote:
        return False

    if any(mark.args[0] == "face" for mark in item.iter_markers("parametrize")):
        # The test has chosen itself.
        return not is_remote or any(chosen in REMOTE for chosen in _CHOSEN)

    return combination in _CHOSEN or (
        combination == "async" and "async-http" in _CHOSEN and (is_in_process or item.path.name in OWN_LOOP)
    )
