"""Tests that run in a process of their own, which has nothing else to do.

A test that counts what its process has open is wrong where other tests have run before: a thread of theirs opens and
closes some meanwhile, and so does the collector of their garbage. A module that uses `apart` imports `elsewhere` too.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """Another process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            yield pool
        finally:
            # The end of the pool waits for it: a test that hangs there would have no end.
            for process in tuple(pool._processes.values()):
                process.kill()


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """Lets a test run in the other process; its arguments are those of `parametrize`."""

    @functools.wraps(test)
    def run(elsewhere: ProcessPoolExecutor, **arguments: Any) -> None:
        elsewhere.submit(_run_here, test.__module__, test.__name__, arguments).result()

    # What pytest reads is which fixtures and parameters the test takes.
    wanted = inspect.signature(test).parameters.values()
    asks = inspect.Parameter("elsewhere", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*wanted, asks])  # type: ignore[attr-defined]
    return run


def _run_here(module: str, name: str, arguments: dict[str, Any]) -> None:
    getattr(importlib.import_module(module), name).__wrapped__(**arguments)
