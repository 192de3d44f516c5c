"""The reference page says what the docstrings say, and the limits page what the defaults are."""

from __future__ import annotations

import ast
import re
import runpy
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import fumehood
import fumehood.llm
from fumehood.bounds import BOUNDS
from fumehood.values.limits import Limits

DOCS = Path(__file__).resolve().parents[2] / "docs"
SOURCES = DOCS.parent / "src" / "fumehood"


def test_reference_is_fresh() -> None:
    """The pages of the Python reference are what `make reference` would write now."""
    fresh: dict[str, str] = runpy.run_path(str(DOCS / "reference.py"))["pages"]()
    written = {name: (DOCS / name).read_text(encoding="utf-8") for name in fresh}
    assert fresh == written, "run: make reference"


@pytest.mark.parametrize(
    ("package", "page"), [(fumehood, "reference.md"), (fumehood.llm, "reference-llm.md")]
)
def test_each_public_name_has_an_entry(package: ModuleType, page: str) -> None:
    """A heading, with something said below it."""
    text = (DOCS / page).read_text(encoding="utf-8")
    said = dict(re.findall(r"^### (\w+)\n\n(.+)$", text, re.MULTILINE))
    assert sorted(said) == sorted(package.__all__)


def test_each_adapter_of_a_framework_has_an_entry() -> None:
    """Each class and function that the guide imports."""
    text = (DOCS / "reference-frameworks.md").read_text(encoding="utf-8")
    guide = (DOCS / "guides" / "frameworks.md").read_text(encoding="utf-8")
    imported = re.findall(r"^from fumehood\.frameworks\.(\w+) import (.+)$", guide, re.MULTILINE)
    assert len(imported) > 10

    for module, names in imported:
        section = text.partition(f"## fumehood.frameworks.{module}\n")[2].partition("\n## ")[0]
        assert [name for name in names.split(", ") if f"### {name}\n" not in section] == [], module


def test_each_public_name_of_an_adapter_has_an_entry() -> None:
    """All classes and functions of the adapters' modules whose names have no underscore in front."""
    text = (DOCS / "reference-frameworks.md").read_text(encoding="utf-8")
    internal: set[str] = runpy.run_path(str(DOCS / "reference.py"))["_INTERNAL"]
    modules = [path for path in sorted((SOURCES / "frameworks").glob("*.py")) if path.stem not in internal]
    assert len(modules) > 10

    for path in modules:
        section = text.partition(f"## fumehood.frameworks.{path.stem}\n")[2].partition("\n## ")[0]
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds)]
        assert [name for name in names if name[0] != "_" and f"### {name}\n" not in section] == [], path.stem


def test_each_name_that_a_page_imports_has_an_entry() -> None:
    """What a reader can copy from a page or an example can be looked up, whatever module it is of."""
    root = DOCS.parent
    pages = [root / "README.md", *(DOCS / "guides").glob("*.md"), *(DOCS / "tutorials").glob("*.md")]
    pages += (root / "examples").rglob("*.py")
    entries = set()

    for page in DOCS.glob("reference*.md"):
        entries |= set(re.findall(r"^### (\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE))

    missing = {}

    for page in pages:
        imports = re.findall(
            r"^\s*from fumehood[\w.]* import ([\w, ]+)$", page.read_text(encoding="utf-8"), re.MULTILINE
        )
        names = {name.strip() for line in imports for name in line.split(",")}
        missing[page.name] = sorted(names - entries)

    assert {name: names for name, names in missing.items() if names} == {}


def test_http_reference_is_fresh() -> None:
    """`docs/http-reference.md` is what the OpenAPI description says now."""
    fresh: str = runpy.run_path(str(DOCS / "http_reference.py"))["page"]()
    written = (DOCS / "http-reference.md").read_text(encoding="utf-8")
    assert fresh == written, "run: make reference"


def test_the_table_of_log_events_is_fresh() -> None:
    """`docs/guides/logging.md` names each event with its level, logger and fields."""
    fresh: str = runpy.run_path(str(DOCS / "log_events.py"))["page"]()
    written = (DOCS / "guides" / "logging.md").read_text(encoding="utf-8")
    assert fresh == written, "run: make reference"


def test_limits_are_documented() -> None:
    """The guide to limits names each limit with its default and its range."""
    page = (DOCS / "guides" / "limits-and-usage.md").read_text(encoding="utf-8")

    for field in fields(Limits):
        row = next((line for line in page.splitlines() if line.startswith(f"| `{field.name}` |")), "")
        assert f"| {_default(field.default)} |" in row, f"{field.name}: default {_default(field.default)}"
        assert BOUNDS[field.name].describe() in row, f"{field.name}: {BOUNDS[field.name].describe()}"


def _default(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
