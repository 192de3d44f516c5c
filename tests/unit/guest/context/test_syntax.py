"""What is parsed to tell Python from IPython's own syntax is run, and is not parsed again."""

from __future__ import annotations

import ast
import re
import sys
import types

import pytest
from IPython.core.autocall import ExitAutocall
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.macro import Macro
from IPython.core.prefilter import PrefilterChecker, PrefilterManager, PrefilterTransformer
from traitlets.config import Config

from fumehood_guest.context import syntax
from fumehood_guest.context.syntax import Compiler, SingleLines, Syntax


@pytest.fixture
def compiler() -> Compiler:
    """One with the transformer of its shell."""
    made = Compiler()
    made.syntax = Syntax()
    return made


def parsed(compiler: Compiler, cell: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """What a cell is to Python, and how often it was parsed."""
    assert compiler.syntax is not None
    times: list[str] = []

    def counted(source: str, *rest: object, **more: object) -> object:
        times.append(source)
        return compile(source, *rest, **more)

    monkeypatch.setattr(syntax, "compile", counted, raising=False)
    monkeypatch.setattr("IPython.core.compilerop.compile", counted, raising=False)
    source = compiler.syntax.transform_cell(cell)
    tree = compiler.ast_parse(source)
    assert ast.dump(tree) == ast.dump(ast.parse(source))
    return source, len(times)


def test_python_is_parsed_once(compiler, monkeypatch):
    """Also with await outside of functions, which only the shell allows."""
    assert parsed(compiler, "x = 1", monkeypatch) == ("x = 1\n", 1)
    assert parsed(compiler, "await x\n", monkeypatch) == ("await x\n", 1)


def test_what_is_no_python_is_parsed_as_what_it_stands_for(compiler, monkeypatch):
    """A magic is the call of a function."""
    source, times = parsed(compiler, "%time 1", monkeypatch)
    assert source.startswith("get_ipython()")
    assert times == 2


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("print(1", "'(' was never closed"),
        ("for x in y:", "expected an indented block"),
        ("x = '''abc", "unterminated triple-quoted"),
    ],
    ids=["bracket", "block", "text"],
)
def test_what_ends_too_early_is_called_by_its_name(compiler, cell, words):
    """As Python calls it, and not "incomplete input": no further line is going to come."""
    with pytest.raises(SyntaxError, match=re.escape(words)):
        compiler.ast_parse(compiler.syntax.transform_cell(cell))


def test_a_tree_is_given_out_once(compiler):
    """Whoever runs it may have changed it."""
    compiler.syntax.transform_cell("x = 1")
    first, second = compiler.ast_parse("x = 1\n"), compiler.ast_parse("x = 1\n")
    assert first is not second


def test_after_an_import_from_the_future_python_is_parsed_by_its_rules(compiler, monkeypatch):
    """They may be others."""
    compiler("from __future__ import barry_as_FLUFL\n", "<cell>", "exec")
    source = compiler.syntax.transform_cell("1 != 2")

    with pytest.raises(SyntaxError):
        compiler.ast_parse(source)


@pytest.fixture(scope="module")
def prefilter() -> PrefilterManager:
    """That of a shell, with names that stand for more than their values."""
    config = Config()
    config.HistoryManager.enabled = False
    main = sys.modules["__main__"]
    shell = InteractiveShell(config=config, user_module=types.ModuleType("cells"))
    sys.modules["__main__"] = main
    shell.user_ns.update(text=Macro("x = 1"), away=ExitAutocall(), plain=3)
    return shell.prefilter_manager


_LINES = (
    "y = 1",
    "y=1",
    "plain = 2 # PYTHON-MODE",
    "a, b = 1, 2",
    "text = 1",
    "away = 1",
    "ls = 1",
    "ls, x = 1, 2",
    "y == 1",
    "y.z = 1",
    "y[0] = 1",
    "y += 1",
    "y: int = 1",
    "(y) = 1",
    "ls",
    "text",
    "away",
    "print(1)",
    "y = 1\r",
    "é = 1",
    "",
)


@pytest.mark.parametrize("line", _LINES)
def test_what_is_left_alone_the_prefilter_would_not_change(line, prefilter):
    """The other way round it need not be so."""
    if SingleLines(prefilter).leave_alone(line, prefilter.shell.user_ns, prefilter):
        assert prefilter.prefilter_lines(line) == line


def test_assignments_are_left_alone(prefilter):
    """Unless their target stands for more than its value."""
    lines, names = SingleLines(prefilter), prefilter.shell.user_ns
    left = [line for line in _LINES if lines.leave_alone(line, names, prefilter)]
    assert {"y = 1", "ls = 1", "a, b = 1, 2"}.issubset(left)
    assert {"text = 1", "away = 1", "ls", "print(1)"}.isdisjoint(left)


@pytest.mark.parametrize("change", ["transformer", "checker", "emacs", "assignments", "handler", "another"])
def test_nothing_is_left_alone_when_the_prefilter_was_changed(change, prefilter):
    """By whom, and what for, does not matter."""
    lines, names = SingleLines(prefilter), prefilter.shell.user_ns
    emacs, assignments = prefilter.checkers[0], prefilter.checkers[3]
    normal = prefilter.handlers["normal"]
    manager = prefilter

    if change == "transformer":
        added = PrefilterTransformer(shell=prefilter.shell, prefilter_manager=prefilter)
    elif change == "checker":
        added = PrefilterChecker(shell=prefilter.shell, prefilter_manager=prefilter)
    elif change == "emacs":
        emacs.enabled = True
    elif change == "assignments":
        assignments.enabled = False
    elif change == "handler":
        prefilter.handlers["normal"] = object()
    else:
        manager = PrefilterManager(shell=prefilter.shell)

    is_left_alone = lines.leave_alone("y = 1", names, manager)
    emacs.enabled, assignments.enabled = False, True
    prefilter.handlers["normal"] = normal

    if change == "transformer":
        prefilter.unregister_transformer(added)
    elif change == "checker":
        prefilter.unregister_checker(added)

    assert not is_left_alone
    assert lines.leave_alone("y = 1", names, prefilter)
