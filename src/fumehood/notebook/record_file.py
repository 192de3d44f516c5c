"""A record in the form of a path's suffix, and its file.

A file appears completely or not at all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping

from fumehood.errors import InvalidArgumentError
from fumehood.notebook.ipynb import notebook_of, notebook_text
from fumehood.notebook.report import report_of
from fumehood.notebook.script import script_of
from fumehood.values.execution import Record

_FORMS: Mapping[str, Callable[[Record], str]] = {
    ".ipynb": lambda record: notebook_text(notebook_of(record)),
    ".py": script_of,
    ".html": report_of,
}


def check_form(path: str | os.PathLike[str] | None) -> None:
    """Raise InvalidArgumentError unless a record can be written under this path."""
    if path is None or (isinstance(path, (str, os.PathLike)) and _ending(path) in _FORMS):
        return

    shown = os.fspath(path) if isinstance(path, os.PathLike) else path
    raise InvalidArgumentError(
        field="path", value=shown, allowed="a path that ends with .ipynb, .py or .html"
    )


def write_record(record: Record, path: str | os.PathLike[str] | None = None) -> str:
    """Return a record in the form of the path's suffix, a notebook without one; with a path, write it as well.

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
