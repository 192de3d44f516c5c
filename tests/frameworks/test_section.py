"""The sections of the guide that show frameworks, in the process of the frameworks' tests, which has all loaded."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "section", sorted(path.stem for path in Path(os.environ["FUMEHOOD_TEST_SECTIONS"]).iterdir())
)
def test_the_section_of_the_guide_runs(section):
    """Its Python blocks run in order, in a folder that has the data they name."""
    runpy.run_path(f"{os.environ['FUMEHOOD_TEST_SECTIONS']}/{section}.py", run_name="__main__")
