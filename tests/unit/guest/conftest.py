"""Contexts for the tests: real processes, forked from a prepared shell, driven over a real socket and real
pipes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The folder is no package: load the driver by its path, once.
_spec = importlib.util.spec_from_file_location("guest_driver", Path(__file__).with_name("driver.py"))
driver = importlib.util.module_from_spec(_spec)
sys.modules["guest_driver"] = driver
_spec.loader.exec_module(driver)


@pytest.fixture(scope="session")
def bare_zygote() -> Iterator[driver.Zygote]:
    """A zygote that preloads nothing."""
    zygote = driver.Zygote()
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def data_zygote() -> Iterator[driver.Zygote]:
    """A zygote that preloads what analysts use."""
    zygote = driver.Zygote("numpy", "pandas", "matplotlib")
    yield zygote
    zygote.close()


@pytest.fixture
def context(bare_zygote: driver.Zygote) -> Iterator[driver.Context]:
    """A Python context that is told to end after the test, and does."""
    one = bare_zygote.start()
    yield one
    assert one.close() == 0


@pytest.fixture
def data_context(data_zygote: driver.Zygote) -> Iterator[driver.Context]:
    """The same with the data packages."""
    one = data_zygote.start()
    yield one
    assert one.close() == 0


@pytest.fixture
def bash_context(bare_zygote: driver.Zygote) -> Iterator[driver.Context]:
    """A bash context."""
    one = bare_zygote.start("bash")
    yield one
    assert one.close() == 0
