"""Tests of frameworks need the environment of their framework: in that of the other tests, none is collected."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


class _Elsewhere(pytest.Module):
    """A module whose framework is not installed here."""

    def collect(self):
        return []


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """A merge queue names each changed file, whichever environment it belongs to."""
    if Path(sys.prefix).name != ".venv":
        return None

    return _Elsewhere.from_parent(parent, path=module_path)
