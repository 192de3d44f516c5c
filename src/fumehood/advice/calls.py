"""Calls in hostile code whose arguments matter: what runs texts, starts programs, opens paths, looks names up.

Arguments are known as far as `Names` can tell; what is not known is reported as such where that alone is a reason to
look twice.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from typing import Protocol

from fumehood.advice import paths, shell
from fumehood.advice.constant_folding import Text
from fumehood.advice.findings import Severity
from fumehood.advice.names import Dotted, Names
from fumehood.advice.rules import EVERYTHING, GUARDED, PATH_CALLS, PATH_METHODS, SHELL_CALLS

_MAX_INNER = 20
_URLS = ("http://", "https://", "ftp://", "s3://", "gs://")
_SHELL = "get_ipython()."
_RUN_TEXT = frozenset(
    {"exec", "eval", "compile", "timeit.timeit", f"{_SHELL}run_cell", f"{_SHELL}ex", f"{_SHELL}ev"}
)
_LOAD_OBJECTS = frozenset(
    {"pickle.loads", "marshal.loads", "dill.loads", "cloudpickle.loads", "yaml.unsafe_load"}
)
_IMPORT_BY_TEXT = frozenset({"importlib.import_module", "__import__", "importlib.__import__"})


class Add(Protocol):
    """Takes up one finding at a node."""

    def __call__(self, rule: str, message: str, node: ast.AST, severity: Severity | None = None) -> None:
        """Take it up."""


class Calls:
    """Looks at calls.

    Args:
        names: What names stand for.
        add: Takes findings up.
        read: Reads a text that is run as code, at a node; None where that is nested too deep already.
    """

    def __init__(self, names: Names, add: Add, read: Callable[[str, ast.AST], None] | None) -> None:
        self._names = names
        self._add = add
        self._read = read
        self._inner = 0

    def look(self, node: ast.Call) -> None:
        """Look at one call."""
        functions = [value.name for value in self._names.dotted(node.func)]

        for name in functions:
            self._known_call(name, node)

        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""

        if method in PATH_METHODS or PATH_CALLS.intersection(functions):
            self._path_arguments(node, functions)

    def _known_call(self, name: str, node: ast.Call) -> None:
        if name in _RUN_TEXT:
            self._runs_text(name, node)
        elif name in _LOAD_OBJECTS and node.args and self._names.comes_from(node.args[0], "decoded"):
            self._add("hidden-code", f"{name} makes objects of what was decoded", node)
        elif name in (f"{_SHELL}run_line_magic", f"{_SHELL}run_cell_magic"):
            self._runs_magic(name, node)
        elif name in ("types.CodeType", "types.FunctionType"):
            self._add("introspection", f"{name} makes code of values", node, "danger")
        elif name in SHELL_CALLS:
            self._starts_program(node)
        elif name in _IMPORT_BY_TEXT and node.args and not self._names.texts(node.args[0]):
            self._add("hidden-name", f"{name} imports what is not known before it runs", node, "warning")
        elif name in ("getattr", "setattr") and len(node.args) > 1:
            self._looked_up(name, node)

    def _runs_magic(self, name: str, node: ast.Call) -> None:
        """A magic that is called like a function is read as the cell that it stands for."""
        texts = [self._names.texts(argument) for argument in node.args[:3]]

        if not texts or not all(texts):
            self._add("dynamic-code", "a magic is run that is not known before it runs", node)
            return

        magic, line, *body = (text[0].text for text in (*texts, *([[Text("")]] if len(texts) == 1 else [])))
        is_cell = name.endswith("run_cell_magic")
        self._run_inner(f"%%{magic} {line}\n{''.join(body)}" if is_cell else f"%{magic} {line}", node)

    def _looked_up(self, name: str, node: ast.Call) -> None:
        for base in self._names.dotted(node.args[0]):
            is_known = name == "getattr" and self._names.texts(node.args[1])

            if base.name in GUARDED and not is_known:
                self._add(
                    "hidden-name", f"{name} on {base.name} with a name that is not known before it runs", node
                )

    def _runs_text(self, name: str, node: ast.Call) -> None:
        if not node.args:
            return

        given = node.args[0]

        if self._names.comes_from(given, "decoded"):
            self._add("hidden-code", f"{name} runs what was decoded", node)

        if self._names.comes_from(given, "fetched"):
            self._add("remote-code", f"{name} runs what was fetched", node)

        for text in self._names.texts(given):
            self._run_inner(text.text, node)

    def _run_inner(self, text: str, node: ast.AST) -> None:
        self._inner += 1

        if self._read is None or self._inner > _MAX_INNER:
            self._add("unparsable", "too much text is run as code to read all of it", node)
        else:
            self._read(text, node)

    def _starts_program(self, node: ast.Call) -> None:
        command = self._command(node)

        for found in shell.findings_in(command[:65_536]):
            self._add(found.rule, found.message, node)

        if inner := shell.python_in(command):
            self._run_inner(inner, node)

        names = {name for part in ast.walk(node) if isinstance(part, ast.Name) for name in (part.id,)}
        own = {value.name for part in node.args for value in self._each_dotted(part)}

        if "__file__" in names or "sys.argv" in own:
            self._add("bomb", "starts itself again", node)

    def _each_dotted(self, node: ast.expr) -> list[Dotted]:
        parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
        return [
            value
            for part in parts[:50]
            for value in self._names.dotted(part.value if isinstance(part, ast.Subscript) else part)
        ]

    def _command(self, node: ast.Call) -> str:
        """The words of a command, as far as they are known."""
        words: list[str] = []
        given = [*node.args[:20], *(keyword.value for keyword in node.keywords[:20])]

        for argument in given:
            parts = argument.elts[:200] if isinstance(argument, (ast.List, ast.Tuple)) else [argument]

            for part in parts:
                texts = self._names.texts(part)
                known = [text.text for text in texts] or ["python" if _is_interpreter(part) else ""]
                words += [shlex.quote(text) if part is not argument else text for text in known]

        return " ".join(words)

    def _path_arguments(self, node: ast.Call, functions: list[str]) -> None:
        given = [
            *node.args[:2],
            *(keyword.value for keyword in node.keywords if keyword.arg in ("path", "file")),
        ]

        for argument in given:
            for text in self._names.texts(argument):
                self._path(text.text, node, functions)

    def _path(self, path: str, node: ast.Call, functions: list[str]) -> None:
        if "shutil.rmtree" in functions and (path.rstrip("/*") or "/") in EVERYTHING:
            self._add("destructive", f"deletes {path}", node)

        if path.startswith(_URLS):
            self._add("network", f"reads from the network: {path[:80]}", node)
        elif "\n" not in path and (whole := paths.outside_workspace(path)):
            self._add("outside-workspace", f"{whole} is outside of the workspace", node)


def _is_interpreter(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "executable"
