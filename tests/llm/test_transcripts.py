"""docs/transcripts.md shows what models read today: its texts and its counts are made again here.

What IPython shows of the same programs is not: it changes only with IPython, and takes ten starts of it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

_DOCS = Path(__file__).parents[2] / "docs"
_MODULES = Path(__file__).parents[1] / "external_clients" / "node_modules"


@pytest.fixture(scope="module")
def transcripts() -> ModuleType:
    """The program that writes the page."""
    if shutil.which("node") is None or not (_MODULES / "js-tiktoken").is_dir():
        pytest.skip("needs node and the packages of tests/external_clients: `make test` installs them")

    spec = importlib.util.spec_from_file_location("transcripts", _DOCS / "transcripts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_models_read(transcripts: ModuleType) -> None:
    """Text by text, with its tokens, and their sum."""
    page = (_DOCS / "transcripts.md").read_text(encoding="utf-8")
    with transcripts.opened() as interpreter:
        texts = transcripts.read_by_models(interpreter)

    counts = transcripts.count_tokens(texts)
    for name, code, text, count in zip(
        transcripts.PROGRAMS, transcripts.PROGRAMS.values(), texts, counts, strict=True
    ):
        (section,) = re.findall(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
        shown = f"fumehood, {count:,} tokens:\n\n{transcripts.as_block(text)}"
        again = "run `python docs/transcripts.py --write`"
        assert transcripts.as_block(code) in section, again
        assert section.rstrip().endswith(shown.rstrip()), f"{again}; it is now {shown}"
        assert re.search(rf"^\| {re.escape(name)} \| [\d,]+ \| {count:,} \|$", page, re.MULTILINE), again

    assert f"| **{sum(counts):,}** |" in page
