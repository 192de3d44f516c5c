"""Every test of the storage runs on SQLite and on a real PostgreSQL server, and may be a coroutine."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterator

import pytest

from . import postgres

_NUMBERS = itertools.count()


class Clock:
    """Tells the time that a test sets: 2026-11-21 12:00 UTC at first."""

    def __init__(self) -> None:
        self.now = 1_795_262_400.0

    def __call__(self) -> float:
        return self.now


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def postgres_folder() -> Iterator[str]:
    with postgres.running_server() as folder:
        yield folder


@pytest.fixture(scope="session")
def databases() -> list[str]:
    """Names of empty databases of the PostgreSQL server: each is three hundred files, which tests use in turn."""
    return []


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/state/fumehood.db"
        return

    folder = request.getfixturevalue("postgres_folder")
    databases = request.getfixturevalue("databases")

    if not databases:
        databases.append(f"test{next(_NUMBERS)}")
        postgres.new_database(folder, databases[0])

    name = databases.pop()
    yield postgres.address(folder, name)
    postgres.empty(folder, name)
    databases.append(name)


@pytest.fixture
def clock() -> Clock:
    return Clock()
