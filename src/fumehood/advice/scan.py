"""`scan`: advice about a piece of code, or about files, before it runs. Defence in depth, never the boundary.

The code is neither run nor imported. Whatever the code is, the answer comes as a value and in time that grows with
its length: code that is too large, too dense, too deep or broken is `unparsable`, and refused wherever findings are
refused. As plain text, in any language, it is searched for hidden characters, disguised names, secrets, escapes and
declared encodings; what is Python or a shell's is parsed as well. A file is read up to a bound; a file that is not
text, or is named like a notebook and is none, is always reported.
"""

from __future__ import annotations

import ast
import bisect
import json
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from fumehood.advice import shell
from fumehood.advice.cells import ParsedCell, outside_strings, read_cell
from fumehood.advice.characters import disguised_names, hidden_kinds
from fumehood.advice.findings import SEVERITIES, Collection, Findings, Severity, secrets_in
from fumehood.advice.rules import RULES
from fumehood.advice.tree import Tree
from fumehood.errors import InvalidArgumentError
from fumehood.tracebacks import ending_at_caller

_ESCAPES = re.compile(
    r"(?:\\x[0-9a-fA-F]{2}|\\u00[0-9a-fA-F]{2}|\\U000000[0-9a-fA-F]{2}|\\[0-3]?[0-7]{2}){16}"
)
_PRINTABLE_ESCAPE = re.compile(r"\\(?:x|u00|U000000)[2-7][0-9a-fA-F]|\\1?[0-7]{2}")
_ENCODING = re.compile(r"^[ \t\f]*#.{0,200}?coding[:=][ \t]*([-\w.]+)")
_ORDINARY_ENCODINGS = frozenset(
    {"utf-8", "utf8", "utf_8", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1"}
)
_MAX_REPORTED = 150


class TextPositions:
    """Converts positions in a text to lines and columns."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def of(self, at: int) -> tuple[int, int]:
        """Return line and column, both from 1, of the character `at`."""
        line = bisect.bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1


def look_at_text(code: str, collection: Collection, *, is_python: bool = True) -> None:
    """Look at code as text."""
    places = TextPositions(code)

    for kind, at in hidden_kinds(code).items():
        line, column = places.of(at)
        is_worst = kind == "tag" or (kind == "text direction" and code[at] not in "\u200e\u200f\u061c")
        collection.add(
            "hidden-text",
            f"hidden characters: {kind} (U+{ord(code[at]):04X})",
            line=line,
            column=column,
            severity="danger" if is_worst else "warning",
        )

    for number, (kind, at) in enumerate(secrets_in(code)):
        if number == _MAX_REPORTED:
            break

        line, column = places.of(at)
        collection.add("secret", f"a secret: {kind}", line=line, column=column)

    if is_python:
        _look_at_characters(code, collection, places)


def _look_at_characters(code: str, collection: Collection, places: TextPositions) -> None:
    if not code.isascii():
        for number, (plain, at) in enumerate(disguised_names(outside_strings(code))):
            if number == _MAX_REPORTED:
                break

            line, column = places.of(at)
            collection.add("lookalike-name", f"Python reads this name as {plain}", line=line, column=column)

    for number, match in enumerate(_ESCAPES.finditer(code)):
        if number == _MAX_REPORTED:
            break

        if len(_PRINTABLE_ESCAPE.findall(match[0])) >= 12:
            line, column = places.of(match.start())
            collection.add(
                "encoded-blob", "plain letters written as a row of escapes", line=line, column=column
            )

    for number, first in enumerate(code.split("\n", 2)[:2], 1):
        declared = _ENCODING.match(first[:400])

        if declared and declared[1].lower() not in _ORDINARY_ENCODINGS:
            collection.add(
                "hidden-text", f"the encoding {declared[1]} changes what the code says", line=number
            )


MAX_CODE_CHARACTERS = 1 << 20
# Parsing costs by words and signs rather than by characters.
_MAX_TOKENS = 250_000
_TOKEN = re.compile(r"\w+|[^\w\s]")
_MAX_SHELL_FINDINGS = 200
# Texts that the code runs as code, together.
_MAX_INNER_CHARACTERS = 256 * 1024
_FILE = "fumehood_scanned_code"
# What Python's parser raises for code that it cannot take.
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
_FILTERS = threading.Lock()


@ending_at_caller
def scan(
    code: str, *, block: Severity | None = "danger", allow: Iterable[str] = (), language: str = "python"
) -> Findings:
    """Look at code before it runs, and say what is dangerous, hidden or out of place in it.

    This is advice: it finds what models and hasty attackers write, and a determined one gets around it. Only the
    sandbox contains the code. The answer can be given to `CodeInterpreter(scan=fumehood.scan)`, which refuses what
    `blocks`.

    Args:
        code: Python as IPython takes it, magics and shell lines included, or a script for a shell.
        block: The lowest severity for which `Findings.blocks` is true; None: never. Code that cannot be read blocks at
            each severity.
        allow: Ids of rules that are left out; `unparsable` cannot be.
        language: python or bash. A script for a shell is searched by patterns of words only, and code in any other
            language is `unparsable`.
    """
    allowed = _checked(code, block, allow)
    collection = Collection(code if len(code) <= MAX_CODE_CHARACTERS else code[:10_000], allowed)

    try:
        _look(code, collection, language)
    except Exception as error:  # noqa: BLE001 - whatever hostile code has brought about, it was not read
        collection.add("unparsable", f"it could not be read to its end ({type(error).__name__})")

    return collection.findings(block)


def _checked(code: object, block: object, allow: Iterable[str]) -> frozenset[str]:
    if not isinstance(code, str):
        raise InvalidArgumentError(field="code", value=type(code).__name__, allowed="a text")

    if block is not None and block not in get_args(Severity):
        raise InvalidArgumentError(
            field="block", value=block, allowed=f"None or one of {', '.join(SEVERITIES)}"
        )

    allowed = frozenset([allow] if isinstance(allow, str) else allow)
    known = RULES.keys() - {"unparsable"}

    for rule in sorted(allowed - known, key=str):
        raise InvalidArgumentError(
            field="allow", value=rule, allowed=f"ids of rules: {', '.join(sorted(known))}"
        )

    return allowed


def _look(code: str, collection: Collection, language: str) -> None:
    if len(code) > MAX_CODE_CHARACTERS:
        collection.add("unparsable", f"{len(code):,} characters; at most {MAX_CODE_CHARACTERS:,} are read")
        return

    look_at_text(code, collection, is_python=language == "python")

    if language == "python":
        _look_at_python(code, collection)
    elif language == "bash":
        _look_at_shell(code, collection)
    else:
        collection.add("unparsable", f"code in the language {language!r} is not read")


def _look_at_python(code: str, collection: Collection) -> None:
    seen: set[str] = set()

    def read_inner(text: str, line: int, depth: int) -> None:
        """Scan a text that the code runs as code; each text once."""
        if text in seen:
            return

        seen.add(text)

        if sum(map(len, seen)) > _MAX_INNER_CHARACTERS:
            collection.add("unparsable", "too much text is run as code to read all of it", line=line)
            return

        inner = Collection(text)
        look_at_text(text, inner)

        for finding in inner.findings(None):
            collection.add(
                finding.rule,
                f"in a text that is run as code: {finding.message}",
                line=line,
                severity=finding.severity,
            )

        _parse_and_look(
            text, collection, Tree(collection, read_inner, depth=depth, at_line=line), at_line=line
        )

    _parse_and_look(code, collection, Tree(collection, read_inner))


def _parse_and_look(code: str, collection: Collection, tree: Tree, *, at_line: int | None = None) -> None:
    if sum(1 for _ in _TOKEN.finditer(code)) > _MAX_TOKENS:
        collection.add("unparsable", f"more than {_MAX_TOKENS:,} words and signs", line=at_line or 1)
        return

    parsed = _parsed(code)

    if isinstance(parsed, ast.AST):
        tree.look(parsed)
        return

    cell = read_cell(code)
    _report_cell(cell, collection, at_line)
    again = _parsed(cell.python)

    if isinstance(again, ast.AST) and not cell.unknown:
        tree.look(again)
        return

    line = getattr(again if isinstance(again, SyntaxError) else parsed, "lineno", None) or 1
    why = cell.unknown or (again.msg if isinstance(again, SyntaxError) else "it is too deep or too large")
    collection.add("unparsable", f"cannot be read: {why}", line=at_line or line)


def _parsed(code: str) -> ast.AST | BaseException:
    # Filters of warnings belong to the whole process: they are changed for this one name, and by one thread at a time.
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=_FILE)

        try:
            return ast.parse(code, _FILE)
        except _UNPARSABLE as error:
            return error


def _report_cell(cell: ParsedCell, collection: Collection, at_line: int | None) -> None:
    starts: list[int] = []
    size = 0

    for command, line in cell.shell:
        collection.add("process", "a shell command is run", line=at_line or line)
        starts.append(size)
        size += len(command) + 1

    # All commands at once: looking at each by itself costs more than to read it.
    for found in shell.findings_in("\n".join(command for command, _ in cell.shell)):
        _, line = cell.shell[bisect.bisect_right(starts, found.at) - 1]
        collection.add(found.rule, found.message, line=at_line or line)

    for line in cell.installs:
        collection.add("install", "packages are installed", line=at_line or line)

    for magic, line in cell.unseen:
        collection.add(
            "dynamic-code", f"%{magic} brings in what does not stand in the code", line=at_line or line
        )


def _look_at_shell(script: str, collection: Collection) -> None:
    places = TextPositions(script)

    for number, found in enumerate(shell.findings_in(script)):
        if number == _MAX_SHELL_FINDINGS * len(RULES):
            break

        line, column = places.of(found.at)
        collection.add(found.rule, found.message, line=line, column=column)


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
        findings: The findings.
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
    """Return the pieces of code in a file; None for a file that cannot be read as text."""
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
