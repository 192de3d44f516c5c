"""The program that `fumehood run` is given, before anything runs."""

from __future__ import annotations

import pytest

from fumehood.cli.program import Program, read_program

KNOWN = ("numpy", "pandas", "matplotlib.pyplot")


@pytest.mark.parametrize(
    ("cells", "preload"),
    [
        (("print(1)",), ()),
        (("import os, json.decoder\nfrom collections import abc",), ()),
        (("x = 1", "def f():\n    from pandas.api import types"), ("pandas",)),
        (("import matplotlib",), ("matplotlib.pyplot",)),
        (("import pandas as pd, numpy.linalg",), ("numpy", "pandas")),
        # A package from elsewhere may need any of them, and so may what cannot be read.
        (("import seaborn",), KNOWN),
        (("from . import own",), KNOWN),
        (("%pip install x",), KNOWN),
        (("1 +",), KNOWN),
        (("(" * 10_000,), KNOWN),
        (("\0",), KNOWN),
        (("#" * (1 << 20) + "\n1",), KNOWN),
    ],
)
def test_what_a_program_names_is_imported_before(cells, preload):
    """Other modules of the template would only be waited for: the sandbox runs nothing else."""
    assert Program(cells=cells).preload(KNOWN) == preload


def test_a_script_and_a_module_name_no_imports():
    """Bash starts interpreters of its own; of a module only the name is known."""
    assert Program(cells=("python -c 'import pandas'",), language="bash").preload(KNOWN) == ()
    assert read_program([], None, "timeit").preload(KNOWN) == ()
    assert read_program([], None, "numpy.testing").preload(KNOWN) == ("numpy",)
    assert read_program([], None, "pytest").preload(KNOWN) == KNOWN
