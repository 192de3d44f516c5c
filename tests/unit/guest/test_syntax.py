"""What is parsed to tell Python from IPython's own syntax is run, and is not parsed again."""

from __future__ import annotations

import ast

import pytest

from fumehood_guest import syntax
from fumehood_guest.syntax import Compiler, Syntax


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
