"""The scan of parsed Python: imports, names, calls with their arguments, and loops.

The tree is gone over once, from its leaves to its root, without recursion; each check looks at one node and at what its
names may stand for. An unknown argument is reported where that alone is a reason to look twice. The code is not run.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from typing import Protocol

from fumehood.advice import rules, shell
from fumehood.advice.characters import lookalike
from fumehood.advice.constant_folding import Text, code_in_blob
from fumehood.advice.findings import Collection, Severity
from fumehood.advice.names import Dotted, Names, at_home
from fumehood.advice.rules import (
    DANGEROUS_ATTRIBUTES,
    EVERYTHING,
    GUARDED,
    MODULES,
    NAMES,
    PATH_CALLS,
    PATH_METHODS,
    RULES,
    SHELL_CALLS,
    STARTERS,
)

_MAX_BODY_NODES = 2_000
_HUGE = 10**10


def starts_without_end(node: ast.While | ast.For | ast.AsyncFor, names: Names) -> bool:
    """Return whether a loop is endless and starts processes or threads."""
    if not _is_endless(node, names):
        return False

    for index, part in enumerate(part for statement in node.body for part in ast.walk(statement)):
        if index > _MAX_BODY_NODES:
            return False

        if isinstance(part, ast.Call) and any(value.name in STARTERS for value in names.dotted(part.func)):
            return True

    return False


def huge_value(node: ast.BinOp) -> str:
    """Describe the result of an operation on constants if it is too large for any memory; else return an empty text."""
    right = node.right.value if isinstance(node.right, ast.Constant) else None
    left = node.left.value if isinstance(node.left, ast.Constant) else None

    if isinstance(node.op, ast.Pow) and type(right) is int and type(left) is int:
        return "a number of more than 10 million bits" if left > 1 and right > 10**7 else ""

    if not isinstance(node.op, ast.Mult):
        return ""

    number = right if type(right) is int else _power(node.right)
    is_row = isinstance(node.left, (ast.List, ast.Tuple)) or isinstance(left, (str, bytes))
    return (
        "a text or list of 10 billion items or more"
        if is_row and number is not None and number >= _HUGE
        else ""
    )


def _is_endless(node: ast.While | ast.For | ast.AsyncFor, names: Names) -> bool:
    if isinstance(node, ast.While):
        return isinstance(node.test, ast.Constant) and bool(node.test.value)

    if not isinstance(node.iter, ast.Call):
        return False

    function = node.iter.func
    is_iter = isinstance(function, ast.Name) and function.id == "iter" and len(node.iter.args) == 2
    known = {value.name for value in names.dotted(function)}
    return is_iter or bool(known & {"itertools.count", "itertools.cycle", "itertools.repeat"})


def _power(node: ast.expr) -> int | None:
    """Return the value of a power such as `10 ** 12`, if it is small enough to be computed."""
    match node:
        case ast.BinOp(
            op=ast.Pow(), left=ast.Constant(value=int(base)), right=ast.Constant(value=int(exponent))
        ):
            return int(base**exponent) if 1 < base <= 1000 and 0 <= exponent <= 1000 else None

    return None


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
    """Adds one finding at a node."""

    def __call__(self, rule: str, message: str, node: ast.AST, severity: Severity | None = None) -> None:
        """Add the finding."""


class Calls:
    """Looks at calls.

    Args:
        names: Resolves names.
        add: Adds a finding.
        read: Scans a text that is run as code, at a node; None if the nesting is too deep already.
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
        """Scan a magic that is called like a function as the equivalent cell."""
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
        """Return the words of a command, as far as they are known."""
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
        elif "\n" not in path and (whole := rules.outside_workspace(path)):
            self._add("outside-workspace", f"{whole} is outside of the workspace", node)


def _is_interpreter(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "executable"


_MAX_INNER_DEPTH = 3
# From any object up to the root of all classes, and down again to all of them.
_CLIMBING = frozenset({"__base__", "__bases__", "__mro__", "__subclasses__"})
_WORST_ATTRIBUTES = frozenset({"__globals__", "__builtins__", "f_globals", "f_builtins", "gi_frame"})


class Tree:
    """Scans one piece of Python, and texts that it would run as code.

    Args:
        collection: The collection to which findings are added.
        read: Scans a further text as code; takes the text, its line and its depth.
        depth: The number of enclosing texts that are run as code.
        at_line: The line of the whole code that all findings get, for a text within it; None: the lines of the tree.
    """

    def __init__(
        self,
        collection: Collection,
        read: Callable[[str, int, int], None],
        *,
        depth: int = 0,
        at_line: int | None = None,
    ) -> None:
        self._collection = collection
        self._read = read
        self._depth = depth
        self._at_line = at_line
        self._used: set[str] = set()

    def look(self, tree: ast.AST) -> None:
        """Scan the whole tree, and add its findings to the collection."""
        nodes = list(ast.walk(tree))
        self._names = Names(nodes)
        self._calls = Calls(
            self._names, self._add, self._read_inner if self._depth < _MAX_INNER_DEPTH else None
        )
        self._bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}

        # A walk goes from the root to the leaves: backwards, what is inside comes first and is known by then.
        for node in reversed(nodes):
            look = _LOOKS.get(type(node))

            if look is not None and not (isinstance(node, ast.Constant) and id(node) in prose):
                look(self, node)

        self._put_together(tree)

        if self._names.is_exhausted:
            self._add("unparsable", "more text is put together than can be followed", tree)

    def _add(self, rule: str, message: str, node: ast.AST, severity: Severity | None = None) -> None:
        line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)

        if self._at_line is not None:
            self._collection.add(
                rule, f"in a text that is run as code: {message}", line=self._at_line, severity=severity
            )
            return

        column = self._collection.characters_before(line, offset) + 1
        self._collection.add(rule, message, line=line, column=column, severity=severity)

    def _read_inner(self, text: str, node: ast.AST) -> None:
        line = self._at_line if self._at_line is not None else getattr(node, "lineno", 1)
        self._read(text, line, self._depth + 1)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(alias.name, node)

    def _import_from(self, node: ast.ImportFrom) -> None:
        if node.module is None or node.level:
            return

        for alias in node.names[:200]:
            self._named(Dotted(at_home(f"{node.module}.{alias.name}")), node, verb="is imported")

        if node.names[0].name == "*":
            self._module(node.module, node)

    def _module(self, name: str, node: ast.AST) -> None:
        self._named(Dotted(at_home(name)), node, verb="is imported")

    def _reference(self, node: ast.Name | ast.Attribute | ast.Subscript | ast.Call) -> None:
        """Check a name that is called, passed on or stored: each use counts."""
        for value in self._names.dotted(node):
            # `subprocess.run` is reported as a whole, not `subprocess` as well.
            if id(node) in self._bases and value.name not in NAMES:
                self._used.add(value.name)
            else:
                self._named(value, node)

    def _named(self, value: Dotted, node: ast.AST, *, verb: str = "is used") -> None:
        self._used.add(value.name)
        rule, severity = _rule_of(value.name)

        if rule:
            self._add(rule, f"{value.name} {verb}", node, severity)

        if value.is_hidden:
            self._hidden(value, rule, severity or (RULES[rule].severity if rule else "info"), node)

    def _hidden(self, value: Dotted, rule: str, severity: Severity, node: ast.AST) -> None:
        """Report a name that is looked up by a text: more severe for a dangerous name, or a text built from parts."""
        is_guarded = value.name.partition(".")[0] in GUARDED or rule == "dynamic-code"
        is_dangerous = severity != "info"

        if not is_dangerous and not is_guarded:
            return

        if is_guarded and (is_dangerous or value.is_made):
            self._add("hidden-name", f"{value.name} is reached in a way that hides it", node)
        elif is_dangerous or value.name in GUARDED:
            self._add("hidden-name", f"{value.name} is reached in a way that hides it", node, "warning")

    def _name(self, node: ast.Name) -> None:
        self._reference(node)
        self._letters(node.id, node)

    def _attribute(self, node: ast.Attribute) -> None:
        self._reference(node)
        self._letters(node.attr, node)

        if node.attr in _CLIMBING:
            self._used.add(f".{node.attr}")

        if node.attr in DANGEROUS_ATTRIBUTES:
            severity: Severity | None = "danger" if node.attr in _WORST_ATTRIBUTES else None
            self._add("introspection", f"reaches for {node.attr}", node, severity)

    def _defined(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.arg) -> None:
        self._letters(node.arg if isinstance(node, ast.arg) else node.name, node)

    def _letters(self, name: str, node: ast.AST) -> None:
        if not name.isascii() and (why := lookalike(name)):
            self._add("lookalike-name", why, node)

    def _constant(self, node: ast.Constant) -> None:
        value = node.value

        if isinstance(value, bytes):
            value = value[: 1 << 20].decode("latin-1")

        if isinstance(value, str):
            self._text(Text(value), node)
        elif type(value) is int and value == rules.METADATA_NUMBER:
            self._add("metadata-address", "169.254.169.254, written as a number", node)

    def _text(self, value: Text, node: ast.AST) -> None:
        """Check a string constant or a computed string, at any place in the code."""
        text = value.text

        if len(text) < 5:
            return

        if match := rules.SENSITIVE_PATH.search(text):
            self._add("sensitive-path", f"names {match[0]}", node)

        if match := rules.METADATA_ADDRESS.search(text):
            self._add("metadata-address", f"names {match[0]}", node)

        if len(text) >= 200 and (found := code_in_blob(text)):
            rule, why = found
            self._add(rule, why, node)

    def _joined(self, node: ast.BinOp | ast.JoinedStr) -> None:
        """Look at a concatenated string, which can name what none of its parts names."""
        for text in self._names.texts(node):
            self._text(text, node)

        if isinstance(node, ast.BinOp) and (what := huge_value(node)):
            self._add("huge-value", f"makes {what}", node)

    def _call(self, node: ast.Call) -> None:
        self._reference(node)
        self._calls.look(node)

        for text in self._names.texts(node):
            self._text(text, node)

    def _loop(self, node: ast.While | ast.For | ast.AsyncFor) -> None:
        if starts_without_end(node, self._names):
            self._add("bomb", "starts processes or threads in a loop without end", node)

    def _put_together(self, tree: ast.AST) -> None:
        """Add findings for calls that are harmful only in combination."""
        is_connected = any(name.startswith("socket") for name in self._used)
        gives_away = {"os.dup2", "pty.spawn"} & self._used

        climbed = {f".{name}" for name in _CLIMBING} & self._used

        if ".__subclasses__" in climbed and len(climbed) > 1:
            self._add("introspection", "climbs from an object to all classes there are", tree, "danger")

        if is_connected and gives_away:
            self._add("reverse-shell", "connects a socket to the standard streams of a program", tree)


def _rule_of(name: str) -> tuple[str, Severity | None]:
    """Return the rule for a dotted name, or for its module."""
    if name in NAMES:
        return NAMES[name]

    while name:
        if name in MODULES:
            return MODULES[name], None

        name = name.rpartition(".")[0]

        # What hangs on a name that counts, such as os.environ.get, counts once: there.
        if name in NAMES:
            return "", None

    return "", None


_LOOKS: dict[type[ast.AST], Callable[..., None]] = {
    ast.Import: Tree._import,
    ast.ImportFrom: Tree._import_from,
    ast.Name: Tree._name,
    ast.Attribute: Tree._attribute,
    ast.Subscript: Tree._reference,
    ast.FunctionDef: Tree._defined,
    ast.AsyncFunctionDef: Tree._defined,
    ast.ClassDef: Tree._defined,
    ast.arg: Tree._defined,
    ast.Constant: Tree._constant,
    ast.BinOp: Tree._joined,
    ast.JoinedStr: Tree._joined,
    ast.Call: Tree._call,
    ast.While: Tree._loop,
    ast.For: Tree._loop,
    ast.AsyncFor: Tree._loop,
}
