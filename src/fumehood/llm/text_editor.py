"""The text editor tool of Anthropic's models: view, create, str_replace and insert, on the files of a sandbox.

Runs in the user's process; the files are read and written inside the sandbox. The arguments come from a model: each is
checked, and a wrong one gives an answer and no exception. A file is held whole while it is edited, so its size is
bounded.
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fumehood import (
    AsyncSandbox,
    FileError,
    FileInfo,
    FileTooLargeError,
    InvalidArgumentError,
    PathNotFoundError,
    PathNotTextError,
)
from fumehood.llm.readable_text import in_bytes, readable, shorten
from fumehood.text import visible_line

_MAX_FILE_BYTES = 4 << 20
_MAX_LISTED = 500
_CONTEXT_LINES = 4

EditError = Literal["", "invalid_tool_input", "file_not_found", "unavailable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """The result of a command of the editor.

    Attributes:
        command: view, create, str_replace or insert; empty if it was none of them.
        text: The text for the model.
        error: The kind of failure; empty if it succeeded.
        content: The lines that are viewed, as they are in the file.
        start_line: The number of the first line that was viewed or replaced, from 1.
        total_lines: Lines of the file that is viewed.
        is_update: Whether the file was there before it was created.
        old: The lines that were replaced.
        new: The lines in their place.
    """

    command: str
    text: str
    error: EditError = ""
    content: str = ""
    start_line: int = 1
    total_lines: int = 0
    is_update: bool = False
    old: tuple[str, ...] = ()
    new: tuple[str, ...] = ()

    @property
    def is_write(self) -> bool:
        """True when a file was changed."""
        return not self.error and self.command != "view"


class _RefusedError(Exception):
    """The arguments are not those of the command."""


async def edit(sandbox: AsyncSandbox, arguments: Mapping[str, object], *, max_chars: int) -> Edited:
    """Carry out a command of the editor.

    Args:
        sandbox: The sandbox with the files.
        arguments: `command`, `path`, and the arguments of the command, as in Anthropic's text editor tool.
        max_chars: Characters of the answer.
    """
    command = arguments.get("command")
    verb = _VERBS.get(command) if isinstance(command, str) else None

    if verb is None or not isinstance(command, str):
        return Edited(
            command="",
            text="Error: `command` must be view, create, str_replace or insert.",
            error="invalid_tool_input",
        )

    try:
        done = await verb(sandbox, arguments)
    except (_RefusedError, InvalidArgumentError) as error:
        return Edited(command=command, text=f"Error: {error}", error="invalid_tool_input")
    except PathNotFoundError as error:
        text = f"Error: {error.message}. View its directory to see what is there."
        return Edited(command=command, text=text, error="file_not_found")
    except FileError as error:
        return Edited(command=command, text=f"Error: {_reason(error)}", error="invalid_tool_input")

    return replace(done, text=shorten(done.text, max_chars))


async def _view(sandbox: AsyncSandbox, arguments: Mapping[str, object]) -> Edited:
    path = _text(arguments, "path")
    info = await sandbox.files.get_info(path)

    if info.type == "dir":
        entries = await sandbox.files.list(path, depth=2)
        return Edited(command="view", text=_listed(path, entries))

    lines = (await sandbox.files.read(path, max_bytes=_MAX_FILE_BYTES)).split("\n")
    first, last = _range(arguments.get("view_range"), len(lines))
    shown = lines[first - 1 : last]
    return Edited(
        command="view",
        text=_numbered(shown, first) or "(the file is empty)",
        content="\n".join(shown),
        start_line=first,
        total_lines=len(lines),
    )


async def _create(sandbox: AsyncSandbox, arguments: Mapping[str, object]) -> Edited:
    path, text = _text(arguments, "path"), _text(arguments, "file_text", may_be_empty=True)
    is_update = await sandbox.files.exists(path)
    info = await sandbox.files.write(path, text)
    verb = "replaced" if is_update else "created"
    return Edited(
        command="create",
        text=f"The file {visible_line(info.path)} was {verb}: {in_bytes(info.size_bytes)}.",
        is_update=is_update,
    )


async def _str_replace(sandbox: AsyncSandbox, arguments: Mapping[str, object]) -> Edited:
    path, old = _text(arguments, "path"), _text(arguments, "old_str")
    new = _text(arguments, "new_str", may_be_empty=True) if "new_str" in arguments else ""
    content = await sandbox.files.read(path, max_bytes=_MAX_FILE_BYTES)
    count = content.count(old)

    if count == 0:
        raise _RefusedError(
            "`old_str` is not in the file. View the file and copy it exactly, with its spaces."
        )

    if count > 1:
        raise _RefusedError(
            f"`old_str` occurs {count:,} times. Give more of the lines around it, so that it occurs once."
        )

    place = content.index(old)
    changed = content[:place] + new + content[place + len(old) :]
    await sandbox.files.write(path, changed)
    start = content.count("\n", 0, place) + 1
    before = content.split("\n")[start - 1 : start + old.count("\n")]
    after = changed.split("\n")[start - 1 : start + new.count("\n")]
    return Edited(
        command="str_replace",
        text=f"The file was changed. It reads now:\n{_around(changed, start, len(after))}",
        start_line=start,
        old=tuple(before),
        new=tuple(after),
    )


async def _insert(sandbox: AsyncSandbox, arguments: Mapping[str, object]) -> Edited:
    path = _text(arguments, "path")
    # Older versions of the tool call it `new_str`.
    name = "insert_text" if "insert_text" in arguments else "new_str"
    text = _text(arguments, name, may_be_empty=True) if name in arguments else _missing("insert_text")
    lines = (await sandbox.files.read(path, max_bytes=_MAX_FILE_BYTES)).split("\n")
    after = arguments.get("insert_line")

    if type(after) is not int or not 0 <= after <= len(lines):
        raise _RefusedError(f"`insert_line` must be a whole number from 0 to {len(lines):,}.")

    new = text.removesuffix("\n").split("\n")
    changed = "\n".join([*lines[:after], *new, *lines[after:]])
    await sandbox.files.write(path, changed)
    return Edited(
        command="insert",
        text=f"The text was inserted. The file reads now:\n{_around(changed, after + 1, len(new))}",
        start_line=after + 1,
        new=tuple(new),
    )


_VERBS: Mapping[str, Callable[[AsyncSandbox, Mapping[str, object]], Awaitable[Edited]]] = {
    "view": _view,
    "create": _create,
    "str_replace": _str_replace,
    "insert": _insert,
}


def _text(arguments: Mapping[str, object], name: str, *, may_be_empty: bool = False) -> str:
    value = arguments.get(name)

    if not isinstance(value, str) or (not value and not may_be_empty):
        return _missing(name)

    return value


def _missing(name: str) -> str:
    raise _RefusedError(f"`{name}` must be given, as a text.")


def _range(given: object, total: int) -> tuple[int, int]:
    if given is None:
        return 1, total

    if isinstance(given, (list, tuple)) and len(given) == 2 and all(type(line) is int for line in given):
        first, last = given[0], total if given[1] == -1 else given[1]

        if 1 <= first <= total and first <= last:
            return first, min(last, total)

    raise _RefusedError(f"`view_range` must be [first, last], lines from 1 to {total:,}, or -1 as the last.")


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:6}\t{readable(line)}" for number, line in enumerate(lines, first))


def _around(content: str, start: int, count: int) -> str:
    lines = content.split("\n")
    first = max(1, start - _CONTEXT_LINES)
    return _numbered(lines[first - 1 : start - 1 + count + _CONTEXT_LINES], first)


def _listed(path: str, entries: list[FileInfo]) -> str:
    shown = [entry for entry in entries if "/." not in entry.path.removeprefix(path)]
    lines = [
        f"{visible_line(entry.path, max_characters=300)}{'/' if entry.type == 'dir' else ''}"
        for entry in shown[:_MAX_LISTED]
    ]
    more = len(shown) - len(lines)
    head = f"{visible_line(posixpath.normpath(path))}: {len(shown):,} files and directories, two levels deep"
    return "\n".join([head, *lines, *([f"... and {more:,} more"] if more else [])])


def _reason(error: FileError) -> str:
    if isinstance(error, FileTooLargeError):
        return f"the file has more than {in_bytes(_MAX_FILE_BYTES)}. Work on it with run_code or bash."

    if isinstance(error, PathNotTextError):
        return "the file is no UTF-8 text. Look at it with run_code or bash."

    return f"{error.message}. {error.hint}".rstrip(" .") + "."
