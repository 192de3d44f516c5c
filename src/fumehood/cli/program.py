"""The program of `fumehood run`: a file, a notebook, a module, a piece of code, or standard input.

It reads the program and determines how the sandbox starts it; it runs nothing.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fumehood.bounds import KIB, MIB
from fumehood.errors import InvalidArgumentError
from fumehood.values.languages import PYTHON, ContextLanguage, Language, find_language, language_of_file

if TYPE_CHECKING:
    from fumehood.values.results import Result

# The most that the library accepts. No more is read: there are files without an end.
_MAX_CODE_BYTES = 8 * MIB
# Longer code is not parsed for imports: that would take as long as the imports do.
_MAX_LOOKED_CHARS = MIB
_PIECE_BYTES = 64 * KIB
_STDIN = "-"
# Called in the sandbox, without leaving a name behind.
_BEGIN = "__import__('fumehood_guest.context.program', fromlist=['begin']).begin{}"
# Where `_BEGIN` has named the cell, a context runs the module as `python -m` does.
_RUN_MODULE = "%run -m {}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to run, piece by piece in one context.

    Attributes:
        cells: The code: one piece, or the cells of a notebook.
        may_raise: Positions of the cells whose errors do not stop the run.
        language: The language of contexts that it is written in.
        opening: Python that is run before it; empty: nothing.
        file: The name of its file in the home directory; empty: it has none there.
        stem: The name of the files of its figures, without number and suffix.
        has_stdin: Whether `input()` in the program may read standard input.
        module: The name of the module that is run; empty: the program is code.
        is_fed: Whether questions ask for the next piece of standard input, as `next_piece` returns it, and not for a
            line of a terminal.
    """

    cells: tuple[str, ...]
    may_raise: frozenset[int] = frozenset()
    language: str = "python"
    opening: str = ""
    file: str = ""
    stem: str = "figure"
    has_stdin: bool = True
    module: str = ""
    is_fed: bool = False

    def shows(self, result: Result) -> bool:
        """Return whether a result is printed: node prints no value of a last expression, and Python sends none."""
        return not (result.is_main_result and self.language in ("javascript", "typescript"))

    def preload(self, known: Sequence[str]) -> tuple[str, ...]:
        """Return the modules to import before the program runs: those that it names.

        A module that is not imported before is imported when the program asks for it. All are returned for a program
        whose imports cannot be seen, or that names a package from elsewhere, which may import any of them.

        Args:
            known: The modules to choose from.
        """
        if self.language != "python":
            return ()

        names = {self.module.partition(".")[0]} if self.module else _imported(self.cells)

        if names is None:
            return tuple(known)

        heads = {name.partition(".")[0] for name in known}
        named = tuple(name for name in known if name.partition(".")[0] in names)
        return named if names <= sys.stdlib_module_names | heads else tuple(known)


def _imported(cells: Sequence[str]) -> set[str] | None:
    """Returns the packages that code imports; None if the code is not plain Python, or too large to look through."""
    if sum(map(len, cells)) > _MAX_LOOKED_CHARS:
        return None

    # Imported late: runs in a warm process, which has imported all modules of its list, do not need it.
    import ast

    names: set[str] = set()
    try:
        nodes = [node for cell in cells for node in ast.walk(ast.parse(cell))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])

    return names


def read_program(
    words: Sequence[str],
    code: str | None,
    module: str | None,
    read: Callable[[str], bytes] | None = None,
    *,
    is_fed: bool = False,
    language: Language | None = None,
) -> Program:
    """Read the program that a command line names.

    Args:
        words: The file and its arguments; of a module or a piece of code, the arguments.
        code: A piece of code, instead of a file.
        module: The name of a module, instead of a file.
        read: Returns the content of a file, or of standard input for `-`; None: this function reads it.
        is_fed: Whether it gets standard input in pieces; a program that comes from there gets none, and languages
            beside Python none yet.
        language: The language; None: the language of the file's suffix, else Python.

    Raises:
        InvalidArgumentError: The program is not text, is too large, is not a notebook, or is not the name of a module.
        OSError: A file cannot be read.
    """
    spoken = find_language(language)

    if code is not None and spoken not in (None, PYTHON):
        return _beside_python(spoken, _checked("-c", code), words)

    if code is not None:
        return Program(
            cells=(_checked("-c", code),),
            opening=_opening("<string>", ["-c", *words], is_fed=is_fed),
            is_fed=is_fed,
        )

    if module is not None:
        if not all(part.isidentifier() for part in module.split(".")):
            raise InvalidArgumentError(
                field="-m", value=module, allowed="the name of a module, such as timeit or package.module"
            )

        return Program(
            cells=(_RUN_MODULE.format(shlex.join([module, *words])),),
            opening=_opening("<string>", ["-m", *words], is_fed=is_fed),
            module=module,
            is_fed=is_fed,
        )

    path, *arguments = words

    if not path:
        raise InvalidArgumentError(field="FILE", value=path, allowed="the name of a file, or - for stdin")

    if path.endswith(".ipynb"):
        return _notebook(path, arguments, is_fed=is_fed)

    text = _text(path, (read or _read)(path))

    spoken = spoken or language_of_file(path) or PYTHON

    if spoken is not PYTHON:
        return _beside_python(spoken, text, arguments, path)

    if path == _STDIN:
        return Program(cells=(text,), opening=_opening("<stdin>", words), has_stdin=False)

    file = os.path.basename(path)
    stem = os.path.splitext(file)[0]

    opening = _opening(path, words, file, is_fed=is_fed)
    return Program(cells=(text,), opening=opening, file=file, stem=stem, is_fed=is_fed)


def _beside_python(
    language: ContextLanguage, text: str, arguments: Sequence[str], path: str = _STDIN
) -> Program:
    """Returns a program in a language other than Python."""
    file = "" if path == _STDIN else os.path.basename(path)
    return Program(
        cells=(_given(language, arguments, text) + text,),
        language=language.name,
        file=file,
        stem=os.path.splitext(file)[0] or "figure",
        has_stdin=path != _STDIN,
    )


def _given(language: ContextLanguage, arguments: Sequence[str], text: str) -> str:
    """Returns a program with a prefix that sets its arguments, on its first line so that line numbers stay."""
    if not arguments:
        return ""

    if language.name == "bash":
        return f"set -- {shlex.join(arguments)}; "

    if language.name in ("javascript", "typescript"):
        words = ", ".join(map(json.dumps, arguments))
        # A first line with `#!` is one only where nothing stands before it.
        return f"process.argv.splice(2, Infinity, {words}); {'//' if text.startswith('#!') else ''}"

    raise InvalidArgumentError(
        field="ARG", value=arguments[0], allowed=f"no arguments: a program in {language.title} is given none"
    )


def next_piece() -> str | None:
    """Return the next piece of standard input as base64, waiting for it; None at the end."""
    # Not by way of a buffer: a piece is to be passed on when it comes.
    piece = os.read(sys.stdin.fileno(), _PIECE_BYTES)
    return base64.b64encode(piece).decode() if piece else None


def _notebook(path: str, arguments: Sequence[str], *, is_fed: bool) -> Program:
    # Imported late: nothing else needs it.
    from fumehood.notebook.cell_runs import RAISES_TAG, is_run
    from fumehood.notebook.ipynb import read_notebook, source_of, tags_of
    from fumehood.refusals import naming_arguments

    with naming_arguments({"notebook": "FILE"}):
        cells = [cell for cell in read_notebook(path)["cells"] if is_run(cell)]

    return Program(
        cells=tuple(map(source_of, cells)),
        may_raise=frozenset(at for at, cell in enumerate(cells) if RAISES_TAG in tags_of(cell)),
        opening=_opening("", [path, *arguments], is_fed=is_fed),
        is_fed=is_fed,
        stem=os.path.splitext(os.path.basename(path))[0],
    )


def _opening(name: str, argv: Sequence[str], file: str = "", *, is_fed: bool = False) -> str:
    # Older servers know three arguments.
    return _BEGIN.format((name, list(argv), file, True) if is_fed else (name, list(argv), file))


def _checked(option: str, text: str) -> str:
    try:
        is_right = len(text.encode()) <= _MAX_CODE_BYTES
    except UnicodeEncodeError:
        is_right = False

    if not is_right:
        raise InvalidArgumentError(
            field=option, value=text, allowed=f"text in UTF-8 of at most {_MAX_CODE_BYTES:,} bytes"
        )

    return text


def _read(path: str) -> bytes:
    if path == _STDIN:
        return sys.stdin.buffer.read(_MAX_CODE_BYTES + 1)

    with open(path, "rb") as file:
        return file.read(_MAX_CODE_BYTES + 1)


def _text(path: str, content: bytes) -> str:
    try:
        if len(content) <= _MAX_CODE_BYTES:
            return content.decode()
    except UnicodeDecodeError:
        pass

    raise InvalidArgumentError(
        field="FILE", value=path, allowed=f"text in UTF-8 of at most {_MAX_CODE_BYTES:,} bytes"
    )
