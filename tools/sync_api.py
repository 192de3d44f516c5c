"""Writes `src/fumehood/api/sandbox.py`, the synchronous API, from the asynchronous one; `make sync-api` runs it.

Each public method of the classes in `_SOURCES` becomes one that waits in the caller's thread for the engine's. What a
method needs beyond that follows from its annotations: callbacks run in the caller's thread, a class of this API is
wrapped in its synchronous one, an async generator becomes an iterator. A test compares the file with what this would
write.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_API = Path(__file__).parents[1] / "src/fumehood/api"
TARGET = _API / "sandbox.py"

# Class -> its module, in the order of the file.
_SOURCES = {
    "AsyncSandbox": "async_sandbox",
    "AsyncFilesystem": "files",
    "AsyncWatch": "files",
    "AsyncCommands": "commands",
    "AsyncCommandHandle": "commands",
    "AsyncPty": "pty",
    "AsyncPtyHandle": "pty",
    "AsyncActivity": "activity",
    "AsyncShares": "shares",
    "AsyncRecords": "records",
}
# Classes that a program makes itself, with the arguments of the asynchronous one.
_MADE = ("AsyncRecords",)
# Class -> its base class among the asynchronous ones, and the module of that: its methods become those of the class.
_BASES = {"AsyncSandbox": ("AsyncContexts", "contexts")}
# Parts of a sandbox: attribute -> class.
_PARTS = {
    "files": "AsyncFilesystem",
    "commands": "AsyncCommands",
    "pty": "AsyncPty",
    "activity": "AsyncActivity",
    "shares": "AsyncShares",
}
# Later calls of its methods run the callbacks that it was made with.
_WITH_TURN = "AsyncCommandHandle"
_RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
# A paragraph of a docstring that is about the asynchronous class alone begins with this.
_ASYNC_ONLY = "Asynchronous:"

_HEAD = '''"""`Sandbox` and its parts: the synchronous API.

Written by `make sync-api` from the asynchronous classes; do not edit. Runs in the caller's thread, which waits for the
engine's thread; callbacks run here, so they may use the sandbox. Nothing is decided in this file.
"""

from __future__ import annotations

'''
_AROUND = """
    @classmethod
    def _around(cls, async_impl: AsyncSandbox) -> Self:
        sandbox = cls.__new__(cls)
        sandbox._hold(async_impl)
        return sandbox

    def _hold(self, async_impl: AsyncSandbox) -> None:
        self._async = async_impl
{parts}
"""
_REPR = """
    def __repr__(self) -> str:
        return repr(self._async).replace(AsyncSandbox.__name__, type(self).__name__, 1)
"""
_NEXT = """
    def __next__(self) -> {answer}:
        try:
            return call(self._async.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None
"""


def page() -> str:
    """Returns the text of the file."""
    modules = dict.fromkeys([*_SOURCES.values(), *(module for _, module in _BASES.values())])
    trees = {name: ast.parse((_API / f"{name}.py").read_text(encoding="utf-8")) for name in modules}
    classes = "\n\n".join(_class(_joined(name, module, trees)) for name, module in _SOURCES.items())
    source = _HEAD + "\n".join(_imports(trees, classes)) + "\n\n\n" + classes
    return _formatted(source)


def _joined(name: str, module: str, trees: dict[str, ast.Module]) -> ast.ClassDef:
    """Returns the definition of a class, with the methods and the bases of the base that is among ours."""
    node = next(item for item in trees[module].body if isinstance(item, ast.ClassDef) and item.name == name)

    if name not in _BASES:
        return node

    base = _joined(*_BASES[name], trees)
    return ast.ClassDef(
        name=name,
        bases=base.bases,
        keywords=node.keywords,
        body=[*node.body, *base.body[1:]],
        decorator_list=node.decorator_list,
    )


def _class(node: ast.ClassDef) -> str:
    name = _sync(node.name)
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    lines = [f"class {name}({bases}):" if bases else f"class {name}:", _docstring(node, "    ")]

    if node.name == "AsyncSandbox":
        parts = "\n".join(
            f"        self.{part} = {_sync(kind)}(async_impl.{part})" for part, kind in _PARTS.items()
        )
        lines += [_constructor(node), _AROUND.format(parts=parts)]
    elif node.name in _MADE:
        lines.append(_plain_constructor(node))
    elif node.name == _WITH_TURN:
        lines.append(
            f"\n    def __init__(self, async_impl: {node.name}, turn: Turn) -> None:\n"
            "        self._async = async_impl\n        self._turn = turn\n"
        )
    else:
        lines.append(
            f"\n    def __init__(self, async_impl: {node.name}) -> None:\n        self._async = async_impl\n"
        )

    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_shown(item):
            lines.append(_method(item, node))

    return "\n".join(lines)


def _is_shown(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return not method.name.startswith("_") or method.name in (*_RENAMED, "__repr__")


def _plain_constructor(node: ast.ClassDef) -> str:
    method = _init(node)
    return (
        f"\n    def __init__({_parameters(method)}) -> None:\n"
        f"        self._async = {node.name}({_passed(method)})\n"
    )


def _init(node: ast.ClassDef) -> ast.FunctionDef:
    return next(item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")


def _constructor(node: ast.ClassDef) -> str:
    method = _init(node)
    return (
        f"\n    def __init__({_parameters(method)}) -> None:\n"
        f"        async_impl = {node.name}({_passed(method)})\n"
        "        self._hold(call(async_impl.__aenter__))\n"
    )


def _method(method: ast.FunctionDef | ast.AsyncFunctionDef, owner: ast.ClassDef) -> str:
    decorators = [ast.unparse(item) for item in method.decorator_list]
    name = _RENAMED.get(method.name, method.name)
    head = "".join(f"    @{decorator}\n" for decorator in decorators)
    answer = _sync(ast.unparse(method.returns)) if method.returns else "None"
    head += f"    def {name}({_parameters(method)}) -> {answer}:"

    if "overload" in decorators:
        return f"\n{head} ..."

    if method.name == "__repr__":
        return _REPR
    if method.name == "__anext__":
        return _NEXT.format(answer=answer)

    body = _body(method, owner, decorators)
    docstring = _docstring(method, "        ")
    return "\n".join(part for part in (f"\n{head}", docstring, body) if part)


def _body(method: ast.FunctionDef | ast.AsyncFunctionDef, owner: ast.ClassDef, decorators: list[str]) -> str:
    if "property" in decorators:
        return f"        return self._async.{method.name}\n"
    if method.name in ("__aenter__", "__aiter__"):
        return "        return self\n"
    if method.name == "create" and "classmethod" in decorators:
        return f"        return cls({_passed(method, relay=False)})\n"

    answer = ast.unparse(method.returns) if method.returns else "None"
    names = [argument.arg for argument in _arguments(method)]
    needs_turn = any(_is_callback(argument) for argument in _arguments(method)) or "AsyncGenerator" in answer
    is_overloaded = _is_overloaded(method, owner)
    place = owner.name if "classmethod" in decorators else "self._async"
    function = f"{place}.{method.name}"

    if is_overloaded:
        function = f'cast("Callable[..., Awaitable[Any]]", {function})'

    waiting = "self._turn.call" if owner.name == _WITH_TURN and method.name == "wait" else "call"
    lines: list[str] = []

    if needs_turn:
        lines.append("        turn = Turn()")
        waiting = "turn.call"
    if "child" in names:
        lines.append(f"        check_child(child, {_sync(owner.name)})")

    passed = _passed(method)

    if isinstance(method, ast.AsyncFunctionDef) and answer.startswith("AsyncGenerator["):
        return "\n".join([*lines, f"        return turn.iterate({function}({passed}))\n"])

    asked = f"{waiting}({function}, {passed})" if passed else f"{waiting}({function})"

    if is_overloaded:
        return "\n".join([*lines, f"        answer = {asked}", *_unwrapped(answer)])
    if answer in ("Self", owner.name) and "classmethod" in decorators:
        asked = f"cls._around({asked})"
    elif answer == "Self":
        asked = f"self._around({asked})"
    elif answer == "builtins.list[Self]":
        asked = f"[self._around(child) for child in {asked}]"
    elif answer == _WITH_TURN:
        asked = f"{_sync(answer)}({asked}, turn)"
    elif answer in _SOURCES:
        asked = f"{_sync(answer)}({asked})"

    return "\n".join([*lines, f"        {asked}\n" if answer == "None" else f"        return {asked}\n"])


def _unwrapped(answer: str) -> Iterator[str]:
    """Yields the lines that give back, of a union, the synchronous form of what came."""
    if _WITH_TURN in answer:
        yield f"        return {_sync(_WITH_TURN)}(answer, turn) if isinstance(answer, {_WITH_TURN}) else answer\n"
    elif "AsyncGenerator" in answer:
        yield "        return turn.iterate(answer) if isinstance(answer, AsyncGenerator) else answer\n"
    else:
        yield "        return answer\n"


def _is_overloaded(method: ast.FunctionDef | ast.AsyncFunctionDef, owner: ast.ClassDef) -> bool:
    named = [item for item in owner.body if getattr(item, "name", "") == method.name]
    return len(named) > 1


def _arguments(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*method.args.args[1:], *method.args.kwonlyargs]


def _is_callback(argument: ast.arg) -> bool:
    annotation = ast.unparse(argument.annotation) if argument.annotation else ""
    return "Callback" in annotation or annotation.startswith("Tools")


def _parameters(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return _sync(ast.unparse(method.args))


def _passed(method: ast.FunctionDef | ast.AsyncFunctionDef, *, relay: bool = True) -> str:
    """Returns the arguments of the call of the asynchronous method."""
    keyword = {argument.arg for argument in method.args.kwonlyargs}
    given: list[str] = []

    for argument in _arguments(method):
        value = _value(argument) if relay else argument.arg
        given.append(f"{argument.arg}={value}" if argument.arg in keyword else value)

    if method.args.vararg is not None:
        given.insert(len(method.args.args) - 1, f"*{method.args.vararg.arg}")

    if method.args.kwarg is not None:
        given.append(f"**{method.args.kwarg.arg}")

    return ", ".join(given)


def _value(argument: ast.arg) -> str:
    name = argument.arg
    annotation = ast.unparse(argument.annotation) if argument.annotation else ""

    if annotation.startswith("Tools"):
        return f"relay_tools(turn, {name})"
    if annotation.startswith("AsyncToolCallback"):
        return f"relay_approval(turn, {name})"
    if annotation.startswith("AsyncSecurityCallback"):
        return f"called_apart({name})"
    if "Callback" in annotation:
        return f'turn.relay({name}, "{name}")'
    if annotation == "Self":
        return f"{name}._async"

    return name


def _sync(text: str) -> str:
    """Returns an annotation, or a list of parameters, with the names of the synchronous API."""
    text = re.sub(r"AsyncGenerator\[(\w+), None\]", r"Iterator[\1]", text)
    text = text.replace("AsyncToolCallback", "ToolCallback")
    return re.sub(r"\bAsync(?=[A-Z])", "", text)


def _docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, indent: str) -> str:
    text = ast.get_docstring(node, clean=False)

    if not text:
        return ""

    paragraphs = [part for part in text.split("\n\n") if not part.strip().startswith(_ASYNC_ONLY)]
    shown = re.sub(r"\bAsync(Sandbox|Commands|Filesystem|Pty)\b", r"\1", "\n\n".join(paragraphs).rstrip())
    return f'{indent}"""{shown}"""' if "\n" not in shown else f'{indent}"""{shown}\n{indent}"""'


def _imports(trees: dict[str, ast.Module], classes: str) -> Iterator[str]:
    """Yields an import for each name that the classes use, from where the asynchronous modules have it."""
    used = set(re.findall(r"\b[A-Za-z_]\w*", classes))
    homes = {
        "Turn": "fumehood.portal",
        "call": "fumehood.portal",
        "called_apart": "fumehood.api.security_events",
        "relay_approval": "fumehood.api.tools",
        "relay_tools": "fumehood.api.tools",
        "check_child": "fumehood.api.handle",
        "ToolCallback": "fumehood.api.tools",
        **dict.fromkeys(("Awaitable", "Callable", "Iterator"), "collections.abc"),
        **dict.fromkeys(("Any", "Self", "cast"), "typing"),
    }
    plain: set[str] = set()
    typed: dict[str, str] = {}

    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                homes |= {alias.name: str(node.module) for alias in node.names if alias.name not in homes}
            elif isinstance(node, ast.Import):
                plain |= {alias.name for alias in node.names}
            elif isinstance(node, ast.If):
                typed |= {
                    alias.name: str(item.module)
                    for item in node.body
                    if isinstance(item, ast.ImportFrom)
                    for alias in item.names
                }
            elif isinstance(node, (ast.ClassDef, ast.AnnAssign, ast.Assign)):
                homes |= dict.fromkeys(_named(node), f"fumehood.api.{module}")

    homes |= {
        name: "fumehood.api.callbacks" for name in used if name.endswith("Callback") and "Tool" not in name
    }
    own = {_sync(name) for name in _SOURCES}

    for name in sorted(plain & used):
        if re.search(rf"\b{name}\.", classes):
            yield f"import {name}"

    for name in sorted(used & homes.keys() - typed.keys() - own):
        yield f"from {homes[name]} import {name}"

    if used & typed.keys():
        yield "from typing import TYPE_CHECKING"
        yield "if TYPE_CHECKING:"
        yield from (f"    from {home} import {name}" for name, home in typed.items() if name in used)


def _named(node: ast.ClassDef | ast.AnnAssign | ast.Assign) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.AnnAssign):
        yield ast.unparse(node.target)
    else:
        yield from (ast.unparse(target) for target in node.targets)


def _formatted(source: str) -> str:
    for command in (["check", "--fix", "--quiet", "--select", "I,F401,UP"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout

    return source


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        TARGET.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
