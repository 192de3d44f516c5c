"""Resolves names and expressions of hostile code, as far as the text alone determines them.

Nothing is imported and nothing is run. Order and scope are not followed: a name may stand for whatever it is bound to
anywhere, which is what advice needs. An expression stands for a few values: a text that could be put together, or a
dotted name such as `os.system`. Everything is bounded: how many values, how long a text, how deep, how much in all;
beyond that an expression stands for nothing that is known.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fumehood.advice.constant_folding import Text, called_text, sliced
from fumehood.advice.rules import DECODERS, FETCHERS, GUARDED, SAME_MODULE, words

MAX_IMPORTS = 4
MAX_BOUND = 8


class Bindings:
    """The values that each name in one piece of code is bound to.

    Attributes:
        imported: Name -> dotted names of what it was imported from.
        stars: Modules of which everything was imported.
        bound: Name -> expressions.
        added: Name -> expressions that were added to it.
    """

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self.imported: dict[str, list[str]] = {}
        self.stars: list[str] = []
        self.bound: dict[str, list[ast.expr]] = {}
        self.added: dict[str, list[ast.expr]] = {}

        for node in nodes:
            work = _BINDING_WORK.get(type(node))

            if work is not None:
                work(self, node)

    def _import_modules(self, node: ast.Import) -> None:
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            self._import(alias.asname or whole, whole)

    def _import_names(self, node: ast.ImportFrom) -> None:
        if node.module is None or node.level:
            return

        for alias in node.names:
            if alias.name == "*":
                self.stars.append(node.module)
            else:
                self._import(alias.asname or alias.name, f"{node.module}.{alias.name}")

    def _import(self, name: str, whole: str) -> None:
        kept = self.imported.setdefault(name, [])

        if len(kept) < MAX_IMPORTS:
            kept.append(whole)

    def _assigned(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, node.value)

    def _named(self, node: ast.AnnAssign | ast.NamedExpr) -> None:
        if node.value is not None:
            self._assign(node.target, node.value)

    def _add(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and isinstance(node.op, ast.Add):
            kept = self.added.setdefault(node.target.id, [])

            if len(kept) < MAX_BOUND:
                kept.append(node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            kept = self.bound.setdefault(target.id, [])

            if len(kept) < MAX_BOUND:
                kept.append(value)
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._assign(one, other)

    def _each(self, node: ast.For | ast.AsyncFor | ast.comprehension) -> None:
        if isinstance(node.iter, (ast.Tuple, ast.List, ast.Set)):
            for item in node.iter.elts[:MAX_BOUND]:
                self._assign(node.target, item)

    def _defaults(self, node: ast.arguments) -> None:
        positional = [*node.posonlyargs, *node.args]
        given = zip(reversed(positional), reversed(node.defaults), strict=False)

        for argument, default in (*given, *zip(node.kwonlyargs, node.kw_defaults, strict=False)):
            if default is not None:
                self._assign(ast.Name(argument.arg), default)


_BINDING_WORK: dict[type[ast.AST], Callable[..., None]] = {
    ast.Import: Bindings._import_modules,
    ast.ImportFrom: Bindings._import_names,
    ast.Assign: Bindings._assigned,
    ast.AnnAssign: Bindings._named,
    ast.NamedExpr: Bindings._named,
    ast.AugAssign: Bindings._add,
    ast.For: Bindings._each,
    ast.AsyncFor: Bindings._each,
    ast.comprehension: Bindings._each,
    ast.arguments: Bindings._defaults,
}


_MAX_VALUES = 4
_MAX_DEPTH = 24
_MAX_TEXT_CHARACTERS = 65_536
_MAX_TOTAL_CHARACTERS = 8_000_000
_MAX_NAME_CHARACTERS = 200
_MAX_PARTS = 2_000
_BUILT_IN = frozenset(
    words(
        "get_ipython "
        "eval exec compile open __import__ getattr globals locals vars chr bytes bytearray str input map __builtins__ "
        "reversed type print"
    )
)


@dataclass(frozen=True, slots=True)
class Dotted:
    """A name of a module, or of something in it.

    Attributes:
        name: Such as `os.system`, as it is called at home.
        is_hidden: Whether the code looks it, or its module, up by a string.
        is_made: Whether the code builds that string from parts.
    """

    name: str
    is_hidden: bool = False
    is_made: bool = False


Value: TypeAlias = Text | Dotted
Origin: TypeAlias = Literal["decoded", "fetched"]


class Names:
    """The bindings of names anywhere in one piece of code."""

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self._bindings = Bindings(nodes)
        self._known: dict[int | str, tuple[Value, ...]] = {}
        self._traced: dict[tuple[str, int], bool] = {}
        self._room = _MAX_TOTAL_CHARACTERS
        self._depth = 0

    def values(self, node: ast.expr) -> tuple[Value, ...]:
        """Return the names that an expression may refer to; none if they are not known."""
        if id(node) in self._known:
            return self._known[id(node)]

        if self._depth >= _MAX_DEPTH:
            return ()

        work = _WORK.get(type(node))

        if work is None:
            return ()

        self._depth += 1
        self._known[id(node)] = ()
        found = tuple(dict.fromkeys(work(self, node)))[:_MAX_VALUES]
        self._depth -= 1
        self._known[id(node)] = found
        return found

    def dotted(self, node: ast.expr) -> list[Dotted]:
        """Return the dotted names among the values."""
        return [value for value in self.values(node) if isinstance(value, Dotted)]

    def texts(self, node: ast.expr) -> list[Text]:
        """Return the strings among the values."""
        return [value for value in self.values(node) if isinstance(value, Text)]

    @property
    def is_exhausted(self) -> bool:
        """Whether the code builds more text than the bounds allow to follow."""
        return self._room < 0

    def comes_from(self, node: ast.AST, origin: Origin, depth: int = 0) -> bool:
        """Whether an expression, or what its names are bound to, decodes or fetches something."""
        key = (origin, id(node))

        if key not in self._traced:
            self._traced[key] = False
            self._traced[key] = any(self._is_origin(part, origin, depth) for part in ast.walk(node))

        return self._traced[key]

    def _is_origin(self, node: ast.AST, origin: Origin, depth: int) -> bool:
        if isinstance(node, ast.Call):
            if origin == "decoded" and isinstance(node.func, ast.Attribute) and node.func.attr == "fromhex":
                return True

            names = [value.name for value in self.dotted(node.func)]
            return any(
                name in DECODERS if origin == "decoded" else name.startswith(FETCHERS) for name in names
            )

        if not isinstance(node, ast.Name) or depth >= MAX_BOUND:
            return False

        return any(
            self.comes_from(bound, origin, depth + 1) for bound in self._bindings.bound.get(node.id, ())
        )

    def _of_constant(self, node: ast.Constant) -> list[Value]:
        if isinstance(node.value, str):
            return [Text(node.value)] if len(node.value) <= _MAX_TEXT_CHARACTERS else []

        if isinstance(node.value, bytes) and len(node.value) <= _MAX_TEXT_CHARACTERS:
            return [Text(node.value.decode("latin-1"))]

        return []

    def _of_name(self, node: ast.Name) -> list[Value]:
        if node.id in self._known:
            return list(self._known[node.id])

        self._known[node.id] = ()
        bound = self._bindings.bound.get(node.id, ())
        found: list[Value] = [Dotted(at_home(name)) for name in self._bindings.imported.get(node.id, ())]

        for value in bound:
            found += self.values(value)

        for added in self._bindings.added.get(node.id, ()):
            found += self._joined([value for value in found if isinstance(value, Text)], self.texts(added))

        if node.id in _BUILT_IN and not found:
            found.append(Dotted(at_home(node.id)))

        if not found and not bound:
            found += [Dotted(at_home(f"{module}.{node.id}")) for module in self._bindings.stars[:_MAX_VALUES]]

        # If there are many, the last ones are kept as well: added values are the ones that are used.
        kept = tuple(dict.fromkeys(found))
        self._known[node.id] = kept if len(kept) <= _MAX_VALUES else kept[:2] + kept[-2:]
        return list(self._known[node.id])

    def _of_attribute(self, node: ast.Attribute) -> list[Value]:
        found: list[Value] = []

        for base in self.values(node.value):
            if isinstance(base, Dotted):
                found += _within(base, node.attr)

        return found

    def _of_binop(self, node: ast.BinOp) -> list[Value]:
        if isinstance(node.op, ast.Add):
            return list(self._joined(self.texts(node.left), self.texts(node.right)))

        if isinstance(node.op, ast.Mod):
            parts = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            return list(self._made("%", self.texts(node.left), [self.texts(part) for part in parts[:20]]))

        return []

    def _of_joinedstr(self, node: ast.JoinedStr) -> list[Value]:
        found = [Text("")]

        for part in node.values[:_MAX_PARTS]:
            value = part.value if isinstance(part, ast.FormattedValue) else part
            found = self._joined(found, self.texts(value))

        return [*found]

    def _of_subscript(self, node: ast.Subscript) -> list[Value]:
        if isinstance(node.value, (ast.List, ast.Tuple)):
            return [value for item in node.value.elts[:MAX_BOUND] for value in self.values(item)]

        if isinstance(node.value, ast.Dict):
            return [value for item in node.value.values[:MAX_BOUND] for value in self.values(item)]

        if isinstance(node.slice, ast.Slice):
            return [made for text in self.texts(node.value) if (made := sliced(text, node.slice))]

        found: list[Value] = []

        for base in self.dotted(node.value):
            home = base.name.removesuffix("__dict__").rstrip(".")

            for key in self.texts(node.slice):
                if base.name in ("sys.modules", "globals()", "locals()", "vars()"):
                    found.append(_looked_up(key))
                elif base.name == "builtins" or base.name.endswith("__dict__"):
                    found += _within(Dotted(home or "builtins"), key.text, looked_up=key)

        return found

    def _of_call(self, node: ast.Call) -> list[Value]:
        if isinstance(node.func, ast.Lambda):
            return list(self.values(node.func.body))

        found: list[Value] = []

        for function in self.dotted(node.func):
            found += self._called(function.name, node)

        if found:
            return found

        return list(self._text_of_call(node))

    def _of_one_of(self, node: ast.IfExp | ast.BoolOp | ast.NamedExpr | ast.Await) -> list[Value]:
        match node:
            case ast.IfExp():
                choices = [node.body, node.orelse]
            case ast.BoolOp():
                choices = node.values[:MAX_BOUND]
            case _:
                choices = [node.value]

        return [value for choice in choices for value in self.values(choice)]

    def _called(self, name: str, node: ast.Call) -> list[Value]:
        """Return the values of a call of a known function that looks up by name, such as `getattr`."""
        arguments = node.args

        if name in ("__import__", "importlib.import_module", "importlib.__import__") and arguments:
            return [_looked_up(text) for text in self.texts(arguments[0])]

        if name == "getattr" and len(arguments) >= 2:
            bases = [Dotted(base.name.removesuffix(".__dict__")) for base in self.dotted(arguments[0])]
            return [
                value
                for base in bases
                for text in self.texts(arguments[1])
                for value in _within(base, text.text, looked_up=text)
            ]

        if name == "functools.partial" and arguments:
            return list(self.values(arguments[0]))

        if name.removeprefix("IPython.").removeprefix("core.getipython.") == "get_ipython":
            return [Dotted("get_ipython()")]

        if name in ("globals", "locals"):
            return [Dotted(f"{name}()")]

        if name == "vars":
            homes = self.dotted(arguments[0]) if arguments else []
            return [Dotted(f"{home.name}.__dict__") for home in homes] or [Dotted("vars()")]

        if name == "operator.attrgetter" and arguments:
            return [
                Dotted(f"attrgetter:{text.text[:_MAX_NAME_CHARACTERS]}") for text in self.texts(arguments[0])
            ]

        if name.startswith("attrgetter:") and arguments:
            attribute = name.partition(":")[2]
            return [
                value
                for base in self.dotted(arguments[0])
                for value in _within(base, attribute, looked_up=Text(attribute))
            ]

        return []

    def _text_of_call(self, node: ast.Call) -> list[Text]:
        names = [value.name for value in self.dotted(node.func)]
        receiver: list[Text] = []

        if not names and isinstance(node.func, ast.Attribute):
            receiver = self.texts(node.func.value)
            names = [f".{node.func.attr}"] if receiver else []

        found: list[Text] = []

        for name in names:
            if name == "map" and len(node.args) == 2 and self.dotted(node.args[0]) == [Dotted("chr")]:
                found += [Text("\0".join(text.text), is_made=True) for text in self._argument(node.args[1])]
                continue

            parts = [self._argument(argument) for argument in node.args[:MAX_BOUND]]
            found += self._made(name, receiver or [Text("")], parts)

        return found

    def _argument(self, node: ast.expr) -> list[Text]:
        """Return the strings of an argument; the strings of a list are joined, with a mark between."""
        if isinstance(node, (ast.List, ast.Tuple)):
            pieces = [self.texts(item) for item in node.elts[:_MAX_PARTS]]

            if all(pieces):
                return [Text("\0".join(piece[0].text for piece in pieces), is_made=True)]

            numbers = [item.value for item in node.elts if isinstance(item, ast.Constant)]
            is_text = all(isinstance(number, int) and 0 <= number < 0x110000 for number in numbers)

            if numbers and is_text and len(numbers) == len(node.elts) <= _MAX_PARTS:
                return [Text("".join(map(chr, numbers)), is_made=True)]  # type: ignore[arg-type]

        if isinstance(node, ast.Constant) and isinstance(node.value, int) and 0 <= node.value < 0x110000:
            return [Text(chr(node.value), is_made=True, is_number=True)]

        if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            return self._comprehended(node)

        return self.texts(node)

    def _comprehended(self, node: ast.GeneratorExp | ast.ListComp) -> list[Text]:
        """Return the likely text of `chr(n) for n in (111, 115)`, `c for c in reversed("so")` and the like."""
        several = node.generators[0].iter
        is_chr = isinstance(node.elt, ast.Call) and any(
            value.name == "chr" for value in self.dotted(node.elt.func)
        )
        is_row = isinstance(several, (ast.List, ast.Tuple)) and is_chr
        return (
            [Text("\0".join(text.text), is_made=True) for text in self._argument(several)] if is_row else []
        )

    def _joined(self, left: list[Text], right: list[Text]) -> list[Text]:
        return [
            Text(one.text + other.text, is_made=True)
            for one in left[:_MAX_VALUES]
            for other in right[:_MAX_VALUES]
            if self._pays(len(one.text) + len(other.text))
        ][:_MAX_VALUES]

    def _made(self, name: str, receivers: list[Text], parts: list[list[Text]]) -> list[Text]:
        if any(not part for part in parts):
            return []

        first = [part[0] for part in parts]
        return [
            made
            for receiver in receivers[:_MAX_VALUES]
            if self._pays(len(receiver.text) + sum(len(part.text) for part in first))
            if (made := called_text(name, receiver, first)) is not None
        ]

    def _pays(self, characters: int) -> bool:
        if characters > _MAX_TEXT_CHARACTERS:
            return False

        self._room -= characters
        return self._room >= 0


def at_home(name: str) -> str:
    """Return a dotted name as its defining module has it: `posix.system` and `pathlib.os.system` are `os.system`."""
    first, dot, rest = name.partition(".")
    name = f"{SAME_MODULE.get(first, first)}{dot}{rest}"
    parts = name.split(".")

    for index in range(len(parts) - 1, 0, -1):
        home = parts[index].strip("_")

        if home in GUARDED and parts[0] != "asyncio":
            name = ".".join([home, *parts[index + 1 :]])
            break

    return name if name == "builtins.__dict__" else name.removeprefix("builtins.")


def _looked_up(text: Text) -> Dotted:
    """Return the module that a string names."""
    return Dotted(at_home(text.text[:_MAX_NAME_CHARACTERS]), is_hidden=True, is_made=text.is_made)


def _within(base: Dotted, attribute: str, *, looked_up: Text | None = None) -> list[Value]:
    """Return the member of a module; one that was looked up by a string counts as hidden."""
    whole = f"{base.name}.{attribute}"
    is_hidden = base.is_hidden or looked_up is not None
    is_made = base.is_made or (looked_up is not None and looked_up.is_made)
    return [Dotted(at_home(whole), is_hidden, is_made)] if len(whole) <= _MAX_NAME_CHARACTERS else []


_WORK: dict[type[ast.expr], Callable[..., list[Value]]] = {
    ast.Constant: Names._of_constant,
    ast.Name: Names._of_name,
    ast.Attribute: Names._of_attribute,
    ast.BinOp: Names._of_binop,
    ast.JoinedStr: Names._of_joinedstr,
    ast.Subscript: Names._of_subscript,
    ast.Call: Names._of_call,
    ast.IfExp: Names._of_one_of,
    ast.BoolOp: Names._of_one_of,
    ast.NamedExpr: Names._of_one_of,
    ast.Await: Names._of_one_of,
}
