"""Writes a record in the format of a path's suffix; a Python file has the cells with `# %%` between them.

A file appears completely or not at all. Code that is no Python, such as magics, bash and cells that could not be
parsed, is kept as comments, so that the file can be run; its content is neither run nor parsed here.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping

from fumehood.errors import InvalidArgumentError
from fumehood.notebook.ipynb import notebook_of, notebook_text
from fumehood.notebook.report import report_of
from fumehood.tracebacks import ending_at_caller
from fumehood.values.execution import Record, RecordedCell

# Lines that IPython understands and Python does not.
_MAGIC = re.compile(r"\s*(?:%|!|\?|[\w.]+\s*=\s*[%!]|[\w.]+\?{1,2}\s*$)")
_NO_PYTHON = frozenset({"SyntaxError", "IndentationError", "TabError"})


def script_of(record: Record) -> str:
    """Return the Python file of a record."""
    cells = [_cell(cell, record.language) for cell in record.cells]
    missing = (
        f"# {record.dropped_cells} older cells are no longer in the record.\n\n"
        if record.dropped_cells
        else ""
    )
    return (
        f"# What ran in the context {record.context_id} of the sandbox {record.sandbox_id}.\n\n{missing}"
        + "\n".join(cells)
    )


def _cell(cell: RecordedCell, language: str) -> str:
    count = cell.execution.execution_count
    head = "# %%" if count is None else f"# %% [{count}]"
    error = cell.execution.error
    failed = "" if error is None else f"\n# It ended with {_one_line(error.name)}: {_one_line(error.value)}"
    # Other characters end a line for some parsers, and would end the comment that they stand in. None of Python's files
    # may hold a NUL.
    code = cell.code.replace("\0", r"\x00")
    lines = re.split(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", code)
    is_foreign = (
        cell.is_undone or language != "python" or code.lstrip().startswith("%%") or _has_not_begun(cell)
    )

    if language != "python":
        lines = [f"%%{language}", *lines]

    body = "\n".join(f"# {line}".rstrip() if is_foreign or _MAGIC.match(line) else line for line in lines)
    undone = "\n# What it did was undone." if cell.is_undone else ""
    return f"{head}{failed}{undone}\n{body.rstrip()}\n"


def _has_not_begun(cell: RecordedCell) -> bool:
    execution = cell.execution
    is_refused = execution.error is not None and execution.error.name in _NO_PYTHON
    return is_refused and not execution.results and not execution.logs.entries


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text[:200])


_FORMS: Mapping[str, Callable[[Record], str]] = {
    ".ipynb": lambda record: notebook_text(notebook_of(record)),
    ".py": script_of,
    ".html": report_of,
}


def record_as(ending: str) -> Callable[[Record], str]:
    """Return the function that converts a record to the text of a file with this suffix: .ipynb, .py or .html."""
    return _FORMS[ending]


def check_form(path: str | os.PathLike[str] | None) -> None:
    """Raise InvalidArgumentError unless a record can be written under this path."""
    if path is None or (isinstance(path, (str, os.PathLike)) and _ending(path) in _FORMS):
        return

    shown = os.fspath(path) if isinstance(path, os.PathLike) else path
    raise InvalidArgumentError(
        field="path", value=shown, allowed="a path that ends with .ipynb, .py or .html"
    )


@ending_at_caller
def write_record(record: Record, path: str | os.PathLike[str] | None = None) -> str:
    """Return a record in the format of the path's suffix; without a path, a notebook. With a path, write the file too.

    Args:
        record: The record.
        path: A file whose name ends with .ipynb, .py or .html.

    Raises:
        InvalidArgumentError: The path ends with something else.
    """
    check_form(path)

    if path is None:
        return _FORMS[".ipynb"](record)

    text = _FORMS[_ending(path)](record)
    write_whole(path, text)
    return text


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a file of text, replacing an existing one."""
    folder, name = os.path.split(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name[:50]}-", dir=folder)

    try:
        with open(descriptor, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)

        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _ending(path: str | os.PathLike[str]) -> str:
    return os.path.splitext(os.fspath(path))[1].lower()
