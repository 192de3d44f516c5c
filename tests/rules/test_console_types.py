"""The console reads the API by the types of its description: a field that is renamed fails here, not in a page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "web" / "src"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """The program that writes the types."""
    spec = importlib.util.spec_from_file_location("console_types", ROOT / "tools" / "console_types.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_types_of_the_page_are_those_of_the_api(writer: ModuleType) -> None:
    """`make console-types` writes the file anew."""
    assert writer.TARGET.read_text(encoding="utf-8") == writer.text(), "stale: run `make console-types`"


def test_the_page_uses_what_is_written(writer: ModuleType) -> None:
    """Each root is the type of something; one that nothing reads is left out of the file."""
    read = "\n".join(
        path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.ts*") if path != writer.TARGET
    )
    used = set(re.findall(r"\bapi\.([A-Z]\w+)", read))
    declared = set(re.findall(r"^export type (\w+)", writer.TARGET.read_text(encoding="utf-8"), re.MULTILINE))
    assert used <= declared
    assert len(used) > 25


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "integer"}, "number"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "(string | null)[]"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "Record<string, number>"),
        ({"enum": ["a", "b"]}, '"a" | "b"'),
        ({"$ref": "#/components/schemas/Cell"}, "Cell"),
        ({}, "unknown"),
    ],
    ids=["plain", "null", "list", "record", "words", "reference", "anything"],
)
def test_each_shape_has_its_type(writer: ModuleType, schema: dict[str, object], written: str) -> None:
    """Controls of what the file rests on."""
    assert writer._type(schema) == written
