"""The section of the guide that shows a framework, in the same process as the framework's tests: it has all loaded."""

from __future__ import annotations

import os
import runpy


def test_the_section_of_the_guide_runs():
    """Its Python blocks run in order, in a folder that has the data they name."""
    runpy.run_path(os.environ["FUMEHOOD_TEST_SECTION"], run_name="__main__")
