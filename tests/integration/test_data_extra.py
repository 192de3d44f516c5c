"""What the extras `data` and `analyst` promise: each thing an analyst does first works without another package."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from fumehood import Sandbox

ROOT = Path(__file__).resolve().parents[2]
FRAME = "import pandas as pd; df = pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})"


@pytest.fixture(scope="module")
def sandbox():
    """One sandbox for all of them; they leave nothing that the next would see."""
    with Sandbox() as sandbox:
        assert sandbox.run_code(FRAME).error is None
        yield sandbox


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("df.to_excel('t.xlsx', index=False); pd.read_excel('t.xlsx').b.sum()", "'xy'"),
        ("df.to_markdown(index=False).splitlines()[-1]", "'|   2 | y   |'"),
        ("import nbformat; nbformat.v4.new_notebook().nbformat", "4"),
        ("from scipy import stats; round(float(stats.norm.cdf(0)), 2)", "0.5"),
        (
            "from sklearn.linear_model import LinearRegression as L; L().fit([[0], [1]], [0, 2]).coef_.round()[0]",
            "2",
        ),
    ],
)
def test_it_works(sandbox, code, text):
    """The last value is as in any Python that has the package."""
    execution = sandbox.run_code(code)
    assert execution.error is None
    assert text in execution.text


def test_seaborn_draws(sandbox):
    """A picture comes, and its chart."""
    execution = sandbox.run_code("import seaborn as sns; sns.barplot(df, x='b', y='a');")
    assert execution.error is None
    assert execution.results[-1].png is not None


def test_each_package_of_an_analyst_is_tried():
    """`make test-packages` installs all that are named here, and does something real with each in one sandbox."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {re.split("[>=<;]", line)[0] for line in extras["analyst"] if "[" not in line}
    tree = ast.parse((ROOT / "tests" / "packages" / "cases.py").read_text())
    tried = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Case"
    }
    assert {"polars", "plotly"} <= asked
    assert asked - tried == set()
