"""Scans of files: Python, scripts for a shell, and the code cells of notebooks.

A file is read up to a bound and as data alone; what is not text, or not a notebook although it is named like one, is
`unparsable` and never passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fumehood.advice.findings import Collection, Findings, Severity
from fumehood.advice.scan import MAX_CODE_CHARACTERS, scan

_SHELL_SUFFIXES = frozenset({".sh", ".bash"})
_MAX_NOTEBOOK_BYTES = 64 << 20
# A character of UTF-8 has at most four bytes: what is longer than that cannot be short enough.
_MAX_CODE_BYTES = 4 * MAX_CODE_CHARACTERS
_MAX_CELLS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedFile:
    """One file, or one cell of a notebook, and what was found in it.

    Attributes:
        path: The path as it was given.
        cell: Number of the cell, from 1; None where the file is no notebook.
        findings: What was found.
    """

    path: str
    cell: int | None
    findings: Findings

    @property
    def name(self) -> str:
        """Path and cell, for people."""
        return self.path if self.cell is None else f"{self.path}[{self.cell}]"


def scan_files(
    paths: Iterable[str], *, block: Severity | None = None, allow: Iterable[str] = ()
) -> Iterator[ScannedFile]:
    """Scan files one after the other; a file that cannot be opened raises OSError."""
    allowed = list(allow)

    for path in paths:
        for cell, code in _pieces(path):
            language = "bash" if Path(path).suffix in _SHELL_SUFFIXES else "python"
            findings = (
                _unread(block) if code is None else scan(code, block=block, allow=allowed, language=language)
            )
            yield ScannedFile(path=path, cell=cell, findings=findings)


def _pieces(path: str) -> Iterator[tuple[int | None, str | None]]:
    """The pieces of code in a file; None for one that cannot be read as text."""
    is_notebook = Path(path).suffix == ".ipynb"

    with Path(path).open("rb") as file:
        data = file.read((_MAX_NOTEBOOK_BYTES if is_notebook else _MAX_CODE_BYTES) + 1)

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Cut at the bound in the middle of a character, it is too large all the same.
        yield None, None
        return

    if not is_notebook:
        yield None, text
        return

    yield from _cells(text)


def _cells(text: str) -> Iterator[tuple[int | None, str | None]]:
    try:
        cells = json.loads(text)["cells"]
        sources = [(cell["cell_type"], cell["source"]) for cell in cells[:_MAX_CELLS]]
    except (ValueError, LookupError, TypeError, RecursionError):
        yield None, None
        return

    if len(cells) > _MAX_CELLS:
        yield None, None

    for number, (kind, source) in enumerate(sources, 1):
        if kind == "code":
            lines = [source] if isinstance(source, str) else source
            is_text = isinstance(lines, list) and all(isinstance(line, str) for line in lines)
            yield number, "".join(lines) if is_text else None


def _unread(block: Severity | None) -> Findings:
    collection = Collection("")
    collection.add("unparsable", "it is no text, or no notebook")
    return collection.findings(block)
