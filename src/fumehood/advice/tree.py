"""The scan of parsed Python: what is imported, named, called and looped.

The tree is gone over once, from its leaves to its root, without recursion; each check looks at one node and at what
its names may stand for. Nothing of the code is run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from fumehood.advice import paths
from fumehood.advice.calls import Calls
from fumehood.advice.constant_folding import Text
from fumehood.advice.encoded import code_in_blob
from fumehood.advice.findings import Collection, Severity
from fumehood.advice.lookalikes import lookalike
from fumehood.advice.names import Dotted, Names, at_home
from fumehood.advice.rules import DANGEROUS_ATTRIBUTES, GUARDED, MODULES, NAMES, RULES
from fumehood.advice.shapes import huge_value, starts_without_end

_MAX_INNER_DEPTH = 3
# From any object up to the root of all classes, and down again to all of them.
_CLIMBING = frozenset({"__base__", "__bases__", "__mro__", "__subclasses__"})
_WORST_ATTRIBUTES = frozenset({"__globals__", "__builtins__", "f_globals", "f_builtins", "gi_frame"})


class Tree:
    """Looks at one piece of Python, and at what it would run as code in turn.

    Args:
        collection: Where findings go.
        read: Reads a further text as code: the text, its line, how deep it is.
        depth: How many texts run as code are around this one.
        at_line: The line of the whole code where a text within it stands; None: lines are those of the tree.
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
        """Look at all of it."""
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
        """A name that is called, passed on or kept: each way of using it counts."""
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
        elif type(value) is int and value == paths.METADATA_NUMBER:
            self._add("metadata-address", "169.254.169.254, written as a number", node)

    def _text(self, value: Text, node: ast.AST) -> None:
        """A text, wherever it stands."""
        text = value.text

        if len(text) < 5:
            return

        if match := paths.SENSITIVE_PATH.search(text):
            self._add("sensitive-path", f"names {match[0]}", node)

        if match := paths.METADATA_ADDRESS.search(text):
            self._add("metadata-address", f"names {match[0]}", node)

        if len(text) >= 200 and (told := code_in_blob(text)):
            rule, why = told
            self._add(rule, why, node)

    def _joined(self, node: ast.BinOp | ast.JoinedStr) -> None:
        """A text that is put together may say what none of its parts says."""
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
        """What is harmless alone and is not together."""
        is_connected = any(name.startswith("socket") for name in self._used)
        gives_away = {"os.dup2", "pty.spawn"} & self._used

        climbed = {f".{name}" for name in _CLIMBING} & self._used

        if ".__subclasses__" in climbed and len(climbed) > 1:
            self._add("introspection", "climbs from an object to all classes there are", tree, "danger")

        if is_connected and gives_away:
            self._add("reverse-shell", "connects a socket to the standard streams of a program", tree)


def _rule_of(name: str) -> tuple[str, Severity | None]:
    """The rule that a dotted name falls under, by itself or by its module."""
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
