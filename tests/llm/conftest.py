"""Interpreters over real sandboxes, for the tests of the tool for models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fumehood.llm import CodeInterpreter


@pytest.fixture
def interpreter() -> Iterator[CodeInterpreter]:
    """One with a sandbox of its own."""
    with CodeInterpreter() as made:
        yield made
