"""The contract suite runs each test twice: on `Sandbox`, and on `AsyncSandbox` over a loop of the test's own.

`Blocking` makes the asynchronous face look like the synchronous one, so each promise is written down once.
Its loop is not the engine's, which proves on the way that verbs may be awaited from any loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fumehood import AsyncSandbox, Sandbox


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
    """One of the two faces of the API."""

    def __init__(self, kind: str, runner: asyncio.Runner) -> None:
        self.kind = kind
        self.runner = runner
        self._opened: list[Any] = []

    @property
    def is_sync(self) -> bool:
        return self.kind != "async"

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
def _face(kind: str) -> Iterator[Face]:
    with asyncio.Runner() as runner:
        face = Face(kind, runner)
        yield face
        face.close()


@pytest.fixture(scope="session")
def unbounded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that promises what a sandbox in this process does: no lifetime unless one is asked for."""
    from tests.conftest import RunningServer

    state = tmp_path_factory.mktemp("contract")
    running = RunningServer(
        state,
        pool_size=2,
        sandbox_seconds=0,
        max_sandbox_seconds=0,
        dialects="",
        max_network="internet",
        private_networks="127.0.0.1",
    )
    yield running
    running.stop()


@pytest.fixture(params=["sync", "async", "http"])
def face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    if request.param == "http":
        # The very same programs; only where sandboxes live is said outside.
        server = request.getfixturevalue("unbounded_server")
        monkeypatch.setenv("FUMEHOOD_URL", server.url)
        monkeypatch.setenv("FUMEHOOD_API_KEY", server.token)

    with _face(request.param) as face:
        yield face


@pytest.fixture
def sync_face() -> Iterator[Face]:
    with _face("sync") as face:
        yield face


@pytest.fixture
def async_face() -> Iterator[Face]:
    with _face("async") as face:
        yield face


@pytest.fixture
def sandbox(face: Face) -> Any:
    return face.open()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out over HTTP what can only be asked of an engine in the same process: it is marked so."""
    items[:] = [
        item for item in items if not (item.get_closest_marker("in_process") and _face_of(item) == "http")
    ]


def _face_of(item: pytest.Item) -> object:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("face") if callspec else None
