"""The text of an `Execution` for a model: output, values, tables, the error with a hint, a line for each file.

Pure functions. The text is bounded as a whole: short parts stay whole, long ones share the space, each with its head,
its tail and the number of characters between. Text from a guest is never rendered: HTML, SVG and scripts are named,
not shown. The description of a data frame comes from the guest, so its numbers are checked to be numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fumehood import Execution, Result, Truncation
from fumehood.llm.error_text import NOT_INSTALLABLE, Surroundings, describe_error, installs
from fumehood.llm.html_text import text_of_html
from fumehood.llm.images import ImageBounds, ImageShelf, oversized
from fumehood.llm.readable_text import (
    Excerpt,
    counted,
    fair_shares,
    fold_repeats,
    in_bytes,
    readable,
    readable_ends,
    shorten,
)
from fumehood.llm.result import ToolFile, ToolImage
from fumehood.text import visible_line

_DATA_MIME = "application/vnd.fumehood.data+json"
# Parsing JSON costs time on the host; pandas' own text has the size as well.
_MAX_DATA_BYTES = 256 * 1024
_MAX_COLUMNS = 40
_MAX_NAME_CHARS = 60
_MAX_TEXT_CHARS = 4_000
_LOOKED_AT = 50


def preview_table(result: Result) -> str:
    """Return the text of a table for a model, or an empty text if the result is none."""
    if _DATA_MIME not in result.parts and _DATA_MIME not in result.truncated:
        return ""

    shown = shorten(readable_ends(result.text or "", _MAX_TEXT_CHARS), _MAX_TEXT_CHARS)

    if len(result.parts.get(_DATA_MIME, b"")) > _MAX_DATA_BYTES or not result.data:
        return shown

    columns = result.data
    rows, width = _size(result.metadata, columns)
    return (
        f"Table of {counted(rows, 'row')} and {counted(width, 'column')}: {_columns(columns, width)}\n{shown}"
    )


def _size(metadata: Mapping[str, object], columns: Mapping[str, Sequence[object]]) -> tuple[int, int]:
    """Return rows and columns as the guest counted them; an impossible count is replaced by that of the data sent."""
    sent_rows, sent_columns = max(map(len, columns.values())), len(columns)
    own = metadata.get(_DATA_MIME)
    said = own if isinstance(own, dict) else metadata
    rows, width = said.get("rows"), said.get("columns")
    return (
        rows if type(rows) is int and rows >= sent_rows else sent_rows,
        width if type(width) is int and width >= sent_columns else sent_columns,
    )


def _columns(columns: Mapping[str, Sequence[object]], width: int) -> str:
    shown = [
        f"{visible_line(name, max_characters=_MAX_NAME_CHARS)} ({_kind(values)})"
        for name, values in list(columns.items())[:_MAX_COLUMNS]
    ]
    more = width - len(shown)
    return ", ".join(shown) + (f", and {more:,} more" if more > 0 else "")


def _kind(values: Sequence[object]) -> str:
    """Return the kind of a column's values, by the first ones."""
    kinds = {type(value) for value in values[:_LOOKED_AT] if value is not None}

    if not kinds:
        return "empty"

    if kinds == {bool}:
        return "bool"

    if kinds == {int}:
        return "int"

    if kinds <= {int, float}:
        return "float"

    return "text" if kinds == {str} else "mixed"


_NOTHING = "(no output; print a value, or end with an expression, to see it)"
_UNDONE = "[undone: variables and files are as they were before this call]"
_MAX_LEFT_BEHIND = 10
# The share of the text for notes beside output, however many files there are.
_NOTES_SHARE = 0.25
_MIN_CHARS = 500
# The formats in order of preference: a model reads the first one that a result has.
_TEXT_FORMATS = ("markdown", "text", "latex")
# What IPython gives as the text of HTML that code displays.
_BARE_HTML = re.compile(r"<(?:IPython\.core\.display\.)?HTML object>")

# An answer to plain HTTP, which no library raises as an error; of a program in the sandbox it may be one as well.
_RESPONSE = re.compile(r"<Response \[403(?: Forbidden)?\]>")
_DENIED = "[this sandbox has no network: from outside, 403 is only the answer of its proxy]"
_EXITED = "[exit() ended this call; variables stay]"
# The repr of matplotlib's objects, which adds nothing to a picture.
_ARTIST = re.compile(
    r"\[?<(?:matplotlib\.[\w.]+|seaborn\.[\w.]+|\w*Axes\w*|Figure|(?:Bar|Errorbar|Stem)Container)\b[^>]{0,200}>.{0,2000}"
    # What plt.title, plt.xlabel and plt.annotate return; a grid of axes.
    r"|Text\([-+.\w()]{1,60}, [-+.\w()]{1,60}, (?:'.{0,2000}'|\".{0,2000}\")\)"
    r"|array\(\[{1,2}<\w*Axes\w*\b.{0,20000}dtype=object\)"
    # The counts, the edges and the bars of plt.hist; the wedges of plt.pie, the parts of plt.boxplot, plt.violinplot.
    r"|\(\[?array\(.{0,20000}<(?:BarContainer|a list of)\b[^>]{0,200}>\)"
    r"|(?:\(|\{'(?:whiskers|bodies)': )\[<matplotlib\..{0,20000}[)}]",
    re.DOTALL,
)
# The file that IPython names in warnings.
_NAME_OF_CELL = re.compile(r"<ipython-input-(\d{1,9})-[0-9a-f]{12}>")
# Lines of pip that a sandbox gets whose network refuses the index, and only there.
_PIP_FAILED = "ERROR: No matching distribution found for "
_PIP_LINE = re.compile(
    r"(?:WARNING: Retrying \(|ERROR: (?:Could not |No matching |this sandbox has no network)|Defaulting to user ).*\n?"
)

# The egress proxy's answer in them. A guest may print the same: only the name of a host enters the text.
_INDEX_REFUSED = re.compile(
    r"403 ([A-Za-z0-9.-]{1,60}):\d{1,5} (?:is not allowed by this sandbox's network policy|leads to )"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The bounds and options of the text for the model.

    Attributes:
        max_text_chars: Characters of the whole text.
        images: Bounds of the pictures.
    """

    max_text_chars: int
    images: ImageBounds


@dataclass(frozen=True, slots=True)
class ExecutionText:
    """The text and pictures of one execution for a model."""

    text: str
    images: tuple[ToolImage, ...]


def tell(
    execution: Execution, code: str, shape: Shape, around: Surroundings, notes: Sequence[str] = ()
) -> ExecutionText:
    """Make the text and the pictures of an execution.

    Args:
        execution: The execution.
        code: The code that was run, for the line that failed.
        shape: The bounds.
        around: The facts about the sandbox for hints.
        notes: Lines of the tool itself, about files for example; they come last.
    """
    shelf = ImageShelf(shape.images)
    room = shape.max_text_chars
    refusal = _refused_index(execution, around) if is_about_install(execution, code) else ""
    parts = _output(execution, room, f"{refusal} {around.to_install or NOT_INSTALLABLE}" if refusal else "")
    parts += [
        part for result in _worth_telling(execution.results) if len(part := _value(result, shelf, room))
    ]
    parts += [Excerpt(line) for line in oversized(execution.results)]
    tail = [part for part in (shelf.left_out(), _cut(execution.truncated)) if part]

    if execution.error is not None and not is_failure(execution):
        tail += [] if parts else [_EXITED]
    elif execution.error is not None:
        tail.append(readable(describe_error(execution, code, around)))

    if around.network.level == "none" and any(_is_denial(result) for result in execution.results):
        tail.append(_DENIED)

    if is_undone(execution):
        tail.append(_UNDONE)
        tail += _left_behind(execution)

    if not parts and not tail and not notes:
        return ExecutionText(_NOTHING, ())

    return ExecutionText(_fit(parts, [*tail, *notes], room), tuple(shelf.images))


def _is_denial(result: Result) -> bool:
    """Return whether a result seems to be the answer of a sandbox's proxy, by requests or httpx."""
    return _RESPONSE.fullmatch(result.text or "") is not None


def is_failure(execution: Execution) -> bool:
    """Return whether an execution failed; the end of a script by `exit()` or `sys.exit(0)` is no failure."""
    error = execution.error
    return error is not None and not (
        error.name == "SystemExit" and error.exit_code == 0 and not is_undone(execution)
    )


def is_about_install(execution: Execution, code: str) -> bool:
    """Return whether code has tried to install a package, and pip did not find it."""
    return installs(code) and any(
        _PIP_FAILED in text for text in (*execution.logs.stderr, *execution.logs.stdout)
    )


def is_undone(execution: Execution) -> bool:
    """Return whether all effects of an execution on variables and files were undone."""
    return execution.transaction is not None and execution.transaction.outcome == "rolled_back"


def _left_behind(execution: Execution) -> list[str]:
    """Return the names that a transaction could not restore; they come from the guest."""
    left = execution.transaction.left_behind if execution.transaction is not None else ()
    shown = ", ".join(visible_line(name, max_characters=100) for name in left[:_MAX_LEFT_BEHIND])
    return [f"[lost all the same: {shown}]"] if shown else []


def list_files(files: Sequence[ToolFile], more: int = 0) -> list[str]:
    """Return a line for each new or changed file, and one for those that are not listed."""
    lines = [
        f"[{file.change} file: {visible_line(file.path, max_characters=300)}, {in_bytes(file.size_bytes)}"
        + (f", for the user at {file.url}]" if file.url else "]")
        for file in files
    ]
    return [*lines, f"[and {more:,} more new or changed files]"] if more else lines


def _refused_index(execution: Execution, around: Surroundings) -> str:
    """Return why pip reached no index, if the network of the sandbox is the reason."""
    if around.network.level == "none":
        return "[pip: this sandbox has no network]"

    found = next(filter(None, map(_INDEX_REFUSED.search, execution.logs.stderr)), None)
    return f"[pip: the network policy refuses {found[1]}]" if found else ""


def _output(execution: Execution, room: int, refused: str) -> list[Excerpt]:
    """Return the printed output; if pip was refused every index, `refused` replaces its lines."""
    out, err = (
        "".join(execution.logs.stdout),
        _NAME_OF_CELL.sub(r"Cell In[\1]", "".join(execution.logs.stderr)),
    )

    if refused:
        out, err = _PIP_LINE.sub("", out), _PIP_LINE.sub("", err)

    err = fold_repeats(err.rstrip("\n"))
    parts = [
        readable_ends(out.rstrip("\n"), room),
        readable_ends(f"[standard error]\n{err}", room) if err else Excerpt(""),
        Excerpt(refused),
    ]
    return [part for part in parts if len(part)]


def _worth_telling(results: Sequence[Result]) -> list[Result]:
    """Return the results without the repr of objects whose picture is among them."""
    if not any(mime.startswith("image/") for result in results for mime in result.parts):
        return list(results)

    return [
        result
        for result in results
        if set(result.parts) != {"text/plain"} or not _ARTIST.fullmatch(result.text or "")
    ]


def _value(result: Result, shelf: ImageShelf, room: int) -> Excerpt:
    """Return the text of one result for a model; beside a picture it is only the type of the object."""
    line = shelf.take(result)

    if line is not None:
        return Excerpt(line)

    return Excerpt(line) if (line := preview_table(result)) else _text_of(result, room)


def _text_of(result: Result, room: int) -> Excerpt:
    is_bare = result.text is None or _BARE_HTML.fullmatch(result.text)

    if is_bare and result.html and (words := text_of_html(result.html)):
        return readable_ends(f"[HTML, its text alone]\n{words}", room)

    for name in _TEXT_FORMATS:
        text: str | None = getattr(result, name)

        if text:
            return readable_ends(text, room)

    named = ", ".join(visible_line(mime, max_characters=60) for mime in list(result.parts)[:5])
    return Excerpt(f"[nothing of this to read: {named}; print what you need]" if named else "")


def _cut(truncated: Truncation) -> str:
    cut = [
        f"{size:,} {what}"
        for size, what in (
            (truncated.stdout_bytes, "bytes of standard output"),
            (truncated.stderr_bytes, "bytes of standard error"),
            (truncated.results, "results"),
        )
        if size
    ]
    return f"[dropped because of the limits: {', '.join(cut)}; print less]" if cut else ""


def _fit(parts: Sequence[Excerpt], notes: Sequence[str], max_chars: int) -> str:
    """Join the parts within the bound; notes come last and are shortened last."""
    room = max(max_chars, _MIN_CHARS)
    noted = "\n".join(notes)
    output_chars = sum(len(part) + 1 for part in parts)
    noted = shorten(noted, max(room - output_chars, int(room * _NOTES_SHARE), room // 2 if notes else 0))
    shares = fair_shares(
        [len(part) for part in parts], max(room - len(noted) - len(parts) - 1, _MIN_CHARS // 2)
    )
    shown = [shorten(part, share) for part, share in zip(parts, shares, strict=True)]
    return "\n".join([*shown, *([noted] if noted else [])])
