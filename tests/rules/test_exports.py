"""The public surface: `__all__` is what there is, sorted, and nothing is loaded before it is used."""

from __future__ import annotations

import ast

import pytest

import fumehood
from fumehood import errors


def test_all_is_sorted_and_without_doubles():
    """A reader finds a name where the alphabet puts it."""
    assert list(fumehood.__all__) == sorted(set(fumehood.__all__))


def test_every_public_name_exists():
    """What is promised is there."""
    for name in fumehood.__all__:
        assert getattr(fumehood, name) is not None


def test_what_type_checkers_see_is_what_there_is(modules):
    """The names under TYPE_CHECKING, the homes and `__all__` are one list."""
    tree = next(module.tree for module in modules if module.name == "fumehood")
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {name: f"fumehood.{home}" for home, names in fumehood._HOMES.items() for name in names.split()}

    assert seen == homes
    assert sorted(seen) == fumehood.__all__


def test_other_names_are_not_there():
    """A name that does not exist is told like any missing attribute."""
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = fumehood.Nothing


def test_dir_shows_the_public_names():
    """Completion offers what is public."""
    assert dir(fumehood) == fumehood.__all__


def test_every_error_is_public():
    """Whatever is raised can be caught by name."""
    classes = {
        name
        for name, value in {**vars(errors), **vars(errors)}.items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert classes <= set(fumehood.__all__)


def test_a_misspelt_name_is_known_to_python() -> None:
    """Python adds what was probably meant to the traceback: it needs the name, and the module."""
    with pytest.raises(AttributeError, match="module 'fumehood' has no attribute 'Sandbx'") as missing:
        fumehood.Sandbx  # noqa: B018

    assert (missing.value.name, missing.value.obj) == ("Sandbx", fumehood)
