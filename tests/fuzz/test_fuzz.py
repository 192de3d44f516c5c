"""H11: the short form of `make fuzz`, which is the same program with fewer cases."""

from __future__ import annotations

import asyncio

import pytest
from tests.fuzz.__main__ import fuzz


def test_h11_a_little_fuzzing(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing but refusals of the reader's own kind comes out of anything that reads, and memory stays bounded."""
    code = asyncio.run(fuzz(2_600, 11, say=False))
    assert code == 0, capsys.readouterr().out
