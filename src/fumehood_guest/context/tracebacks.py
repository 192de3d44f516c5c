"""Tracebacks as plain text: what failed, where in the user's cells, through which libraries, and the keys of a table.

Runs in a context, on exceptions of hostile code: their `__str__` may raise, their chains may be cyclic, their frames
may be thousands. So everything is bounded and none of their values is trusted. Frames of IPython and of fumehood are
left out; cells are shown with the lines around the failing one, libraries with that one line. Where a key is missing in
a pandas table, its columns or labels are named: only pandas' own classes are asked, and a failure gives no line. Where
a file is missing, one of a similar name is.
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import traceback
from types import TracebackType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Type

import IPython

from fumehood_guest.shared.folders import DATA, HOME

_MAX_KEYS = 20
_MAX_KEY_CHARACTERS = 60
_MAX_FRAMES = 200
_MAX_FILES = 500
# The locals of pandas' functions that hold the table or its labels.
_HOLDERS = ("self", "obj")


def existing_keys(tb: Optional[TracebackType]) -> List[str]:
    """Returns a line that lists the existing keys; no line if the missing key was not looked up in a table."""
    pandas: Any = sys.modules.get("pandas")

    if pandas is None:
        return []

    try:
        labels = _labels(pandas, tb)
        return [] if labels is None else [_described(labels)]
    except Exception:
        return []


def _labels(pandas: Any, tb: Optional[TracebackType]) -> Any:
    """Returns the labels that the innermost frames of pandas have searched."""
    found = None

    for _ in range(_MAX_FRAMES):
        if tb is None:
            break

        for name in _HOLDERS if _is_of_pandas(tb) else ():
            holder = tb.tb_frame.f_locals.get(name)

            if isinstance(holder, pandas.Index):
                found = holder
            elif isinstance(holder, pandas.DataFrame):
                found = holder.columns

        tb = tb.tb_next

    return found


def _is_of_pandas(tb: TracebackType) -> bool:
    return str(tb.tb_frame.f_globals.get("__name__", "")).startswith("pandas.")


def _described(labels: Any) -> str:
    keys = [
        repr(key)[:_MAX_KEY_CHARACTERS]
        for key in labels[:_MAX_KEYS].tolist()
        if type(key) in (str, int, float)
    ]
    more = len(labels) - len(keys)
    return f"There are: {', '.join(keys) or 'no keys'}{f', and {more:,} more' if more > 0 else ''}"


def _similar_file(error: FileNotFoundError, tb: Optional[TracebackType]) -> List[str]:
    """Returns a line that names a file of a similar name; no line if there is none, or a program is missed."""
    try:
        missed = error.filename

        if not isinstance(missed, str) or not missed or _starts_a_program(tb):
            return []

        import difflib

        near = _files_near(os.path.dirname(missed))
        found = difflib.get_close_matches(os.path.basename(missed).lower(), near, n=1)
        return [f"Did you mean {near[found[0]]!r}?"] if found else []
    except Exception:
        return []


def _files_near(folder: str) -> Dict[str, str]:
    """Returns the paths of files, by their names in small letters: of this folder, the data and the home directory."""
    paths: Dict[str, str] = {}

    for place in (folder or os.curdir, DATA, HOME):
        for path in _files_in(place):
            paths.setdefault(os.path.basename(path).lower(), path)

    return paths


def _files_in(folder: str) -> List[str]:
    try:
        with os.scandir(folder) as entries:
            some = itertools.islice(entries, _MAX_FILES)
            return [os.path.abspath(entry.path) for entry in some if entry.is_file()]
    except OSError:
        return []


def _starts_a_program(tb: Optional[TracebackType]) -> bool:
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next

    return tb is not None and tb.tb_frame.f_globals.get("__name__") in ("subprocess", "os")


_RULE = "-" * 75
_HEADING = "Traceback (most recent call last)"
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"

_HIDDEN_FOLDERS = tuple(
    os.path.dirname(os.path.abspath(name)) + os.sep for name in (__file__, IPython.__file__ or __file__)
)
_MODULE_RUNNER = "fumehood_guest.context.program"
_LINES_AROUND = 2
_FIRST_FRAMES = 10
_LAST_FRAMES = 20
_MAX_CHAIN = 10
_MAX_GROUP = 10
_MAX_GROUP_DEPTH = 4
_MAX_LINE_CHARACTERS = 500
_MAX_VALUE_CHARACTERS = 20_000
# The file names of cells without a name of their own begin like this.
_NUMBERED = "<ipython-input-"

# Returns the number of the cell whose code has this file name, or None.
CellNumber = Callable[[str], Optional[int]]


class _Place(NamedTuple):
    """One frame that is shown."""

    filename: str
    line: int
    function: str


def format_exception(error: BaseException, tb: Optional[TracebackType], cell_number: CellNumber) -> List[str]:
    """Returns the lines of a traceback, causes first."""
    parts: List[List[str]] = []
    seen: Set[int] = set()
    link: Optional[str] = None
    current: Optional[BaseException] = error
    current_tb = tb

    while current is not None and id(current) not in seen and len(parts) < _MAX_CHAIN:
        seen.add(id(current))
        part = _format_one(current, current_tb, cell_number)
        parts.append(part if link is None else [*part, "", link, ""])
        current, link = _previous(current)
        current_tb = current.__traceback__ if current is not None else None

    return [line for part in reversed(parts) for line in part]


def exception_name(kind: Type[BaseException]) -> str:
    """Returns the name of an exception's class."""
    name = getattr(kind, "__name__", None)
    return name if isinstance(name, str) else "Exception"


def exception_value(error: BaseException) -> str:
    """Returns the message of an exception, whatever its `__str__` does."""
    try:
        text = str(error)
    except BaseException as failure:
        return f"<str() of it failed with {exception_name(type(failure))}>"

    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}..."


def _previous(error: BaseException) -> Any:
    if isinstance(error, KeyboardInterrupt):
        return None, None

    if error.__cause__ is not None:
        return error.__cause__, _CAUSE

    if error.__context__ is not None and not error.__suppress_context__:
        return error.__context__, _CONTEXT

    return None, None


def _format_one(
    error: BaseException, tb: Optional[TracebackType], cell_number: CellNumber, depth: int = 0
) -> List[str]:
    name = exception_name(type(error))
    places = _places(tb)

    if isinstance(error, KeyboardInterrupt):
        places = [place for place in places if cell_number(place.filename) is not None][-1:]

    lines: List[str] = []

    if places:
        lines += [_RULE, f"{name}{_HEADING:>{max(75 - len(name), len(_HEADING) + 1)}}"]
        lines += _format_places(places, cell_number)
        lines.append("")

    lines += _format_value(error, name, cell_number)

    if isinstance(error, KeyError):
        lines += existing_keys(tb)
    elif isinstance(error, FileNotFoundError):
        lines += _similar_file(error, tb)

    if depth < _MAX_GROUP_DEPTH:
        lines += _format_group(error, cell_number, depth)

    return lines


def _places(tb: Optional[TracebackType]) -> List[_Place]:
    places: List[_Place] = []
    is_starting_module = False

    while tb is not None:
        code = tb.tb_frame.f_code
        filename, module = code.co_filename, tb.tb_frame.f_globals.get("__name__")

        if module == _MODULE_RUNNER:
            # What has called it is the cell of `fumehood run -m`, and no line of the user's.
            places.clear()
            is_starting_module = True
        elif is_starting_module and module == "runpy":
            pass
        elif not filename.startswith(_HIDDEN_FOLDERS):
            is_starting_module = False
            places.append(_Place(filename, tb.tb_lineno or 0, code.co_name))

        tb = tb.tb_next

    return places


def _format_places(places: List[_Place], cell_number: CellNumber) -> List[str]:
    lines: List[str] = []
    left_out = len(places) - _FIRST_FRAMES - _LAST_FRAMES

    if left_out > 0:
        last = places[-_LAST_FRAMES:]
        lines += _format_places(places[:_FIRST_FRAMES], cell_number)
        lines += ["", f"    ... {left_out:,} frames left out ...", "", *_format_places(last, cell_number)]
        return lines

    for index, place in enumerate(places):
        if index:
            lines.append("")

        number = cell_number(place.filename)
        lines += _format_library(place) if number is None else _format_cell(place, number)

    return lines


def _format_cell(place: _Place, number: int) -> List[str]:
    function = "" if place.function == "<module>" else f", in {place.function}"
    lines = [f"{_cell_name(place.filename, number)}, line {place.line}{function}"]

    for at in range(max(1, place.line - _LINES_AROUND), place.line + _LINES_AROUND + 1):
        source = _source_line(place.filename, at)

        if source or at == place.line:
            mark = f"----> {at}" if at == place.line else f"{at:>7}"
            lines.append(f"{mark:>7} {source}".rstrip())

    return lines


def _cell_name(filename: str, number: int) -> str:
    return f"Cell In[{number}]" if filename.startswith(_NUMBERED) else f"File {filename}"


def _format_library(place: _Place) -> List[str]:
    lines = [f"File {place.filename}:{place.line}, in {place.function}"]
    source = _source_line(place.filename, place.line).strip()
    return [*lines, f"    {source}"] if source else lines


def _source_line(filename: str, line: int) -> str:
    try:
        text = linecache.getline(filename, line).rstrip()
    except Exception:
        return ""

    return text if len(text) <= _MAX_LINE_CHARACTERS else f"{text[:_MAX_LINE_CHARACTERS]}..."


def _format_value(error: BaseException, name: str, cell_number: CellNumber) -> List[str]:
    if isinstance(error, SyntaxError):
        return _format_syntax_error(error, cell_number)

    value = exception_value(error)
    lines = f"{name}: {value}".splitlines() if value else [name]
    notes = getattr(error, "__notes__", ())

    if isinstance(notes, (list, tuple)):
        lines += [
            line
            for note in notes[:_MAX_GROUP]
            if isinstance(note, str)
            for line in note[:_MAX_VALUE_CHARACTERS].splitlines()
        ]

    return lines


def _format_syntax_error(error: SyntaxError, cell_number: CellNumber) -> List[str]:
    try:
        lines = "".join(traceback.format_exception_only(type(error), error)).splitlines()
    except Exception:
        return [f"{exception_name(type(error))}: {exception_value(error)}"]

    number = cell_number(error.filename) if isinstance(error.filename, str) else None

    if number is not None and lines:
        lines[0] = f"{_cell_name(str(error.filename), number)}, line {error.lineno}"

    return [line[: _MAX_LINE_CHARACTERS * 2] for line in lines]


def _format_group(error: BaseException, cell_number: CellNumber, depth: int) -> List[str]:
    # ExceptionGroup exists since Python 3.11.
    members: Any = getattr(error, "exceptions", None)

    if not (isinstance(members, tuple) and _is_group(error)):
        return []

    lines: List[str] = []

    for index, member in enumerate(members[:_MAX_GROUP], start=1):
        part = _format_one(member, member.__traceback__, cell_number, depth + 1)
        lines += ["", f"  --- {index} of {len(members)} ---", *(f"  {line}" for line in part)]

    return lines


def _is_group(error: BaseException) -> bool:
    return any(
        kind.__name__ == "BaseExceptionGroup" and kind.__module__ == "builtins"
        for kind in type(error).__mro__
    )
